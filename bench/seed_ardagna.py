"""Ardagna et al., remade: regressions on layers and on a run's settings, asked beyond their training rows, beside ours.

Example: python bench/seed_ardagna.py --data ../shared/data
"""

from gpusage_lab.seeds import ardagna
from gpusage_lab.seeds.command import command_of

main = command_of("ardagna", ardagna.tables, ardagna.FILES, __file__)

if __name__ == "__main__":
    main()

"""KACE, remade: which partner on one GPU, by linear regression, forest, network and search, beside rules and ours.

Example: python bench/seed_kace.py --data ../shared/data
"""

from gpusage_lab.seeds import kace
from gpusage_lab.seeds.command import command_of

main = command_of("kace", kace.tables, kace.FILES, __file__)

if __name__ == "__main__":
    main()

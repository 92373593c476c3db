"""Yeung et al., HotCloud 2020, remade: utilization by a random forest, by boosting, and by ours.

Example: python bench/seed_yeung.py --data ../shared/data
"""

from gpusage_lab.seeds import yeung
from gpusage_lab.seeds.command import command_of

main = command_of("yeung", yeung.tables, yeung.FILES, __file__)

if __name__ == "__main__":
    main()

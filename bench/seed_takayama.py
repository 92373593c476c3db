"""Takayama et al., remade: what nine MLPerf jobs gain from a V100 over a P100, told from their graphs.

Needs no data: the graphs are in gpusage's zoo, the paper's measured times in the module.

Example: python bench/seed_takayama.py
"""

from gpusage_lab.seeds import takayama
from gpusage_lab.seeds.command import command_of

main = command_of("takayama", takayama.tables, (), __file__)

if __name__ == "__main__":
    main()

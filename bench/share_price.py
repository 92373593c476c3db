"""What a part of a GPU is predicted to cost against what it cost, on MIG slices and on MPS percentages.

RaPP (V100, percentages), ParvaGPU and MISO (A100, slices), with what is known of the job: nothing, its step time or its
utilization. The intervals' widths are of other families of models. Beside: no slowdown, in proportion to the SMs, and
by SM activity, which sized shares before.

Example: python bench/share_price.py --data ../shared/data
"""

from gpusage_lab.learning import slowdown_rows, slowdown_sizes
from gpusage_lab.seeds.command import command_of

main = command_of("share price", slowdown_sizes.tables, slowdown_rows.FILES, __file__)

if __name__ == "__main__":
    main()

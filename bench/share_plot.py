"""The plot in docs/shares.md: what shares of three GPUs cost one example job, from its model and with what users know.

Without --write it says whether the committed plot is the one that would be made.

Example: python bench/share_plot.py --write
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from gpusage.decisions.advisor import make_advisor
from gpusage.reports.pages import curves
from gpusage_hooks.types import Price, SoloRun, Workload

ROOT = Path(__file__).resolve().parent.parent
MODEL, PAGE = ROOT / "examples" / "models" / "resnet18.onnx", ROOT / "docs" / "shares.svg"
RUN = Workload(mode="train", batch_size=32, precision="fp16")
KNOWN = {"from the model alone": SoloRun(), "utilization=60 known": SoloRun(utilization=0.6)}
GPUS = ("v100", "a100", "h100")


def main() -> int:
    """Write the plot, or compare it; return 1 where the committed one is another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    if parser.parse_args().write:
        PAGE.write_text(plot(), encoding="utf-8")
    is_new = PAGE.read_text(encoding="utf-8") == plot()
    sys.stdout.write(f"{PAGE.relative_to(ROOT)} is {'as' if is_new else 'not as'} this command makes it\n")
    return 0 if is_new else 1


def plot() -> str:
    """Return the plots of all GPUs in one picture: a column a GPU, a row for each thing that is known."""
    rows = [prices(words) for words in KNOWN]
    top = curves.top_of(curve for row in rows for curve in row)
    drawn = "".join(
        f"<g transform='translate({column * curves.WIDTH} {row * curves.HEIGHT})'>{curves.panel(curve, top)}</g>\n"
        for row, of_row in enumerate(rows)
        for column, curve in enumerate(of_row)
    )
    width, height = len(GPUS) * curves.WIDTH, len(rows) * curves.HEIGHT
    return f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}'>\n{drawn}</svg>\n"


def prices(words: str) -> list[list[Price]]:
    """Return the prices of shares of each GPU, named by the GPU and by *words*, a key of `KNOWN`."""
    advisor = make_advisor()
    graph, gpus = advisor.read(str(MODEL), {}), [advisor.catalogue.find(name) for name in GPUS]
    rows = advisor.price(graph, replace(RUN, alone=KNOWN[words]), gpus, curves.PERCENTS)
    return [[replace(price, gpu=f"{name}, {words}") for price in row] for name, row in zip(GPUS, rows, strict=True)]


if __name__ == "__main__":
    sys.exit(main())

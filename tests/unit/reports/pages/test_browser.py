"""Our pages in a real browser, as wide as a telephone: nothing is cut off, and all text is large enough to read.

The screenshots are left in the folder that ``GPUSAGE_SCREENSHOTS`` names, for whoever wants to look at them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main

ROOT = Path(__file__).parents[4]
BROWSER = shutil.which("chromium")
WIDTH = 390
LEAST_TEXT_PX = 9.0
"""Below this, text is not readable on a telephone."""
MEASURE = """
const page = frame.contentDocument, sizes = [];
const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const parent = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !parent.checkVisibility() || parent.tagName === 'STYLE') continue;
  const drawn = parent.closest('svg');
  const scale = drawn ? drawn.getBoundingClientRect().width / drawn.viewBox.baseVal.width : 1;
  sizes.push(parseFloat(getComputedStyle(parent).fontSize) * scale);
}
const width = page.documentElement.scrollWidth;
document.title = JSON.stringify({width: width, text: Math.min(...sizes), count: sizes.length});
"""

pytestmark = [pytest.mark.browser, pytest.mark.skipif(BROWSER is None, reason="no chromium here")]

COMMANDS = {
    "predict": ["predict", "examples/models/resnet18.onnx", "examples/models/lstm_lm.onnx", "--gpu=v100", "--gpu=h100"],
    "plan": ["plan", "--jobs=examples/plan/jobs.csv", "--cluster=examples/plan/cluster.toml"],
    "simulate": ["simulate", "--generate=100"],
}


def browse(*arguments: str, folder: Path) -> str:
    """Return what the browser prints; it keeps its own files in *folder*."""
    options = ["--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}"]
    if os.geteuid() == 0:
        options.append("--no-sandbox")  # Chromium's own sandbox is not for root
    command = [BROWSER or "", *options, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def measured(page: Path, folder: Path) -> dict[str, float]:
    """Return how wide the page at *page* is on a telephone's screen, and its smallest text, in CSS pixels."""
    text = escape(page.read_text(encoding="utf-8"), quote=True)
    frame = f"<iframe id='frame' width='{WIDTH}' height='800' style='border:0' srcdoc=\"{text}\"></iframe>"
    script = f"<script>const frame = document.getElementById('frame'); frame.onload = () => {{{MEASURE}}};</script>"
    outside = folder / "outside.html"
    outside.write_text(f"<!doctype html><title>waits</title>{frame}{script}", encoding="utf-8")
    dom = browse("--virtual-time-budget=5000", "--dump-dom", outside.as_uri(), folder=folder)
    title = re.search(r"<title>(.*?)</title>", dom)
    figures: dict[str, float] = json.loads(unescape(title[1] if title else ""))
    return figures


@pytest.fixture(params=[*COMMANDS, "report"])
def page(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the page of a command."""
    if request.param == "report":
        return ROOT / "tests/golden/cli/report.html"
    monkeypatch.chdir(ROOT)
    path = tmp_path / f"{request.param}.html"
    result = CliRunner().invoke(main, [*COMMANDS[request.param], "-o", str(path)])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture
def screenshot(tmp_path: Path) -> Callable[[Path, int], Path]:
    """Return what takes a picture of a page of a given width."""
    folder = Path(os.environ.get("GPUSAGE_SCREENSHOTS") or tmp_path)

    def shoot(page: Path, width: int) -> Path:
        picture = folder / f"{page.stem}-{width}.png"
        browse(f"--window-size={width},2600", f"--screenshot={picture}", page.as_uri(), folder=tmp_path)
        return picture

    return shoot


def test_a_page_fits_a_telephone_and_can_be_read_there(
    page: Path, screenshot: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    figures = measured(page, tmp_path)
    assert figures["count"] > 20
    assert figures["width"] <= WIDTH  # what is wider scrolls by itself
    assert figures["text"] >= LEAST_TEXT_PX
    for width in (WIDTH, 1280):
        assert screenshot(page, width).read_bytes().startswith(b"\x89PNG")

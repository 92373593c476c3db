"""What the web site has beside docs/: the decisions in its menu, so that nobody lists them by hand, and lab/docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from properdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LAB = "lab/docs"


def on_config(config: Any) -> None:  # properdocs has no types
    """Add a page for each decision to the end of the menu."""
    pages = sorted(
        (Path(config["docs_dir"]) / "decisions").glob("*.md"), key=lambda page: (page.name != "README.md", page.name)
    )
    config["nav"].append({"Decisions": [f"decisions/{page.name}" for page in pages]})


def on_files(files: Any, config: Any) -> None:
    """Add the pages of the laboratory, which stand beside docs/ in the checkout and below it on the site."""
    for page in sorted((ROOT / LAB).glob("*.md")):
        files.append(File(str(page.relative_to(ROOT)), str(ROOT), config["site_dir"], use_directory_urls=False))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between the two folders into those of the site, where the one is in the other."""
    if page.file.src_uri.startswith(LAB):
        return markdown.replace("](../../docs/", "](../../")
    return markdown.replace(f"../{LAB}/", f"{LAB}/")

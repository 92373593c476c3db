"""The decisions in the web site's menu, so that nobody lists them by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> None:  # properdocs has no types
    """Add a page for each decision to the end of the menu."""
    pages = sorted(
        (Path(config["docs_dir"]) / "decisions").glob("*.md"), key=lambda page: (page.name != "README.md", page.name)
    )
    config["nav"].append({"Decisions": [f"decisions/{page.name}" for page in pages]})

"""`bench/settings.py`: the tables of the pages are those of the code; `bench/remake.py` writes them anew."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from gpusage_hooks.job_keys import Group

ROOT = Path(__file__).resolve().parents[3]


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"bench_{name}", ROOT / "bench" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


SETTINGS = load("settings")


@pytest.mark.parametrize(
    ("page", "table"), [*(("jobs", group) for group in get_args(Group)), ("configuration", "site")]
)
def test_a_table_on_a_page_is_what_the_command_prints(page: str, table: str) -> None:
    """If not: ``python bench/remake.py --only settings.py docs/jobs.md docs/configuration.md``."""
    lines = SETTINGS.site_table() if table == "site" else SETTINGS.job_table(table)
    text = "\n".join(lines)
    block = f"<!-- made by: python bench/settings.py {table} -->\n\n{text}\n\n<!-- end -->\n"
    assert block in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")

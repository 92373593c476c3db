"""`bench/settings.py`: the tables of the pages are those of the code; `bench/remake.py` writes them anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import jsonschema
import pytest

from benches import load_bench
from gpusage_hooks.job_keys import JOB_KEYS, Group, JobKey

ROOT = Path(__file__).resolve().parents[3]


SETTINGS = load_bench("settings")


@pytest.mark.parametrize(
    ("page", "table"), [*(("jobs", group) for group in get_args(Group)), ("configuration", "site")]
)
def test_a_table_on_a_page_is_what_the_command_prints(page: str, table: str) -> None:
    """If not: ``python bench/remake.py --only settings.py docs/jobs.md docs/configuration.md``."""
    lines = SETTINGS.site_table() if table == "site" else SETTINGS.job_table(table)
    text = "\n".join(lines)
    block = f"<!-- made by: python bench/settings.py {table} -->\n\n{text}\n\n<!-- end -->\n"
    assert block in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def test_the_schema_beside_the_pages_is_what_the_command_prints() -> None:
    """If not: ``python bench/settings.py schema > docs/job_keys.schema.json``."""
    assert (ROOT / "docs" / "job_keys.schema.json").read_text(encoding="utf-8") == SETTINGS.job_schema() + "\n"


@pytest.mark.parametrize("row", JOB_KEYS.values(), ids=JOB_KEYS)
def test_the_schema_takes_the_example_of_a_key_and_refuses_a_list(row: JobKey) -> None:
    schema = json.loads(SETTINGS.job_schema())["properties"][row.name]
    jsonschema.validate(schema["examples"][0], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([row.example], schema)


@pytest.mark.parametrize(
    "job",
    [
        {"batch": 0},
        {"batch": "64"},
        {"mode": "trained"},
        {"step_time": "30ms"},
        {"network": 200},  # without gpus
        {"btch": 3},
    ],
)
def test_the_schema_refuses_what_the_parser_refuses(job: dict[str, object]) -> None:
    schema = json.loads(SETTINGS.job_schema())
    jsonschema.validate({"model": "r.onnx", "batch": 64, "gpus": 16, "network": 200, "step_time": "30ms@a100"}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": "r.onnx", **job}, schema)

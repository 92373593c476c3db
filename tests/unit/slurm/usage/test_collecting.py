"""From letters to usage, with what Slurm knows of each job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.usage.collecting import collect_usage
from gpusage_slurm.usage.letter import with_letter
from records import USAGE

ROW = f"{'7':64}{'7':16}{'ada':64}{'TO':4}{'train':128}"
MARK = "site; gpusage 69215f4a0c3e KEEP gres/gpu:1 | why"
MEASURED = replace(USAGE, number="", user="", job_name="", outcome="unknown", gpu="Tesla V100-SXM2-16GB")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what each command of Slurm's answers; one without an answer does not know the job."""
    answers = {"scontrol": f"NodeName=n1 Comment={with_letter('', [MEASURED], MEASURED.ended_at_s)} Extra="}

    def run(*words: str) -> str:
        if words[0] not in answers:
            message = "slurm_load_jobs error: Invalid job id specified"
            raise RequestError(message)
        return answers[words[0]]

    monkeypatch.setattr(scontrol, "run", run)
    return answers


def test_slurm_tells_whose_job_it_was_and_how_it_ended(answers: dict[str, str]) -> None:
    answers["squeue"] = ROW + MARK
    assert collect_usage(builtin_catalogue()) == (replace(USAGE, outcome="timed_out"),)


def test_a_job_that_slurmctld_has_forgotten_is_asked_of_the_accounting(answers: dict[str, str]) -> None:
    answers["sacct"] = f"7|7|ada|CANCELLED by 1000|train|{MARK}"
    assert collect_usage(builtin_catalogue()) == (replace(USAGE, outcome="cancelled"),)


def test_a_job_without_a_mark_or_that_nobody_knows_is_left_out(answers: dict[str, str]) -> None:
    assert collect_usage(builtin_catalogue()) == ()
    answers["squeue"] = ROW + "the site's own words"
    assert collect_usage(builtin_catalogue()) == ()

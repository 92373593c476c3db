"""A chip's name is no physics: what is known of it stands in its row, and only `gpusage.devices` looks at names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from functools import cache
from pathlib import Path

import pytest

import gpusage
from gpusage.devices.catalogue import Catalogue, builtin_catalogue, describe_gpus, slices_of
from gpusage.predictors.needs import predicted
from gpusage.predictors.parallel.links import allreduce_s_per_byte
from gpusage_hooks.types import Decoding, Gpu, ModelGraph, Workload
from gpusage_hooks.units import MIB

ROOT = Path(__file__).resolve().parents[3]
OF_A_CHIP = ("generation", "compute_capability", "board", "calibration")
LOOKUPS = ("get", "startswith", "endswith", "find", "index", "count")
WHOLE = tuple(gpu for gpu in builtin_catalogue() if not gpu.parent_gpu)
BERT, GPT2 = (ROOT / f"examples/models/{name}.onnx" for name in ("bert_base", "gpt2"))


def sources() -> list[Path]:
    return [
        path
        for folder in ("hooks/gpusage_hooks", "core/gpusage", "plugins")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.is_relative_to(ROOT / "core/gpusage/devices")
    ]


def is_fixed(node: ast.expr) -> bool:
    """Return whether *node* is written in the code: a text, a tuple of numbers, or a table in capitals."""
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
    names += [each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)]
    constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and each.value is not None]
    return bool(constants) or any(name.isupper() for name in names)


def is_of_chip(node: ast.AST) -> bool:
    """Return whether *node* reads a generation, a capability or a board, or the name of what is called a GPU."""
    return any(
        isinstance(each, ast.Attribute)
        and (each.attr in OF_A_CHIP or (each.attr == "name" and ast.unparse(each.value).endswith(("gpu", "board"))))
        for each in ast.walk(node)
    )


def lookups(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that compare what identifies a chip with something fixed, or look it up in a table."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(is_of_chip(side) for side in sides) and any(
                is_fixed(side) for side in sides if not is_of_chip(side)
            ):
                yield node.lineno
        elif isinstance(node, ast.Subscript):
            if is_of_chip(node.slice) and is_fixed(node.value):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKUPS:
            table, keys = node.func.value, node.args
            if (is_of_chip(table) and any(map(is_fixed, keys))) or (is_fixed(table) and any(map(is_of_chip, keys))):
                yield node.lineno


def test_no_code_outside_of_devices_looks_at_the_name_or_generation_of_a_gpu() -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources()
        for line in lookups(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert lines == []


@pytest.mark.parametrize(
    "code",
    [
        "CONTEXT_BYTES.get(gpu.generation, 0)",
        "WATTS[gpu.compute_capability]",
        "'-sxm' in gpu.name",
        "gpu.name.startswith('a100')",
        "gpu.generation not in KNOWN",
        "gpu.compute_capability < (7, 0)",
        "candidate.gpu.board in MEASURED",
        "gpu.calibration in MEASURED",
        "candidate.gpu.name == 'rtx-3090'",
    ],
)
def test_a_lookup_is_seen(code: str) -> None:
    assert [*lookups(ast.parse(code))] == [1]


@cache
def models() -> tuple[ModelGraph, ModelGraph]:
    return gpusage.read_model(str(BERT)), gpusage.read_model(str(GPT2))


def renamed(gpu: Gpu) -> Gpu:
    """Return *gpu* as a board that nobody has heard of."""
    return replace(gpu, name="x1", aliases=(), generation="xenon")


@pytest.mark.parametrize("gpu", WHOLE, ids=lambda gpu: gpu.name)
def test_a_board_under_another_name_has_the_same_figures(gpu: Gpu) -> None:
    bert, gpt2 = models()
    runs = [
        (bert, Workload(batch_size=16, precision="fp16")),
        (bert, Workload(batch_size=16, precision="fp16", gpus=8)),
        (bert, Workload(batch_size=16, gpus=64, strategy="zero2", optimizer="adam")),
        (gpt2, Workload(mode="infer", precision="fp16", generate=Decoding(prompt_tokens=64, new_tokens=64), gpus=2)),
    ]
    for graph, workload in runs:
        own, other = predicted(graph, workload, [gpu, renamed(gpu)])
        assert replace(other, gpu=own.gpu, notes=()) == replace(own, notes=())
        assert len(other.notes) == len(own.notes)


def test_a_slice_of_a_board_under_another_name_is_the_same_slice() -> None:
    a100 = builtin_catalogue().find("a100-sxm4-40gb")
    whole = [replace(a100, network_bytes_per_s=None), builtin_catalogue().find("a100-pcie-40gb")]
    others = [gpu for gpu in WHOLE if gpu not in whole]
    cut = next(one for one in slices_of([*whole, *others]) if one.parent_gpu == a100.name)
    assert allreduce_s_per_byte(cut, 2) == allreduce_s_per_byte(renamed(cut), 2)
    assert cut.calibration == a100.name


def test_a_site_s_row_takes_what_is_known_of_its_generation_and_says_the_rest_itself() -> None:
    h100 = builtin_catalogue().find("h100-sxm5-80gb")
    bare = Gpu(
        name="h900",
        aliases=(),
        generation="hopper",
        compute_capability=(9, 0),
        sm_count=h100.sm_count,
        clock_hz=h100.clock_hz,
        peak_flop_per_s=h100.peak_flop_per_s,
        memory_bytes=h100.memory_bytes,
        bandwidth_bytes_per_s=h100.bandwidth_bytes_per_s,
        l2_bytes=h100.l2_bytes,
        power_limit_w=h100.power_limit_w,
        launch_year=h100.launch_year,
        source="our own data sheet",
    )
    (row,) = Catalogue([bare])
    assert (row.context_bytes, row.watts_per_teraflop, row.pci_express) == (
        h100.context_bytes,
        h100.watts_per_teraflop,
        5,
    )
    assert row.is_measured
    linked = replace(row, link_bytes_per_s=h100.link_bytes_per_s)
    assert allreduce_s_per_byte(linked, 8) == allreduce_s_per_byte(h100, 8) < allreduce_s_per_byte(row, 8)
    assert Catalogue([row]).find("h900") is row


def test_the_context_that_was_measured_on_one_chip_is_not_that_of_another_of_its_generation() -> None:
    measured, other = (builtin_catalogue().find(name).context_bytes for name in ("a100-sxm4-40gb", "rtx-3090"))
    assert measured is not None
    assert other is not None
    assert measured.low == measured.value == measured.high == 1443 * MIB
    assert (other.low, other.value, other.high) == (200 * MIB, 500 * MIB, 1500 * MIB)


def test_a_row_that_replaces_another_keeps_what_it_leaves_out() -> None:
    """A site repeats the plain fields of its B200 and says nothing of links; another generation inherits nothing."""
    board = builtin_catalogue().find("b200")
    plain = {each.name: getattr(board, each.name) for each in fields(board) if each.default is MISSING}
    mine = Gpu(**{**plain, "memory_bytes": board.memory_bytes // 2})
    assert Catalogue([*describe_gpus(), mine]).find(board.name) == replace(board, memory_bytes=mine.memory_bytes)
    other = Catalogue([*describe_gpus(), replace(mine, generation="unheard of")]).find(board.name)
    assert other.link_bytes_per_s is None

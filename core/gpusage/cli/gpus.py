"""`gpusage gpus`: the GPU catalogue, and which of its rows this machine's GPUs are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from gpusage.cli import documents, options, tables
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Gpu
from gpusage_hooks.units import GB, TERA, gib

EXAMPLE = """\b
Examples:
  gpusage gpus
  gpusage gpus --local --json
"""
SCHEMA = "gpusage.gpus/1"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGpu:
    """One GPU of this machine, as NVML describes it; ``gpu`` is its row, ``None`` where the catalogue has none."""

    index: int
    nvml_name: str
    memory_bytes: int
    gpu: Gpu | None


@click.command(epilog=EXAMPLE)
@click.option("--local", is_flag=True, help="Only this machine's GPUs: which rows of the catalogue they are (NVML).")
@click.option("--source", "with_source", is_flag=True, help="Show where each row of the catalogue is from.")
@options.json_option
def command(*, local: bool, with_source: bool, as_json: bool) -> None:
    """List the GPUs that predictions can be made for."""
    from gpusage.api import advisor  # noqa: PLC0415 - start-up time

    catalogue = advisor().catalogue
    if local:
        _local(find_local(catalogue), as_json=as_json)
    elif as_json:
        tables.print_json({"schema": SCHEMA, "gpus": [documents.gpu(row) for row in catalogue]})
    elif with_source:
        tables.show_rows(["<GPU", "<source"], [[row.name, row.source] for row in catalogue])
    else:
        tables.show_rows(list(_headings()), [list(_cells(row)) for row in catalogue])


def find_local(catalogue: Any) -> list[LocalGpu]:  # noqa: ANN401 - a Catalogue, which is imported lazily
    """Return this machine's GPUs.

    Raises:
        DeviceError: NVML cannot be used, or sees none.
    """
    import pynvml  # type: ignore[import-untyped] # noqa: PLC0415 - has no types; start-up time

    try:
        pynvml.nvmlInit()
        found = list(_ask_nvml(pynvml, catalogue))
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        message = f"This machine must have an NVIDIA GPU and its driver; NVML says: {error}. Leave out --local."
        raise DeviceError(message) from error
    if not found:
        message = "This machine must have at least one NVIDIA GPU; NVML lists none. Leave out --local."
        raise DeviceError(message)
    return found


def _ask_nvml(pynvml: Any, catalogue: Any) -> Iterator[LocalGpu]:  # noqa: ANN401 - an untyped module
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
        yield LocalGpu(index=index, nvml_name=name, memory_bytes=memory_bytes, gpu=_row(catalogue, name))


def _row(catalogue: Any, name: str) -> Gpu | None:  # noqa: ANN401 - as above
    try:
        row: Gpu = catalogue.find(name)
    except DeviceError:
        return None
    return row


def _local(found: Iterable[LocalGpu], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "index": gpu.index,
                "nvml_name": gpu.nvml_name,
                "memory_bytes": gpu.memory_bytes,
                "gpu": gpu.gpu.name if gpu.gpu else None,
            }
            for gpu in found
        ]
        tables.print_json({"schema": SCHEMA, "local": rows})
        return
    cells = [
        [str(gpu.index), gpu.nvml_name, gib(gpu.memory_bytes), gpu.gpu.name if gpu.gpu else "not in the catalogue"]
        for gpu in found
    ]
    tables.show_rows(["index", "<NVML's name", "memory", "<GPU"], cells)


def _headings() -> Iterator[str]:
    yield from ("<GPU", "<generation", "year", "SMs", "memory", "bandwidth")
    yield from (f"{precision} TFLOP/s" for precision in PRECISIONS)
    yield "<short names"


def _cells(row: Gpu) -> Iterator[str]:
    yield row.name
    yield row.generation
    yield str(row.launch_year)
    yield str(row.sm_count)
    yield gib(row.memory_bytes)
    yield f"{row.bandwidth_bytes_per_s / GB:.0f} GB/s"
    for precision in PRECISIONS:
        rate = row.peak_flop_per_s.get(precision)
        yield f"{rate / TERA:.3g}" if rate else ""
    yield ", ".join(alias for alias in row.aliases if " " not in alias and "_" not in alias)

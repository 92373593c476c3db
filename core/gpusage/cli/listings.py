"""`gpusage gpus` and `gpusage plugins`: the GPUs and the plugins that gpusage knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from gpusage.boundary.printable_text import visible
from gpusage.cli import documents, tables
from gpusage.decisions.advisor import advisor
from gpusage.devices.nvml import LocalGpu, local_gpus
from gpusage.plugins.hooks import Plugin
from gpusage.plugins.loading import load_hooks
from gpusage_hooks.types import Gpu
from gpusage_hooks.units import GB, TERA, gib

GPUS_SCHEMA = "gpusage.gpus/1"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
GPU_COLUMNS = (
    tables.Column("GPU", is_left=True),
    tables.Column("short", is_left=True),
    tables.Column("generation", is_left=True),
    tables.Column("memory"),
    tables.Column("GB/s"),
    *(tables.Column(precision, is_optional=True) for precision in PRECISIONS),
    tables.Column("SMs", is_optional=True),
    tables.Column("year", is_optional=True),
)
LOCAL_COLUMNS = (
    tables.Column("GPU", is_left=True),
    tables.Column("index"),
    tables.Column("memory"),
    tables.Column("NVML's name", is_left=True),
)
LEGEND = "\nfp32 to bf16 are dense TFLOP/s; empty where the chip does not speed it up.\n"


def gpus(*, names: Sequence[str], local: bool, as_json: bool) -> None:
    """List the GPUs that predictions can be made for, or those of *names*, and where each row is from."""
    if names and local:
        message = "'--local' lists this machine's GPUs. Leave out the names."
        raise click.UsageError(message)

    catalogue = advisor().catalogue
    named = {row.name: row for row in map(catalogue.find, names)}  # once, however often and by whatever name
    rows = [*named.values()] or [*catalogue]
    if local:
        show_local(local_gpus(catalogue), as_json=as_json)
    elif as_json:
        tables.print_json({"schema": GPUS_SCHEMA, "gpus": [documents.gpu(row) for row in rows]})
    else:
        tables.show_rows(GPU_COLUMNS, [list(_gpu_cells(row)) for row in rows])
        tables.show(LEGEND)
        tables.show_title("Sources")
        tables.show("\n".join(f"{row.name}: {row.source}" for row in rows))


def show_local(present: Sequence[LocalGpu], *, as_json: bool) -> None:
    """Print this machine's GPUs."""
    if as_json:
        rows = [
            {
                "index": gpu.index,
                "nvml_name": gpu.nvml_name,
                "memory_bytes": gpu.memory_bytes,
                "gpu": gpu.gpu.name if gpu.gpu else None,
            }
            for gpu in present
        ]
        tables.print_json({"schema": GPUS_SCHEMA, "local": rows})
        return

    cells = [
        [gpu.gpu.name if gpu.gpu else "not in the catalogue", str(gpu.index), gib(gpu.memory_bytes), gpu.nvml_name]
        for gpu in present
    ]
    tables.show_rows(LOCAL_COLUMNS, cells)


def _gpu_cells(row: Gpu) -> Iterator[str]:
    shorter = sorted((alias for alias in row.aliases if len(alias) < len(row.name)), key=len)
    family = row.name.partition("-")[0]  # a100-80gb, not its twin a800
    yield row.name
    yield next((alias for alias in shorter if alias.startswith(family)), next(iter(shorter), ""))
    yield row.generation
    yield gib(row.memory_bytes)
    yield f"{row.bandwidth_bytes_per_s / GB:.0f}"
    for precision in PRECISIONS:
        rate = row.peak_flop_per_s.get(precision)
        yield f"{rate / TERA:.4g}" if rate else ""

    yield str(row.sm_count)
    yield str(row.launch_year)


PLUGINS_SCHEMA = "gpusage.plugins/1"
PLUGIN_COLUMNS = (
    tables.Column("plugin", is_left=True),
    tables.Column("package", is_left=True),
    tables.Column("hooks", is_left=True),
)


def list_plugins(*, as_json: bool) -> int:
    """List the plugins, their hooks, and what is wrong with them."""
    hooks = load_hooks()
    troubles = hooks.troubles()
    if as_json:
        tables.print_json({"schema": PLUGINS_SCHEMA, "plugins": [_document(plugin) for plugin in hooks.plugins]})
    else:
        _show(hooks.plugins, troubles)
    return int(bool(troubles))


def _document(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "package": plugin.package,
        "version": plugin.version,
        "hooks": list(plugin.hooks),
        "trouble": plugin.trouble,
    }


def _show(plugins: Sequence[Plugin], troubles: Mapping[str, str]) -> None:
    rows = [row for plugin in plugins for row in _rows(plugin)]
    tables.show_rows(PLUGIN_COLUMNS, [[visible(cell) for cell in row] for row in rows])
    for trouble in troubles.values():
        click.echo(f"\n{visible(trouble)}")


def _rows(plugin: Plugin) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each hook; the first one names the plugin."""
    first, *others = plugin.hooks or ("none: set aside" if plugin.trouble else "none",)
    yield plugin.name, f"{plugin.package} {plugin.version}".strip(), first
    yield from (("", "", hook) for hook in others)

"""`gpusage gpus` and `gpusage plugins`: the GPUs and the plugins that gpusage knows."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpusage.boundary.printable_text import visible
from gpusage.cli import documents, tables
from gpusage.decisions.advisor import advisor
from gpusage.devices.catalogue import Catalogue, name_words
from gpusage.plugins.loading import load_hooks
from gpusage.settings.configuration_file import read_configuration
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Gpu
from gpusage_hooks.units import GB, TERA, gib

GPUS_SCHEMA = "gpusage.gpus/1"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
GPU_COLUMNS = tables.columns(
    *("GPU", "short", "generation", "memory", "GB/s", *PRECISIONS, "SMs", "year"),
    left=("short", "generation"),
    optional=(*PRECISIONS, "SMs", "year"),
)
PLUGINS_SCHEMA = "gpusage.plugins/1"
PLUGIN_COLUMNS = tables.columns("plugin", "package", "hooks", left=("package", "hooks"))
LEGEND = "\nfp32 to bf16 are dense TFLOP/s; empty where the chip does not speed it up.\n"


def gpus(*, names: Sequence[str], as_json: bool) -> None:
    """List the GPUs that predictions can be made for, or those of *names*, and where each row is from."""
    catalogue = advisor().catalogue
    # What is wrong with a calibration stands in the log.
    if trouble := catalogue.alias_trouble(read_configuration()[0].gpus.aliases):
        raise RequestError(trouble)
    meant = {name: catalogue.find(name) for name in names}
    named = {row.name: row for row in meant.values()}  # once, however often and by whatever name
    # Without names the whole catalogue.
    rows = [*named.values()] or [*catalogue]
    if as_json:
        meanings = {name: row.name for name, row in meant.items()}
        tables.print_json({"schema": GPUS_SCHEMA, "names": meanings, "gpus": [documents.gpu(row) for row in rows]})
    else:
        tables.show_rows(GPU_COLUMNS, [_gpu_cells(row) for row in rows])
        tables.show(*(_meaning(name, row, catalogue) for name, row in meant.items() if name != row.name))
        tables.show(LEGEND)
        tables.show_title("Sources")
        tables.show("\n".join(f"{row.name}: {row.source}" for row in rows))


def _meaning(name: str, row: Gpu, catalogue: Catalogue) -> str:
    """Return what *name* is taken for, and which GPUs of another memory it could mean as well."""
    others = [
        f"{other.name} ({gib(other.memory_bytes)})"
        for other in catalogue
        if {*name_words(name)} <= {*name_words(other.name)}
        and other.memory_bytes != row.memory_bytes
        and other.parent_gpu == row.parent_gpu
    ]
    text = f"\n{visible(name)} is taken for {row.name} with {gib(row.memory_bytes)}"
    return (
        f"{text}, not for {' or '.join(others)}; [gpus.aliases] in gpusage.toml changes that." if others else f"{text}."
    )


def _gpu_cells(row: Gpu) -> list[str]:
    # The short name is of the same family: a100-80gb, not its twin a800.
    shorter = [alias for alias in row.aliases if len(alias) < len(row.name)]
    family = row.name.partition("-")[0]
    short = next((alias for alias in shorter if alias.startswith(family)), next(iter(shorter), ""))

    rates = [row.peak_flop_per_s.get(precision) for precision in PRECISIONS]
    return [
        row.name,
        short,
        row.generation,
        gib(row.memory_bytes),
        f"{row.bandwidth_bytes_per_s / GB:.0f}",
        *(f"{rate / TERA:.4g}" if rate else "" for rate in rates),
        str(row.sm_count),
        str(row.launch_year),
    ]


def list_plugins(*, as_json: bool) -> int:
    """List the plugins, their hooks, and what is wrong with them; return the exit status."""
    hooks = load_hooks()
    troubles = hooks.troubles()
    if as_json:
        names = ("name", "package", "version", "hooks", "trouble")
        rows = [{name: getattr(plugin, name) for name in names} for plugin in hooks.plugins]
        tables.print_json({"schema": PLUGINS_SCHEMA, "plugins": rows})
        return int(bool(troubles))

    cells = []
    for plugin in hooks.plugins:  # a row for each hook; the first one names the plugin
        first, *others = plugin.hooks or ("none: set aside" if plugin.trouble else "none",)
        cells.append([plugin.name, f"{plugin.package} {plugin.version}".strip(), first])
        cells += [["", "", hook] for hook in others]
    tables.show_rows(PLUGIN_COLUMNS, [[visible(cell) for cell in row] for row in cells])
    for trouble in troubles.values():
        click.echo(f"\n{visible(trouble)}")
    return int(bool(troubles))

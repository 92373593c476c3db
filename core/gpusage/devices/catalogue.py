"""The GPU catalogue: rows of data, and how a name finds its row.

Invariants:

1. A row's memory is what a program can allocate (CUDA's total, ECC on where the board ships so), not the nominal size.
2. Within a generation the first row is the commonest GPU and stands for the generation.
3. A name is found whole or not at all: ``a100_1g.5gb`` is a slice, a row of its own, and must not pass for the GPU.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from gpusage.devices.slices import slices_of
from gpusage_hooks import hookimpl
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Gpu
from gpusage_hooks.units import GB, KIB, MHZ, MIB, TERA

_VENDOR_WORDS = re.compile(r"\b(amd|instinct|nvidia|geforce|tesla|mig)\b")
_SEPARATORS = re.compile(r"[\s_:-]+")


class Catalogue:
    """GPUs by name, alias, a workload manager's type name and NVML name."""

    def __init__(self, rows: Sequence[Gpu]) -> None:
        """Index *rows*; a later row replaces an earlier one of the same name."""
        self._rows = tuple({gpu.name: gpu for gpu in rows}.values())
        self._by_key = _index(self._rows)

    def __iter__(self) -> Iterator[Gpu]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, name: str) -> Gpu:
        """Return the GPU called *name*, however its words are joined.

        Raises:
            DeviceError: No row has this name; the message offers the nearest.
        """
        gpu = self._by_key.get(name_key(name))
        if gpu is None:
            raise DeviceError(self._no_such_gpu(name))
        return gpu

    def generations(self) -> tuple[Gpu, ...]:
        """Return one GPU of each generation of Nvidia's, oldest first: no other vendor's were measured."""
        firsts: dict[str, Gpu] = {}
        for gpu in (gpu for gpu in self._rows if gpu.vendor == "nvidia"):
            firsts.setdefault(gpu.generation, gpu)
        return tuple(sorted(firsts.values(), key=lambda gpu: gpu.launch_year))

    def _no_such_gpu(self, name: str) -> str:
        near = _nearest(name_key(name), tuple(self._by_key))
        offer = f"Did you mean {self._by_key[near].name!r}?" if near else "'gpusage gpus' lists the names."
        return f"GPU {name[:80]!r} must be a name of the catalogue; got a name that it does not have. {offer}"


def name_key(name: str) -> str:
    """Return *name* as it is compared: lower-case, without the vendor's words and separators."""
    return _SEPARATORS.sub("", _VENDOR_WORDS.sub(" ", name.lower().replace("_", " ")))


@cache
def builtin_catalogue() -> Catalogue:
    """Return the catalogue of the rows that come with gpusage, no plugin asked."""
    return Catalogue(_built_in_rows())


@hookimpl(trylast=True)
def describe_gpus() -> Sequence[Gpu]:
    """Return the rows of ``gpus.json``, and the slices that these GPUs can be cut into."""
    return _built_in_rows()


@cache
def _built_in_rows() -> tuple[Gpu, ...]:
    text = files("gpusage.devices").joinpath("gpus.json").read_text(encoding="utf-8")
    gpus = tuple(_gpu(row) for row in json.loads(text))
    return (*gpus, *slices_of(gpus))


def _gpu(row: Mapping[str, Any]) -> Gpu:
    major, minor = row["compute_capability"]
    return Gpu(
        name=row["name"],
        aliases=tuple(row["aliases"]),
        generation=row["generation"],
        compute_capability=(major, minor),
        sm_count=row["sm_count"],
        clock_hz=row["boost_clock_mhz"] * MHZ,
        peak_flop_per_s=MappingProxyType({name: rate * TERA for name, rate in row["peak_tflop_per_s"].items()}),
        memory_bytes=row["usable_memory_mib"] * MIB,
        bandwidth_bytes_per_s=row["bandwidth_gb_per_s"] * GB,
        l2_bytes=row["l2_kib"] * KIB,
        power_limit_w=row["power_limit_w"],
        launch_year=row["launch_year"],
        source=row["source"],
        vendor=row.get("vendor", "nvidia"),
    )


def _nearest(key: str, keys: Sequence[str]) -> str | None:
    """Return the one of *keys* that *key* begins with (``a100`` of ``a1001g.5gb``), else the most alike, if any is."""
    beginnings = [known for known in keys if key.startswith(known)]
    alike = difflib.get_close_matches(key[:80], keys, n=1, cutoff=0.7)
    return max(beginnings, key=len) if beginnings else next(iter(alike), None)


def _index(rows: Sequence[Gpu]) -> dict[str, Gpu]:
    """Return the rows by key; a name goes before an alias, a later row's alias before an earlier one's."""
    by_alias = {name_key(alias): gpu for gpu in rows for alias in gpu.aliases}
    return by_alias | {name_key(gpu.name): gpu for gpu in rows}

"""The GPU catalogue: rows of data, the MIG slices that these GPUs can be cut into, and how a name finds its row.

Invariants:

1. A row's memory is what a program can allocate (CUDA's total, ECC on where the board ships so), not the nominal size.
2. Within a generation the first row is the commonest GPU and stands for the generation.
3. A name is found whole or not at all: ``a100_1g.5gb`` is a slice, a row of its own, and must not pass for the GPU.
4. What a row leaves out is added from its generation's row (``generations.json``); no other code knows generations.
5. A slice is called by its GPU and its profile, ``a100-sxm4-40gb:3g.20gb``; so are its aliases. A profile alone is an
   alias where no other kind of GPU has it: ``3g.20gb`` is an A100's of 40 GB, ``1g.10gb`` could be anybody's.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, lru_cache
from importlib.resources import files
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from gpusage_hooks import hookimpl
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.job_values import BYTES_PER_GBIT
from gpusage_hooks.types import Gpu, Interval
from gpusage_hooks.units import GB, KIB, MHZ, MIB, TERA

_VENDOR_WORDS = re.compile(r"\b(amd|instinct|nvidia|geforce|tesla|mig)\b")
_SEPARATORS = re.compile(r"[\s_:-]+|\.(?=\d+g\.)")
"""Some sites write a point before a profile: ``a100l.2g.20gb``."""
_SHORT_MEMORY = re.compile(r"\b(\d+)g\b(?!\.)")
"""``80g`` is ``80gb``; in ``1g.10gb`` the first number is no memory."""

CALIBRATED = "By this site's calibration"
"""How a note begins where a host of `gpusage.devices.calibration` moved a prediction."""


class Catalogue:
    """GPUs by name, alias, NVML name and the type name of a workload manager."""

    def __init__(self, rows: Sequence[Gpu]) -> None:
        """Index *rows*; a later row replaces an earlier one of the same name, but for what it leaves out."""
        by_name: dict[str, Gpu] = {}
        for gpu in rows:
            # A site corrects what it measured of a board; its links, for example, stay those that are known.
            earlier, known = by_name.get(gpu.name), {}
            if earlier is not None and earlier.generation == gpu.generation:
                for each in fields(gpu):
                    if getattr(gpu, each.name) == each.default != getattr(earlier, each.name):
                        known[each.name] = getattr(earlier, each.name)
            by_name[gpu.name] = with_generation(replace(gpu, **known) if known else gpu)
        self._rows = tuple(by_name.values())

        # A name overrides an alias, a later row's alias an earlier one's.
        self._by_key: dict[str, Gpu] = {}
        for gpu in self._rows:
            self._by_key.update(dict.fromkeys(map(name_key, gpu.aliases), gpu))
            # Sites leave out the unit of a board's memory: a100-80.
            for alias in gpu.aliases if gpu.parent_gpu is None else ():
                self._by_key.setdefault(name_key(alias).removesuffix("gb"), gpu)
        for gpu in self._rows:
            self._by_key[name_key(gpu.name)] = gpu

    def __iter__(self) -> Iterator[Gpu]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, name: str) -> Gpu:
        """Return the GPU called *name*, whatever its case, separators and vendor prefix.

        Raises:
            DeviceError: No row has this name; the message offers the nearest.
        """
        gpu = self._by_key.get(name_key(name))
        if gpu is None:
            near = _nearest(name_key(name), tuple(self._by_key))
            offer = f"Did you mean {self._by_key[near].name!r}?" if near else "'gpusage gpus' lists the names."
            alike = [row.name for row in self._rows if row.parent_gpu and row.name.partition(":")[2] == name.lower()]
            offer = f"Put the GPU before the profile: {', '.join(alike)}." if alike else offer
            message = f"GPU {name[:80]!r} must be a name of the catalogue; got an unknown name. {offer}"
            raise DeviceError(message)
        return gpu

    def with_networks(self, gbit_per_s: Mapping[str, float]) -> Catalogue:
        """Return the catalogue of a site whose network carries so many Gb/s for each GPU, by any of its names.

        A name that no row has is left alone.
        """
        rates = {name_key(name): rate * BYTES_PER_GBIT for name, rate in gbit_per_s.items() if rate > 0}
        named = {self._by_key[key].name: rate for key, rate in rates.items() if key in self._by_key}
        return self.with_figures({name: {"network_bytes_per_s": rate} for name, rate in named.items()})

    def with_figures(self, figures: Mapping[str, Mapping[str, Any]]) -> Catalogue:
        """Return the catalogue with *figures* of boards, which their slices have too; each name stands for its row."""
        if not figures:
            return self
        site = Catalogue([replace(row, **figures.get(row.board, {})) for row in self._rows])
        site._by_key = {key: site._by_key[name_key(row.name)] for key, row in self._by_key.items()}
        return site

    def with_aliases(self, names: Mapping[str, str]) -> Catalogue:
        """Return the catalogue of a site that has *names* of its own for GPUs, each with a name that is known.

        A slice of such a GPU is called by the same word. A site may say what an alias means, ``a100`` for example, but
        a row keeps its own name. What stands for no row is left alone.
        """
        known = {alias: self._by_key[name_key(name)] for alias, name in names.items() if name_key(name) in self._by_key}
        aliases: dict[str, list[str]] = {}
        for alias, gpu in known.items():
            for row in self._rows:
                if gpu.name in (row.name, row.board):
                    aliases.setdefault(row.name, []).append(alias + row.name.removeprefix(gpu.name))
        if not aliases:
            return self

        # The site's word counts, wherever its GPU's row stands.
        site = Catalogue([replace(row, aliases=(*row.aliases, *aliases.get(row.name, ()))) for row in self._rows])
        for row in site:
            for key in map(name_key, aliases.get(row.name, ())):
                if name_key(site._by_key[key].name) != key:
                    site._by_key[key] = row
        return site

    def alias_trouble(self, names: Mapping[str, str]) -> str:
        """Return what is wrong with a site's *names* if `with_aliases` leaves one alone; empty where it takes all."""
        for alias, name in names.items():
            key, own, gpu = name_key(alias), self._by_key.get(name_key(alias)), self._by_key.get(name_key(name))
            start = f"Key 'gpus.aliases.{alias}' must"
            if gpu is None:
                return f"{start} name a GPU of the catalogue; got {name[:80]!r}. 'gpusage gpus' lists the names."
            if not key or (own is not None and name_key(own.name) == key != name_key(gpu.name)):
                got = "a GPU's own name" if key else "a vendor's"
                return f"{start} be a word of your own; got {got}. Use another."
        return ""

    def generations(self) -> tuple[Gpu, ...]:
        """Return one GPU of each Nvidia generation, oldest first; no GPU of another vendor was measured."""
        firsts: dict[str, Gpu] = {}
        for gpu in self._rows:
            if gpu.vendor == "nvidia":
                firsts.setdefault(gpu.generation, gpu)
        return tuple(sorted(firsts.values(), key=attrgetter("launch_year")))


@lru_cache(maxsize=4)
def site_catalogue(
    known: Catalogue, gbit_per_s: tuple[tuple[str, float], ...], aliases: tuple[tuple[str, str], ...]
) -> Catalogue:
    """Return *known* with a site's settings, the same object for the same ones: predictors cache by identity."""
    return known.with_aliases(dict(aliases)).with_networks(dict(gbit_per_s))


def name_key(name: str) -> str:
    """Return *name* for comparisons: lower-case, without the vendor's words and separators."""
    return "".join(name_words(name))


@lru_cache(maxsize=1024)
def name_words(name: str) -> tuple[str, ...]:
    """Return the words of *name* that identify a GPU: ``a100``, ``sxm4`` and ``40gb`` of ``NVIDIA_A100-SXM4-40GB``."""
    words = _SEPARATORS.sub(" ", _VENDOR_WORDS.sub(" ", name.lower().replace("_", " ")))
    return tuple(_SHORT_MEMORY.sub(r"\1gb", words).split())


@cache
def builtin_catalogue() -> Catalogue:
    """Return the catalogue of gpusage's own rows, without those of plugins."""
    return Catalogue(_built_in_rows())


@hookimpl(trylast=True)
def describe_gpus() -> Sequence[Gpu]:
    """Return the rows of ``gpus.json``, and the MIG slices of these GPUs."""
    return _built_in_rows()


@cache
def _built_in_rows() -> tuple[Gpu, ...]:
    text = files("gpusage.devices").joinpath("gpus.json").read_text(encoding="utf-8")
    gpus = tuple(map(_gpu, json.loads(text)))
    return (*gpus, *slices_of(gpus))


def _gpu(row: Mapping[str, Any]) -> Gpu:
    major, minor = row["compute_capability"]
    # Boards without links, and networks that are not known, have no such field.
    link_gb_per_s, network_gbit_per_s = row.get("link_gb_per_s"), row.get("network_gbit_per_s")
    gpu = Gpu(
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
        link_bytes_per_s=link_gb_per_s and link_gb_per_s * GB,
        linked_gpu_count=row.get("linked_gpu_count"),
        usual_network_bytes_per_s=network_gbit_per_s and network_gbit_per_s * BYTES_PER_GBIT,
        measured_as=row["name"],
        is_measured_in_half=row.get("is_measured_in_half", False),
    )
    return with_generation(gpu)


@cache
def _generations() -> Mapping[str, Mapping[str, Any]]:
    text = files("gpusage.devices").joinpath("generations.json").read_text(encoding="utf-8")
    generations = {}
    for row in json.loads(text):
        generations[row["generation"]] = row
    return generations


def with_generation(gpu: Gpu) -> Gpu:
    """Return *gpu* with what is known of its generation and chip, as far as its row does not say it.

    Sources, by field of ``generations.json``:

    - ``watts_per_teraflop``: the median over the chip's boards that the step time was fitted with, by compute
      capability; of a chip without any, over its boards.
    - ``context_mib``: low end, point and high end by compute capability. The A100's is the least peak of 6,000
      perceptrons (GPUMemNet, arXiv 2602.17817), part of the measured peaks, whose interval covers it. Ampere's others:
      some 300 to 500 since PyTorch 1.13 loads kernels lazily (pytorch#86509, #107667), 1,490 on an RTX 3090 before
      (#49877). Other generations' are estimates by the number of kernels; lazily it is less than half.
    - ``unsupported_engines``: the installation pages of vLLM (compute capability 7.0; MI200), the support matrix of
      TensorRT-LLM.
    """
    known = _generations().get(gpu.generation)
    if known is None or gpu.is_measured:
        return gpu

    chip, contexts = ".".join(map(str, gpu.compute_capability)), known.get("context_mib", {})
    low, value, high = contexts.get(chip) or contexts.get("other", (0, 0, 0))
    context = Interval(value=value * MIB, low=low * MIB, high=high * MIB)
    complete = replace(
        gpu,
        watts_per_teraflop=gpu.watts_per_teraflop or known["watts_per_teraflop"].get(chip),
        context_bytes=gpu.context_bytes or (context if value else None),
        pci_express=gpu.pci_express or known["pci_express"],
        unsupported_engines=gpu.unsupported_engines or tuple(known["unsupported_engines"]),
        is_measured=known["is_measured"],
    )
    return gpu if complete == gpu else complete  # predictors cache by identity


def _nearest(key: str, keys: Sequence[str]) -> str | None:
    """Return the longest of *keys* that *key* begins with (``a100`` of ``a1001g.5gb``), else a similar one, if any."""
    prefixes = [prefix for prefix in keys if key.startswith(prefix)]
    similar = difflib.get_close_matches(key[:80], keys, n=1, cutoff=0.7)
    return max(prefixes, key=len) if prefixes else next(iter(similar), None)


def part_of(gpu: Gpu, part: float) -> Gpu:
    """Return *gpu* with *part*, 0 to 1, of its SMs, rates, bandwidth and watts."""
    # Watts follow the SMs, so that a share holds as much of its peak as the whole board (`sustained_share`).
    return replace(
        gpu,
        sm_count=max(round(gpu.sm_count * part), 1),
        peak_flop_per_s=MappingProxyType({name: rate * part for name, rate in gpu.peak_flop_per_s.items()}),
        bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * part,
        power_limit_w=gpu.power_limit_w * part,
    )


def slices_of(gpus: Iterable[Gpu]) -> Iterator[Gpu]:
    """Yield the MIG slices of *gpus*, the whole catalogue."""
    by_name = {gpu.name: gpu for gpu in gpus}
    for kind in json.loads(files("gpusage.devices").joinpath("slices.json").read_text(encoding="utf-8")):
        for board in kind["gpus"]:
            for row in kind["slices"]:
                whole, profile, part = by_name[board], row["profile"], row["memory_parts"] / kind["parts"]
                # A profile alone is an alias of the first board's slice, which is the commonest.
                others = row["aliases"] if board == kind["gpus"][0] else ()
                yield replace(
                    part_of(whole, row["sm_count"] / whole.sm_count),
                    name=f"{board}:{profile}",
                    aliases=(*(f"{alias}:{profile}" for alias in whole.aliases), *others),
                    memory_bytes=row["usable_memory_mib"] * MIB,
                    bandwidth_bytes_per_s=whole.bandwidth_bytes_per_s * part,
                    l2_bytes=int(whole.l2_bytes * part),
                    source=kind["source"],
                    parent_gpu=board,
                    # NCCL reaches other slices through the host alone, and a slice has no card of its own.
                    link_bytes_per_s=None,
                    usual_network_bytes_per_s=None,
                )

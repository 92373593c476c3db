"""The two files of `gpusage plan`: the jobs and the nodes.

Jobs: a CSV file, one job a line. Columns: ``job_id``; ``model`` with its options, or step times in seconds in columns
``GPU:COUNT`` such as ``v100:2``; ``steps`` (1 where it is left out); ``submitted``, ``deadline``,
``late_price_per_hour``, ``priority``; ``max_gpus``, the most GPUs that a job with a model may have; ``checkpoint``,
how much work it does between two saves. Times are seconds, or as in ``8h``; all count from one moment.

Nodes: a JSON or TOML file. ``nodes`` is a list of tables: ``name``; ``count`` of the nodes, or ``names``, a list of
their own; and ``types``, what each node may be: a list of tables with ``name``, ``gpu``, ``gpus`` and
``price_per_hour`` of the whole node, or ``power_w`` where energy is what is paid; then the file has
``energy_price_per_kwh``. ``boot``, ``minimum_billing`` and ``billing_step`` are times such as ``"5m"``. With
``spot_price_per_hour`` and ``interruptions_per_hour`` a type is also there as a spot node. Nodes with ``until`` are
gone after that time.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from gpusage.boundary.typed_documents import MismatchError, nearest_key, read_as
from gpusage.cli.options import duration_s
from gpusage.cli.table_file import Cells, csv_rows
from gpusage.cli.user_file import read_document, read_text, refusal
from gpusage_hooks.errors import RequestError
from gpusage_hooks.units import MIB
from gpusage_planning.capacity.problem import LONGEST_DAYS, LONGEST_S, NodeGroup, NodeType, PlannedJob

MAXIMUM_BYTES = 256 * MIB
MOST = 1e9
"""Of anything: steps, seconds, a price. The products of larger ones exceed what the solver can distinguish."""
COLUMNS = (
    "job_id",
    "model",
    "steps",
    "submitted",
    "deadline",
    "late_price_per_hour",
    "priority",
    "max_gpus",
    "checkpoint",
)
MOST_GPUS = 64
_MEASURED = re.compile(r"(.+):([1-9]\d?)")
_OF_SEVERAL_PARTS = re.compile(r".+:.+:(?!1\Z)[1-9]\d?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One job as it is written down, with where it stands.

    Attributes:
        job: Without its run times.
        step_times_s: By GPU and number of GPUs.
        max_gpus: How many GPUs it may have at most; for a model.
    """

    where: str
    job: PlannedJob
    model: str
    steps: float | None
    max_gpus: int
    step_times_s: Mapping[tuple[str, int], float]


def read_lines(path: Path) -> list[Line]:
    """Return the jobs of the file at *path*, as they are written down.

    Raises:
        RequestError: It cannot be read, or a cell is not what it may be; the sentence has line and column.
    """
    return parse_lines(read_text(path, "Jobs file", MAXIMUM_BYTES), str(path))


def parse_lines(text: str, origin: str) -> list[Line]:
    """Return the jobs of *text*; *origin* is its file, for people."""
    rows = csv_rows(io.StringIO(text, newline=""), "Jobs file", origin, _known_names)
    lines = [_Cells(row, f"{origin}, line {number}").line() for number, row in rows]
    if not lines:
        message = f"Jobs file {origin!r} must have at least one job below its line of names; got none. Add one."
        raise RequestError(message)
    _require_different_ids(lines)
    return lines


def _known_names(names: Sequence[str], origin: str) -> Sequence[str]:
    for trouble in _column_troubles(names, origin):
        raise RequestError(trouble)
    return names


def _column_troubles(names: Sequence[str], origin: str) -> Iterator[str]:
    """Yield what is wrong with the line of names."""
    strays = [name for name in names if name not in COLUMNS and not _MEASURED.fullmatch(name)]
    if strays:
        hint = nearest_key(strays[0], (*COLUMNS, "GPU:COUNT"))
        yield f"Column {strays[0]!r} of jobs file {origin!r} must be one that gpusage knows. {hint}"

    several = list(filter(_OF_SEVERAL_PARTS.fullmatch, names))
    if several:
        part, _, count = several[0].rpartition(":")
        yield (
            f"Column {several[0]!r} of jobs file {origin!r} must be for one part of a GPU, for no job has several; got "
            f"{count}. Write '{part}:1'."
        )

    uneven = [name for name in names if (match := _MEASURED.fullmatch(name)) and int(match[2]).bit_count() > 1]
    if uneven:
        yield (
            f"Column {uneven[0]!r} of jobs file {origin!r} must be for 1, 2, 4 or another power of two of GPUs; got "
            f"{uneven[0].rpartition(':')[2]}. Take it out."
        )
    if "job_id" not in names:
        yield (f"Jobs file {origin!r} must have a column 'job_id'; got {', '.join(names) or 'an empty file'}. Add it.")
    if "model" not in names and all(name in COLUMNS for name in names):
        yield f"Jobs file {origin!r} must have a column 'model', or one such as 'v100:1'; got neither. Add one."


def _require_different_ids(lines: Iterable[Line]) -> None:
    places: dict[str, str] = {}
    for line in lines:
        if line.job.name in places:
            message = (
                f"Column 'job_id' on {line.where} must differ from job to job; got {line.job.name!r} again. Rename it."
            )
            raise RequestError(message)
        places[line.job.name] = line.where


class _Cells(Cells):
    """The cells of one line."""

    def line(self) -> Line:
        """Return what the cells say."""
        job = PlannedJob(
            name=self.text("job_id") or self.refuse("job_id", "a name"),
            times_s={},
            submitted_s=self._time("submitted") or 0.0,
            deadline_s=self._time("deadline"),
            late_price_per_hour=self._number("late_price_per_hour") or 0.0,
            priority=self._number("priority") or 0.0,
            checkpoint_s=self._time("checkpoint") or math.inf,
        )
        line = Line(
            where=self.where,
            job=job,
            model=self.text("model"),
            steps=self._number("steps", above=0.0),
            max_gpus=self._gpus(),
            step_times_s=self._step_times(),
        )
        if job.latest_end_s <= job.submitted_s:
            self.refuse("deadline", "after the job's submission")
        if not line.model and not line.step_times_s:
            self.refuse("model", "a model, or the line must have a step time")
        return line

    def _step_times(self) -> dict[tuple[str, int], float]:
        times = {}
        for name in self.row:
            match = _MEASURED.fullmatch(name)
            if match and self.text(name):
                times[match[1], int(match[2])] = self._number(name, above=0.0) or 0.0
        return times

    def _gpus(self) -> int:
        count = self._number("max_gpus") or 1.0
        return (
            int(count)
            if count == int(count) and 1 <= count <= MOST_GPUS
            else self.refuse("max_gpus", f"a whole number from 1 to {MOST_GPUS}")
        )

    def _number(self, name: str, above: float | None = None) -> float | None:
        return self.number(name, above=above, most=MOST) if self.text(name) else None

    def _time(self, name: str) -> float | None:
        text = self.text(name)
        try:
            time_s = duration_s(text) if text else None
        except ValueError:
            time_s = -1.0

        if time_s is not None and not 0 <= time_s <= MOST:
            self.refuse(name, f"a time of at least 0, in seconds or such as 8h, and at most {MOST:g} s")
        return time_s


W_PER_KW = 1000.0
_Name = Annotated[str, Meta(min_length=1, description="a name")]
_Count = Annotated[int, Meta(ge=1, le=100_000, description="a whole number from 1 to 100000")]
_Gpus = Annotated[int, Meta(ge=1, le=64, description="a whole number from 1 to 64")]
_Time = Annotated[str, Meta(pattern=r"^\d{1,6} ?(s|m|min|h|d)\Z", description="a time with its unit, such as '5m'")]
_Rate = Annotated[float, Meta(ge=0, le=60, description="a number from 0 to 60")]
_Money = Annotated[float, Meta(ge=0, le=1e9, description="a number of at least 0")]


class _Type(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node may be."""

    name: _Name
    gpu: _Name
    gpus: _Gpus
    price_per_hour: _Money | None = None
    power_w: _Money | None = None
    boot: _Time = "0s"
    minimum_billing: _Time = "0s"
    billing_step: _Time = "0s"
    spot_price_per_hour: _Money | None = None
    interruptions_per_hour: _Rate | None = None


_Names = Annotated[tuple[_Name, ...], Meta(min_length=1, description="a list of at least one name")]
_Types = Annotated[tuple[_Type, ...], Meta(min_length=1, description="a list of at least one type, as tables")]


class _Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that are alike."""

    name: _Name
    count: _Count | None = None
    names: _Names | None = None
    until: _Time | None = None
    types: _Types


_Groups = Annotated[tuple[_Group, ...], Meta(min_length=1, description="a list of at least one kind, as tables")]


class _Nodes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    nodes: _Groups
    energy_price_per_kwh: _Money | None = None


def read_nodes(path: Path) -> tuple[NodeGroup, ...]:
    """Return the nodes that the file at *path* describes.

    Raises:
        RequestError: It cannot be read, or describes no nodes.
    """
    return parse_nodes(read_document(path, "Cluster file"), str(path))


def parse_nodes(document: object, origin: str) -> tuple[NodeGroup, ...]:
    """Return the nodes that *document* describes; *origin* is its file, for people."""
    try:
        read = read_as(_Nodes, document if isinstance(document, dict) else {})
    except MismatchError as error:
        where = "".join(f" {step + 1}" if isinstance(step, int) else f", {step}" for step in error.above)
        raise refusal(error, f"cluster {origin!r}{where}", "docs/planning.md has an example.") from error

    _require_single("name", "kind to kind", [group.name for group in read.nodes], origin)
    groups = tuple(_node_group(group, read.energy_price_per_kwh, origin) for group in read.nodes)
    _require_single("names", "node to node", [name for group in groups for name in group.node_names], origin)
    return groups


def _node_group(group: _Group, energy_price_per_kwh: float | None, origin: str) -> NodeGroup:
    names = group.names or ()
    if (group.count is None) is (group.names is None):
        got = "neither" if group.count is None else "both"
        message = f"Kind {group.name!r} of cluster {origin!r} must have 'count' or 'names'; got {got}. Write one."
        raise RequestError(message)

    types = tuple(
        replace(kind, until_s=math.inf if group.until is None else _seconds("until", group.until, origin))
        for written in group.types
        for kind in _types(written, energy_price_per_kwh, origin)
    )
    _require_single("name", f"type to type of kind {group.name!r}", [kind.name for kind in types], origin)

    return NodeGroup(name=group.name, node_count=group.count or len(names), types=types, names=names)


def _seconds(key: str, text: str, origin: str) -> float:
    try:
        seconds = duration_s(text)
    except ValueError:  # longer than any
        seconds = math.inf

    if seconds > LONGEST_S:
        message = f"Key {key!r} of cluster {origin!r} must be at most {LONGEST_DAYS} days; got {text!r}. Fix it."
        raise RequestError(message)
    return seconds


def _require_single(key: str, places: str, names: Iterable[str], origin: str) -> None:
    double = next((name for name, count in Counter(names).items() if count > 1), None)
    if double is not None:
        message = f"Key {key!r} of cluster {origin!r} must differ from {places}; got {double!r} twice. Rename one."
        raise RequestError(message)


def _types(kind: _Type, energy_price_per_kwh: float | None, origin: str) -> Iterator[NodeType]:
    """Yield *kind*, and the same as a spot node."""
    if (kind.spot_price_per_hour is None) is not (kind.interruptions_per_hour is None):
        message = (
            f"Type {kind.name!r} of cluster {origin!r} must have 'spot_price_per_hour' and 'interruptions_per_hour' "
            "together; got one of them. Write both, or neither."
        )
        raise RequestError(message)

    bought = _type(kind, energy_price_per_kwh, origin)
    yield bought
    if kind.spot_price_per_hour is not None and kind.interruptions_per_hour is not None:
        yield replace(
            bought,
            name=f"{kind.name} spot",
            price_per_hour=kind.spot_price_per_hour,
            interruptions_per_hour=kind.interruptions_per_hour,
        )


def _type(kind: _Type, energy_price_per_kwh: float | None, origin: str) -> NodeType:
    price = kind.price_per_hour
    if price is None and kind.power_w is not None and energy_price_per_kwh is not None:
        price = kind.power_w / W_PER_KW * energy_price_per_kwh
    if price is None:
        message = (
            f"Type {kind.name!r} of cluster {origin!r} must have 'price_per_hour', or 'power_w' with the file's "
            "'energy_price_per_kwh'; got neither. Add one."
        )
        raise RequestError(message)

    return NodeType(
        name=kind.name,
        gpu=kind.gpu,
        gpu_count=kind.gpus,
        price_per_hour=price,
        boot_s=_seconds("boot", kind.boot, origin),
        minimum_billing_s=_seconds("minimum_billing", kind.minimum_billing, origin),
        billing_step_s=_seconds("billing_step", kind.billing_step, origin),
    )

"""What holds of every rewrite on every kind of site: by an own, simple reading of where Slurm could start a job.

Sites are made up of nodes whose GPUs are known here; gpusage has their slurm.conf alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from gpusage.decisions.advisor import make_advisor
from gpusage.decisions.outcome import Outcome
from gpusage_hooks.types import DecisionRequest, Gpu, ModelGraph, ModelRequest, Workload
from gpusage_slurm.cluster.from_slurm_conf import cluster_of_slurm_conf
from gpusage_slurm.cluster.hostlist import expand_hostlist

MODEL = str(Path(__file__).parents[2] / "examples" / "models" / "resnet50.onnx")
ADVISOR = make_advisor()


@dataclass(frozen=True)
class Board:
    """A GPU, by its name in the catalogue: what sites call it, and features that are true of it."""

    name: str
    types: Sequence[str]
    features: Sequence[str]
    slices: Sequence[str] = ()


BOARDS = (
    Board("a100-sxm4-40gb", ("a100", "nvidia_a100-sxm4-40gb", ""), ("a100", "ampere", "40gb"), ("1g.5gb", "3g.20gb")),
    Board("a100-sxm4-80gb", ("a100l", "nvidia_a100-sxm4-80gb"), ("ampere", "80gb"), ("1g.10gb", "3g.40gb", "2g.20gb")),
    Board(
        "h100-sxm5-80gb",
        ("h100", "nvidia_h100_80gb_hbm3", ""),
        ("h100", "hopper", "80gb"),
        ("1g.10gb", "3g.40gb", "7g.80gb"),
    ),
    Board("v100-sxm2-16gb", ("v100", ""), ("v100", "volta", "16gb")),
    Board("v100-sxm2-32gb", ("v100l", "v100-32g"), ("volta", "32gb")),
    Board("t4", ("t4", ""), ("t4", "turing")),
    Board("l40s", ("l40s",), ("l40s", "ada", "48gb")),
    Board("mi250-64gb", ("mi250",), ("mi250", "cdna2")),
)
COMMON = ("gpu", "ib", "x86")
WORKLOADS = (
    *("batch=1,mode=infer", "batch=1,mode=infer", "batch=64,mode=infer,slowdown=3", "batch=32,slowdown=2"),
    *("batch=128", "batch=256,precision=fp32", "batch=512"),
)
SEVERAL = (
    *("batch=1024,strategy=ddp,gpus=4", "batch=4096", "batch=4096,checkpointing=off", "batch=8192,mode=infer"),
    *("batch=384", "batch=768", "batch=512,gpus=1", "batch=65536,mode=infer"),
)
"""Of jobs with several GPUs."""
PARTITIONS = (("main",), ("main", "test"), ("test",))


@dataclass(frozen=True)
class Gpus:
    """GPUs of one type on each node of a kind.

    Attributes:
        gres: The type in slurm.conf.
        gpu: What they are, in the catalogue.
    """

    gres: str
    gpu: str
    count: int


@dataclass(frozen=True)
class Nodes:
    """Nodes of one kind; *units* of gres/mps for each GPU, 0 without."""

    name: str
    gpus: Sequence[Gpus]
    features: Sequence[str]
    partitions: Sequence[str]
    units: int
    cpu_count: int

    def line(self) -> str:
        """Return the node's line of slurm.conf."""
        gres = [f"gpu:{f'{each.gres}:' if each.gres else ''}{each.count}" for each in self.gpus]
        gres += [f"mps:{self.units * sum(each.count for each in self.gpus)}"] * bool(self.units)
        features = f" Features={','.join(self.features)}" if self.features else ""
        return f"NodeName={self.name}[1-2] CPUs={self.cpu_count} RealMemory=256000 Gres={','.join(gres)}{features}"


@dataclass(frozen=True)
class Site:
    """Nodes in partitions."""

    nodes: Sequence[Nodes]

    def text(self) -> str:
        """Return its slurm.conf."""
        lines = [each.line() for each in self.nodes]
        for partition in ("main", "test"):
            names = ",".join(f"{each.name}[1-2]" for each in self.nodes if partition in each.partitions)
            lines += [f"PartitionName={partition} Nodes={names}" + " Default=YES" * (partition == "main")] * bool(names)
        return "\n".join(["ClusterName=made", "GresTypes=gpu,mps", *lines, ""])


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Nodes:
    board = draw(st.sampled_from(BOARDS))
    whole = draw(st.sampled_from(board.types))
    gpus = [Gpus(whole, board.name, draw(st.integers(1, 8)))]
    if board.slices and draw(st.booleans()):
        # A profile alone names no GPU: a feature does, or a whole GPU beside it.
        form = draw(st.sampled_from((f"{whole}_{{}}", f"{whole}.{{}}", "{}") if whole else ("{}",)))
        profiles = draw(st.lists(st.sampled_from(board.slices), min_size=1, max_size=2, unique=True))
        cut = [Gpus(form.format(one), f"{board.name}:{one}", draw(st.integers(1, 7))) for one in profiles]
        gpus = cut + gpus * (bool(whole) and draw(st.booleans()))
    other = draw(st.sampled_from(BOARDS))
    if draw(st.sampled_from((False, False, True))) and not {"", other.types[0]} & {each.gres for each in gpus}:
        gpus = [*gpus, Gpus(other.types[0], other.name, draw(st.integers(1, 4)))]
    is_cut = any(":" in each.gpu for each in gpus)
    return Nodes(
        name=name,
        gpus=gpus,
        features=draw(st.lists(st.sampled_from((*board.features, *COMMON)), max_size=4, unique=True)),
        partitions=PARTITIONS[draw(st.booleans())] if name == "a" else draw(st.sampled_from(PARTITIONS)),
        units=0 if is_cut else draw(st.sampled_from((0, 100, 100, 200))),
        cpu_count=draw(st.sampled_from((8, 64))),
    )


@st.composite
def sites(draw: st.DrawFn) -> Site:
    return Site([draw(nodes(name)) for name in "abcd"[: draw(st.integers(1, 4))]])


@st.composite
def submissions(draw: st.DrawFn, site: Site) -> Mapping[str, str]:
    """Return the options of a job for *site*: some are vain."""
    types = sorted({gpus.gres for each in site.nodes for gpus in each.gpus} - {""})
    features = sorted({feature for each in site.nodes for feature in each.features})
    named = draw(st.sampled_from(["", "", "", *types]))
    words = st.sampled_from([*features, "gpu"])
    constraint = st.one_of(
        st.just(""),
        st.just(""),
        words,
        st.builds("{}&{}".format, words, words),
        st.builds("{}|{}".format, words, words),
    )
    count = draw(st.sampled_from((1, 1, 1, 2, 4)))
    options = {
        draw(st.sampled_from(("gres", "gpus"))): f"gpu:{count}",
        "constraint": draw(constraint),
        "exclude": draw(st.sampled_from(("", "", "", "a1", "b[1-2]", "a[1-2]", "b1,c2"))),
        "prefer": draw(st.sampled_from(("", "", "", "gpu"))),
        "partition": draw(st.sampled_from(("", "", "main", "test", "main,test"))),
        "cpus-per-task": draw(st.sampled_from(("", "", "16"))),
        "cpus-per-gpu": draw(st.sampled_from(("", "4", "24"))) if count > 1 else "",
    }
    if "gpus" in options:
        options["gpus"] = f"{named}:{count}" if named else f"{count}"
    else:
        options["gres"] = f"gpu:{named}:{count}" if named else f"gpu:{count}"
        options["nodes"] = draw(st.sampled_from(("", "2"))) if count > 1 else ""
    workload = draw(st.sampled_from((*WORKLOADS, *SEVERAL) if count > 1 else WORKLOADS))
    slices = draw(st.sampled_from(("", "", ",slices=on")))
    return {**options, "comment": f"model={MODEL},{workload}{slices}"}


def script_of(options: Mapping[str, str]) -> str:
    lines = [f"#SBATCH --{name}={value}" for name, value in options.items() if value]
    return "\n".join(["#!/bin/bash", *lines, "srun python train.py", ""])


@cache
def graph_of(model: str) -> ModelGraph:
    return ADVISOR.read(model)


def outcome_of(site: Site, options: Mapping[str, str]) -> Outcome:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "slurm.conf"
        path.write_text(site.text())
        cluster = cluster_of_slurm_conf(str(path), ADVISOR.catalogue)
    assert cluster is not None
    job = ADVISOR.parse(DecisionRequest(manager="slurm", script=script_of(options)))
    return ADVISOR.advise(job, cluster, lambda _job, request: graph_of(request.model))


def meets(features: Sequence[str], expression: str) -> bool:
    """Return whether a node with *features* meets *expression*: names, &, | and brackets."""
    if not expression:
        return True
    words = {feature.casefold() for feature in features}
    logic = re.sub(r"[^&|()]+", lambda word: str(word[0].casefold() in words), expression)
    return bool(eval(logic.replace("&", " and ").replace("|", " or ")))  # noqa: S307 - of True, False and operators


def places(site: Site, fields: Mapping[str, str], prefer: str = "") -> list[tuple[Nodes, Gpus]]:
    """Return where Slurm could start a part of the job of *fields* on the empty site; none where it could not start."""
    partitions = (fields.get("partition") or "main").split(",")
    is_per_node, tres = bool(fields.get("tres_per_node")), fields.get("tres_per_node") or fields["tres_per_job"]
    name, *rest = re.sub(r"^gres[:/]", "", tres.split(",")[0]).split(":")
    kind, count = (rest[0] if len(rest) > 1 else "", int(rest[-1]))
    excluded = {*expand_hostlist(fields.get("exc_nodes", ""))}
    reached, node_count, gpu_count = [], 0, 0
    for each in site.nodes:
        names = {f"{each.name}1", f"{each.name}2"} - excluded
        is_open = {*each.partitions} & {*partitions} and meets(each.features, fields.get("features", "")) and names
        if not is_open or each.cpu_count < int(fields.get("cpus_per_task") or 1) or not meets(each.features, prefer):
            continue
        if name == "mps":
            reached += [(each, gpus) for gpus in each.gpus if each.units >= count]
            node_count, gpu_count = len(names), count
            continue
        fitting = [gpus for gpus in each.gpus if kind in ("", gpus.gres)]
        cores = re.search(r"\d+$", fields.get("cpus_per_tres", ""))
        most = each.cpu_count // int(cores[0]) if cores else each.cpu_count
        on_node = min(sum(gpus.count for gpus in fitting), most)
        if on_node >= (count if is_per_node else 1):
            reached += [(each, gpus) for gpus in fitting]
            node_count, gpu_count = node_count + len(names), gpu_count + on_node * len(names)
    return reached if node_count >= int(fields.get("min_nodes") or 1) and gpu_count >= count else []


def room_left(gpu: Gpu, site: Nodes, tres: str, model: str, workload: Workload) -> float:
    """Return how many bytes a job of one GPU has left on *gpu*, of *site*; below 0 it does not fit."""
    (need,) = ADVISOR.predict(graph_of(model), workload, [gpu])
    units = re.search(r"mps:(\d+)", tres)
    part = int(units[1]) / site.units if units else 1
    return gpu.memory_bytes * part - need.required_bytes.high


def could_divide(gpu: Gpu, request: ModelRequest, gpu_count: int) -> bool:
    """Return whether a job of several GPUs fits on *gpu* at best, in one of the ways that people run it."""
    run, named = request.workload, request.named
    ways = [run]
    if run.mode == "infer" or "gpus" not in named:
        # As `nn.DataParallel` does, and several servers behind one queue.
        ways += [replace(run, batch_size=max(run.batch_size // gpu_count, 1))]
    if run.mode == "train":
        ways = [replace(way, gpus=1 if "gpus" in named and run.gpus == 1 else gpu_count) for way in ways]
        ways += [replace(way, strategy="fsdp") for way in ways if "strategy" not in named and way.gpus > 1]
        ways += [replace(way, checkpointing=True) for way in ways if "checkpointing" not in named and way.gpus > 1]
    needs = [ADVISOR.predict(graph_of(request.model), way, [gpu])[0] for way in ways]
    return any(need.required_bytes.low <= gpu.memory_bytes for need in needs)


def check_outcome(site: Site, options: Mapping[str, str]) -> None:
    """Check the outcome of the job with *options* on *site*."""
    outcome = outcome_of(site, options)
    job, decision, rendered = outcome.job, outcome.decision, outcome.rendered
    assert job is not None
    assert job.model_request is not None
    before, count = dict(job.submission.fields), job.request.gpu_count
    could = places(site, before)
    where = f"{options} on {site.text()} became {dict(rendered.fields)}: {decision.reasons}"

    # No word of a whole GPU where there is none.
    if could and all(":" in gpus.gpu for _, gpus in could):
        assert "whole GPU" not in " ".join(decision.reasons), f"words: {where}"
    if not rendered.fields:
        return

    # It starts wherever it would have, and on nothing else, but for slices that its user accepts.
    changed = {key.removeprefix("set."): value for key, value in rendered.fields.items() if key.startswith("set.")}
    after = {**before, **changed}
    after["tres_per_node"] = changed.get("gres", before.get("tres_per_node", ""))
    can = places(site, after)
    assert can or not could, f"it waits for ever: {where}"
    if "slices=on" not in options["comment"]:
        assert all(place in could for place in can), f"it lands elsewhere: {where}"

    # Whatever it lands on holds it. Nothing leads it away where one of its partitions has nothing larger.
    names = (before.get("partition") or "main").split(",")
    for each, gpus in can if count == 1 and (len(names) == 1 or "gres" in changed) else ():
        gpu = ADVISOR.catalogue.find(gpus.gpu)
        left = room_left(gpu, each, after["tres_per_node"], job.model_request.model, job.model_request.workload)
        assert left >= 0, f"it is too large: {gpus} by {-left} {where}"

    # Several GPUs are led away from no type whose GPUs, if people divide the model among them, could hold it. Of a GPU
    # without type and feature nothing is known, and slices do not work together.
    there = {gpus.gpu: ADVISOR.catalogue.find(gpus.gpu) for each, gpus in can if gpus.gres or each.features}
    for each, gpus in could if count > 1 else ():
        gpu = ADVISOR.catalogue.find(gpus.gpu)
        if gpus.gpu not in there and ":" not in gpus.gpu and (gpus.gres or each.features):
            assert not could_divide(gpu, job.model_request, count), f"it could run on {gpus}: {where}"
            least = min((one.memory_bytes for one in there.values()), default=gpu.memory_bytes)
            assert least >= gpu.memory_bytes, f"it is led to less memory than of {gpus}: {where}"

    # A preference is met by some, and not by all.
    if "prefer" in changed:
        met = places(site, {**after, "features": ""}, changed["prefer"])
        assert met, f"nothing meets what it prefers: {where}"
        assert any(place not in met for place in can), f"all meets what it prefers: {where}"


@given(st.data())
def test_a_rewritten_job_starts_where_it_could_and_where_it_fits(data: st.DataObject) -> None:
    site = data.draw(sites())
    check_outcome(site, data.draw(submissions(site)))

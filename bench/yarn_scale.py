"""What gpusage costs a ResourceManager of 2,000 nodes: containers allocated a second, and heap, with us and without.

Two ResourceManagers stand side by side, each under Hadoop's own scheduler load simulator (hadoop-sls, driven by
SchedulerLoad.java). One has our calculator, allocator, placement rule and processor, and its applications carry
a plan and ask for one `yarn.io/gpu`. In the plain one they name the same shares and labels themselves. Both do the same
rounds of work in turn, plain, ours, ours, plain; then again in a fresh pair of processes. Nothing is printed where one
of them allocated more than 5 % less on a label's nodes. On two idle cores it takes 5 minutes; what others run there
makes it longer, and the ratio of two ResourceManagers less certain.

Example: python bench/yarn_scale.py --nodes 500 --repeat 1
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gpusage_sandboxes.host import cache_folder, lock
from gpusage_sandboxes.yarn import Hadoop, prepare_hadoop
from gpusage_sandboxes.yarn.jar import build_jar
from gpusage_sandboxes.yarn.settings import render_configuration
from gpusage_yarn.cluster.configuration import ALLOCATOR, CALCULATOR, CLASSES, DOMINANT_CALCULATOR, PROCESSORS, RULES
from gpusage_yarn.share_plan import SHARE, Plan

LEAST_RATIO = 0.95
MOST_HEAP = 1.05
MOST_UNEQUAL = 0.05  # of one label's allocations, in a pair: fewer are less work, which looks like speed
LABELS = ("v100", "a100", "h100")  # as in SchedulerLoad.java
WARM_UP_ROUNDS = 16
ROUNDS = 16  # with 2,000 nodes; in each, every node and every master has one heartbeat
PAIR_S = 100  # on two idle cores
SOURCE = Path(__file__).with_name("SchedulerLoad.java")
LOG4J = """\
log4j.rootLogger=ERROR,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a ResourceManager did in one round.

    Attributes:
        allocations: Containers that reached their masters, of each label's nodes.
        applications: Submitted meanwhile, in the place of those that had ended.
        wall_s: How long it took.
        cpu_s: Of all threads, the simulator's included, the compiler's and the collector's not.
    """

    allocations: list[int]
    applications: int
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One ResourceManager: its rounds, and its heap with all nodes full and every master waiting for more."""

    rounds: tuple[Round, ...]
    heap_mib: float

    def per_s(self, clock: str) -> float:
        """Return the allocations a second by "wall_s" or "cpu_s"; the latter hardly shows what others run here."""
        times_s: list[float] = [getattr(each, clock) for each in self.rounds]
        return sum(self.allocations()) / sum(times_s)

    def allocations(self) -> list[int]:
        """Return all rounds' allocations, of each label's nodes."""
        return [sum(label) for label in zip(*(each.allocations for each in self.rounds), strict=True)]


@click.command(help=__doc__)
@click.option("--nodes", default=2000, show_default=True, help="Simulated, four GPUs each.")
@click.option("--repeat", default=3, show_default=True, help="Pairs of ResourceManagers, one after the other.")
def main(nodes: int, repeat: int) -> None:
    """Measure and print one table."""
    console = Console(stderr=True)
    console.print(f"{repeat} pairs of ResourceManagers, {nodes} nodes: about {repeat * PAIR_S // 60} minutes")
    hadoop = prepare_hadoop()
    with tempfile.TemporaryDirectory() as scratch:
        classpath = compiled(hadoop, Path(scratch))
        turns = track(range(repeat), description="measuring", console=console)
        pairs = [measured(hadoop, classpath, Path(scratch) / str(turn), nodes) for turn in turns]
    show(summary(pairs), nodes)


def compiled(hadoop: Hadoop, scratch: Path) -> str:
    """Return the classpath of the load, compiled."""
    jars = f"{simulator(hadoop)}:{hadoop.classpath}"
    compiler = str(hadoop.java.program.with_name("javac"))
    subprocess.run([compiler, "-d", str(scratch / "classes"), "-classpath", jars, str(SOURCE)], check=True)
    return f"{scratch / 'classes'}:{build_jar()}:{jars}"


def simulator(hadoop: Hadoop) -> Path:
    """Return hadoop-sls's jar, fetched beside Hadoop's own on first use; what it depends on is among those."""
    folder = hadoop.folder.with_name(f"{hadoop.version}-sls")
    jar = folder / f"hadoop-sls-{hadoop.version}.jar"
    with lock(folder):
        if not jar.is_file():
            command = [
                str(hadoop.java.maven),
                "--quiet",
                "--batch-mode",
                f"-Dmaven.repo.local={cache_folder().absolute() / 'maven'}",
                f"-Dartifact=org.apache.hadoop:hadoop-sls:{hadoop.version}",
                f"-DoutputDirectory={folder}",
                "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy",
            ]
            environment = {**os.environ, "JAVA_HOME": str(hadoop.java.home)}
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return jar


def measured(hadoop: Hadoop, classpath: str, folder: Path, nodes: int) -> tuple[Run, Run]:
    """Return what a plain ResourceManager did, and what one with us did, in turn."""
    # Waits are watched, but none is long enough: going on to another label would be other work than the plain one's.
    preferences = [LABELS[first:] + LABELS[:first] for first in range(len(LABELS))]
    plans = [Plan(share=50, labels=labels, fallback_after_s=3600).encoded() for labels in preferences]
    with ExitStack() as stack:
        pair = [
            stack.enter_context(resource_manager(hadoop, classpath, folder / "plain", nodes, ())),
            stack.enter_context(resource_manager(hadoop, classpath, folder / "ours", nodes, plans)),
        ]
        command = f"measure {max(1, 2000 // nodes)}"  # the same work, and as warm, with fewer nodes
        # The second of two may find a cooler or a busier machine, so each is the second in every other round.
        orders = [(-1) ** turn for turn in range(WARM_UP_ROUNDS + ROUNDS)]
        rounds = [[Round(**ask(each, command)) for each in pair[::order]][::order] for order in orders]
        ends = [ask(each, "fill") for each in pair]
    if not ends[1]["plans_taken"] or not ends[1]["asks_changed"] or ends[1]["failures"]:
        message = f"gpusage must take plans and change asks without failures; its counters say {ends[1]}."
        raise click.ClickException(message)
    runs = zip(zip(*rounds[WARM_UP_ROUNDS:], strict=True), ends, strict=True)
    plain, ours = (Run(rounds=done, heap_mib=end["heap_bytes"] / 2**20) for done, end in runs)
    each_label = zip(plain.allocations(), ours.allocations(), strict=True)
    if any(min(counts) < (1 - MOST_UNEQUAL) * max(counts) for counts in each_label):
        message = f"Both must do the same work; by label they allocated {plain.allocations()}, {ours.allocations()}."
        raise click.ClickException(message)
    return plain, ours


@contextmanager
def resource_manager(
    hadoop: Hadoop, classpath: str, folder: Path, nodes: int, plans: Sequence[str]
) -> Iterator[subprocess.Popen[str]]:
    """Start a ResourceManager with its load, and yield it when all nodes are there."""
    configure(folder, with_us=bool(plans))
    command = [
        str(hadoop.java.program),
        "-Xms1g",
        "-Xmx1g",
        "-XX:-UsePerfData",  # leaves a file in the machine's own temporary folder
        "--add-opens=java.base/java.lang=ALL-UNNAMED",  # Hadoop's Guice defines classes
        f"-Djava.io.tmpdir={folder}",
        "-classpath",
        f"{folder}:{classpath}",
        "SchedulerLoad",
        str(folder),
        str(nodes),
        *plans,
    ]
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    with process:
        try:
            ask(process, "")
            yield process
        except (ValueError, BrokenPipeError) as error:
            log_end = (folder / "log").read_text(encoding="utf-8")[-4000:]
            message = f"The simulated ResourceManager must answer each command with a line of JSON; it said:\n{log_end}"
            raise click.ClickException(message) from error
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], command: str) -> dict[str, Any]:
    """Return the answer to *command*; to none, what is said when all is ready."""
    if command and process.stdin:
        process.stdin.write(f"{command}\n")
        process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline() if process.stdout else "")
    return answer


def configure(folder: Path, *, with_us: bool) -> None:
    """Write the configuration of a ResourceManager."""
    folder.mkdir(parents=True)
    (folder / "racks").touch()
    (folder / "log4j.properties").write_text(LOG4J, encoding="utf-8")
    rm = "yarn.resourcemanager"
    addresses = ("", ".scheduler", ".resource-tracker", ".admin", ".webapp")
    types = {"yarn.resource-types": f"yarn.io/gpu,{SHARE}", f"yarn.resource-types.{SHARE}.maximum-allocation": "100"}
    site = {
        **{f"{rm}{kind}.address": "127.0.0.1:0" for kind in addresses},
        f"{rm}.scheduler.class": "SchedulerLoad$PacedScheduler",
        f"{rm}.max-completed-applications": "200",
        "yarn.scheduler.minimum-allocation-mb": "32",
        "yarn.scheduler.maximum-allocation-mb": str(256 * 1024),
        RULES: f"{CLASSES[RULES]},user-group" if with_us else "user-group",
        "yarn.node-labels.enabled": "true",
        "yarn.node-labels.fs-store.root-dir": f"file://{folder}/labels",
        "yarn.node-attribute.fs-store.root-dir": f"file://{folder}/attributes",
        "yarn.sls.metrics.switch": "false",
        **types,
        **({name: CLASSES[name] for name in (PROCESSORS, ALLOCATOR)} if with_us else {}),
    }
    files = {
        "core-site.xml": {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder)},
        "resource-types.xml": types,
        "yarn-site.xml": site,
        "capacity-scheduler.xml": scheduler_settings(CLASSES[CALCULATOR] if with_us else DOMINANT_CALCULATOR),
    }
    for name, settings in files.items():
        (folder / name).write_text(render_configuration(settings), encoding="utf-8")


def scheduler_settings(calculator: str) -> dict[str, str]:
    """Return the capacity scheduler's settings: one queue that may use everything, three containers a heartbeat."""
    capacity = "yarn.scheduler.capacity"
    queues = (f"{capacity}.root", f"{capacity}.root.default")
    return {
        CALCULATOR: calculator,
        f"{capacity}.maximum-am-resource-percent": "0.9",
        f"{capacity}.node-locality-delay": "-1",
        f"{capacity}.per-node-heartbeat.maximum-offswitch-assignments": "3",
        f"{capacity}.root.queues": "default",
        f"{capacity}.root.default.user-limit-factor": "100",
        **{f"{queue}.capacity": "100" for queue in queues},
        **{f"{queue}.accessible-node-labels": "*" for queue in queues},
        **{f"{queue}.accessible-node-labels.{label}.capacity": "100" for queue in queues for label in LABELS},
    }


def summary(pairs: Sequence[tuple[Run, Run]]) -> dict[str, dict[str, float]]:
    """Return the medians of the pairs, and of their ratios."""
    figures = {
        "allocations a second": [(plain.per_s("wall_s"), ours.per_s("wall_s")) for plain, ours in pairs],
        "allocations a processor second": [(plain.per_s("cpu_s"), ours.per_s("cpu_s")) for plain, ours in pairs],
        "heap MiB": [(plain.heap_mib, ours.heap_mib) for plain, ours in pairs],
    }
    return {name: row(pairs) for name, pairs in figures.items()}


def row(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return one line of the table."""
    ratios = [ours / plain for plain, ours in pairs]
    return {
        "plain": round(statistics.median(plain for plain, _ in pairs), 1),
        "ours": round(statistics.median(ours for _, ours in pairs), 1),
        "ratio": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


def show(rows: dict[str, dict[str, float]], nodes: int) -> None:
    """Print the table."""
    table = Table("", title=f"ResourceManager, {nodes} simulated nodes")
    for name in next(iter(rows.values())):
        table.add_column(name, justify="right")
    for name, cells in rows.items():
        table.add_row(name, *map(str, cells.values()))
    Console().print(table)
    print(f"wanted: allocations at least {LEAST_RATIO} of plain, heap at most {MOST_HEAP}")


if __name__ == "__main__":
    main()

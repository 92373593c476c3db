"""The hooks, typed: what core asks, one method for each hook of `gpusage_hooks.specs`.

Invariants:

1. Where the first answer wins, a plugin that breaks the contract is a `PluginError` with its name: nobody else's answer
   takes the place of one that its site wants.
2. Where all answers count, such a plugin's answer is left out, with a warning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from gpusage.plugins.implementation import Implementation
from gpusage_hooks import specs
from gpusage_hooks.errors import PluginError
from gpusage_hooks.managers import Context, GpuCatalogue, Manager
from gpusage_hooks.types import (
    AnnotatedJob,
    Cluster,
    Colocation,
    Decision,
    DecisionRecord,
    DecisionRequest,
    Gpu,
    GpuNeed,
    GpuReading,
    Interval,
    Job,
    JobState,
    ModelGraph,
    ObservedFigures,
    OutOfMemoryJob,
    PastJob,
    PolicyInput,
    RenderedDecision,
    Stage,
    Submitter,
    Usage,
    Workload,
)

P = ParamSpec("P")
T = TypeVar("T")
NOBODY = Submitter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A plugin as it was loaded, or set aside.

    Attributes:
        name: Of its entry point; of the module where it is built in.
        package: The distribution that it comes with; empty where that is not known.
        version: The distribution's.
        hooks: Those that it implements, sorted; none where it is set aside.
        trouble: Why it is set aside, as one sentence; ``None`` where it is not.
    """

    name: str
    package: str = ""
    version: str = ""
    hooks: tuple[str, ...] = ()
    trouble: str | None = None


class Hooks:
    """Asks plugins, a site's own before those that come with gpusage.

    Args:
        plugins: All that there are, those that are set aside included.
        implementations: By hook, in the order in which they are asked.
    """

    def __init__(self, plugins: Sequence[Plugin], implementations: Mapping[str, Sequence[Implementation]]) -> None:
        self.plugins = tuple(plugins)
        self._implementations = implementations
        self._faults: dict[str, str] = {}

    def troubles(self) -> dict[str, str]:
        """Return what is wrong with plugins, by name: why one is set aside, or what it last did wrong here."""
        aside = {plugin.name: plugin.trouble for plugin in self.plugins if plugin.trouble}
        return {**self._faults, **aside}

    def are_ours(self, *hooks: str) -> bool:
        """Return whether nobody but gpusage itself implements *hooks*."""
        implementations = (implementation for hook in hooks for implementation in self._implementations.get(hook, ()))
        return all(implementation.is_ours for implementation in implementations)

    def read_model(self, source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
        """Read a model's graph from a path or a name."""
        return self._first(specs.read_model, source=source, shape=shape)

    def describe_model_names(self) -> list[str]:
        """Return how the models are named that plugins read."""
        return [name for answer in self._all(specs.describe_model_names) for name in answer]

    def describe_gpus(self) -> list[Gpu]:
        """Return GPUs for the catalogue, a site's own last: a later row replaces one of the same name."""
        return [gpu for answer in reversed(self._all(specs.describe_gpus)) for gpu in answer]

    def find_observed_figures(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], submitter: Submitter = NOBODY
    ) -> list[Sequence[ObservedFigures]]:
        """Tell what is known of a workload on each GPU: the answer of each plugin that knows something."""
        return self._all(specs.find_observed_figures, graph=graph, workload=workload, gpus=gpus, submitter=submitter)

    def predict_needs(
        self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]
    ) -> Sequence[GpuNeed] | None:
        """Predict what a workload needs on each GPU when it is alone there."""
        return self._first(specs.predict_needs, graph=graph, workload=workload, gpus=gpus, known=known)

    def predict_slowdown(
        self,
        graph: ModelGraph,
        workload: Workload,
        gpus: Sequence[Gpu],
        parts: Sequence[Sequence[Gpu]],
        known: Sequence[ObservedFigures],
    ) -> Sequence[Sequence[Interval]] | None:
        """Predict the step time on each part of a GPU against that on the whole of it."""
        return self._first(specs.predict_slowdown, graph=graph, workload=workload, gpus=gpus, parts=parts, known=known)

    def predict_colocation(self, needs: Sequence[GpuNeed], gpu: Gpu) -> Colocation | None:
        """Predict what jobs do to each other under MPS."""
        return self._first(specs.predict_colocation, needs=needs, gpu=gpu)

    def decide(self, stage: Stage, policy_input: PolicyInput, draft: Decision) -> Decision | None:
        """Decide one thing about a job, on the draft of the stages before."""
        return self._first(specs.decide, stage=stage, policy_input=policy_input, draft=draft)

    def describe_manager(self) -> list[Manager]:
        """Return the workload managers that plugins adapt; of two with one name the first counts."""
        return self._all(specs.describe_manager)

    def parse_submission(self, submission: DecisionRequest, context: Context) -> Job | None:
        """Understand one workload manager's submission."""
        return self._first(specs.parse_submission, submission=submission, context=context)

    def render_decision(
        self, job: Job, decision: Decision, cluster: Cluster, context: Context
    ) -> RenderedDecision | None:
        """Put a decision into the workload manager's own words."""
        return self._first(specs.render_decision, job=job, decision=decision, cluster=cluster, context=context)

    def observe_cluster(self, manager: str, context: Context) -> Cluster | None:
        """Ask a workload manager what it has."""
        return self._first(specs.observe_cluster, manager=manager, context=context)

    def read_cluster(self, path: str, catalogue: GpuCatalogue) -> Cluster | None:
        """Read a workload manager's own configuration."""
        return self._first(specs.read_cluster, path=path, catalogue=catalogue)

    def read_past_jobs(self, path: str) -> Sequence[PastJob] | None:
        """Read what a workload manager's accounting printed of jobs that ended."""
        return self._first(specs.read_past_jobs, path=path)

    def collect_past_jobs(self, manager: str, since_s: float, context: Context) -> Sequence[PastJob] | None:
        """Ask a workload manager's accounting for recent jobs."""
        return self._first(specs.collect_past_jobs, manager=manager, since_s=since_s, context=context)

    def find_jobs(self, manager: str, job_id: str, user: str, context: Context) -> Sequence[AnnotatedJob] | None:
        """Find jobs of a workload manager, by id or by user."""
        return self._first(specs.find_jobs, manager=manager, job_id=job_id, user=user, context=context)

    def find_shared_jobs(
        self, manager: str, states: Sequence[JobState], context: Context
    ) -> Sequence[AnnotatedJob] | None:
        """Find the jobs whose whole GPU became a share."""
        return self._first(specs.find_shared_jobs, manager=manager, states=states, context=context)

    def restore_request(self, job: AnnotatedJob, reason: str, context: Context) -> bool | None:
        """Give a waiting job the request again that its user made."""
        return self._first(specs.restore_request, job=job, reason=reason, context=context)

    def find_out_of_memory_jobs(self, manager: str, context: Context) -> Sequence[OutOfMemoryJob] | None:
        """Find the jobs whose share's memory was too small."""
        return self._first(specs.find_out_of_memory_jobs, manager=manager, context=context)

    def requeue_on_whole_gpu(self, job: AnnotatedJob, reason: str, context: Context) -> bool | None:
        """Run an out-of-memory job again, with the request that its user made."""
        return self._first(specs.requeue_on_whole_gpu, job=job, reason=reason, context=context)

    def collect_usage(self, manager: str, context: Context) -> Sequence[Usage] | None:
        """Ask a workload manager what jobs that ended lately really did."""
        return self._first(specs.collect_usage, manager=manager, context=context)

    def read_accounting(self, manager: str, since_s: float, until_s: float, context: Context) -> Sequence[Usage] | None:
        """Ask a workload manager's accounting for the jobs with GPUs that ended in a time."""
        return self._first(specs.read_accounting, manager=manager, since_s=since_s, until_s=until_s, context=context)

    def read_gpu(self, device: str) -> GpuReading | None:
        """Read the counters of one GPU of this machine."""
        return self._first(specs.read_gpu, device=device)

    def add_commands(self) -> list[object]:
        """Return the click commands of all plugins."""
        return [command for answer in self._all(specs.add_commands) for command in answer]

    def commands_of(self, plugin: str) -> Sequence[object]:
        """Return the click commands of the one plugin *plugin*, so that nobody waits for those of others."""
        implementations = self._implementations.get("add_commands", ())
        own = [implementation for implementation in implementations if implementation.plugin == plugin]
        answers: list[Sequence[object]] = self._collect_answers(own, {})
        return [command for answer in answers for command in answer]

    def decision_made(self, record: DecisionRecord) -> None:
        """Let plugins hear of a decision."""
        self._all(specs.decision_made, record=record)

    def usage_observed(self, usage: Usage) -> None:
        """Let plugins hear of what a job really did."""
        self._all(specs.usage_observed, usage=usage)

    def _first(self, hook: Callable[P, T | None], *_: P.args, **question: P.kwargs) -> T | None:
        """Return the first answer that is not ``None``."""
        try:
            for implementation in self._implementations.get(hook.__name__, ()):
                answer: T | None = implementation.call(question)
                if answer is not None:
                    return answer
        except PluginError as error:
            # Nobody else is asked: the site wants this plugin's answer, and gpusaged then leaves the job as it is.
            self._faults[error.plugin] = str(error)
            raise
        return None

    def _all(self, hook: Callable[P, T | None], *_: P.args, **question: P.kwargs) -> list[T]:
        """Return the answer of each plugin that has one."""
        return self._collect_answers(self._implementations.get(hook.__name__, ()), question)

    def _collect_answers(self, implementations: Iterable[Implementation], question: Mapping[str, object]) -> list[T]:
        answers: list[T] = []
        for implementation in implementations:
            try:
                answer: T | None = implementation.call(question)
            except PluginError as error:
                # Warn once: a hook may be called for every job.
                if self._faults.get(error.plugin) != str(error):
                    warn(str(error))
                self._faults[error.plugin] = str(error)
                continue

            if answer is not None:
                answers.append(answer)
        return answers


def warn(sentence: str) -> None:
    """Tell people of trouble with a plugin on standard error, which is gpusaged's log, too."""
    with suppress(AttributeError, OSError, ValueError):  # there may be none, or a closed one
        sys.stderr.write(f"gpusage: warning: {sentence}\n")

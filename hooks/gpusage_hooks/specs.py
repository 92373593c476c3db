"""Every hook, and nothing else: this file is the product's table of contents.

A hook may return ``None`` ("not mine"). Where it says *first answer wins*, the built-in plugins are asked last, so a
site's own plugin is always heard before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pluggy

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

hookspec = pluggy.HookspecMarker("gpusage")
hookimpl = pluggy.HookimplMarker("gpusage")


@hookspec(firstresult=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read a model's graph from a path or a name; first answer wins.

    Args:
        source: A path, or a name with a prefix such as ``timm:resnet50``.
        shape: Sizes of free dimensions, batch left out: ``{"input": (3, 224, 224)}`` for a whole input, or
            ``{"seq": (128,)}`` for a named dimension.

    Returns:
        The graph, or ``None`` where the format is another plugin's.

    Raises:
        GraphError: The model is of this plugin's format and cannot be read.
    """


@hookspec
def describe_model_names() -> Sequence[str] | None:
    """Return how the models are named that this plugin reads; all answers count.

    A job's comment may begin with such a name; any other model needs ``model=``.

    Returns:
        Names with one ``*``, at the front or at the end: ``*.acme`` for a file, ``acme:*`` for a name.
    """


@hookspec
def describe_gpus() -> Sequence[Gpu] | None:
    """Return GPUs for the catalogue; all answers count, a later row replaces one of the same name."""


@hookspec
def find_observed_figures(
    graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], submitter: Submitter
) -> Sequence[ObservedFigures] | None:
    """Return observed figures of a workload on each GPU; all answers count, of each figure the first that is known.

    Whatever is predicted follows from what is known: a known step time changes throughput, activities, speed-ups and
    what shares cost.

    Args:
        graph: Every shape is resolved but for the batch.
        workload: How it is run.
        gpus: Whole GPUs, or parts of some.
        submitter: Who submits the job; nobody where a question is about a model alone.

    Returns:
        One entry for each of *gpus*, in their order.
    """


@hookspec(firstresult=True)
def predict_needs(
    graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]
) -> Sequence[GpuNeed] | None:
    """Predict the need of a workload alone on each GPU; first answer wins.

    Args:
        graph: Every shape is resolved but for the batch.
        workload: How it is run.
        gpus: Whole GPUs, or parts of some.
        known: What is known, for each of *gpus*; a predictor takes it in place of its own figures.

    Returns:
        One need for each of *gpus*, in their order; none depends on which other GPUs are asked for. Its ``slowdown`` is
        left to `predict_slowdown`.
    """


@hookspec(firstresult=True)
def predict_slowdown(
    graph: ModelGraph,
    workload: Workload,
    gpus: Sequence[Gpu],
    parts: Sequence[Sequence[Gpu]],
    known: Sequence[ObservedFigures],
) -> Sequence[Sequence[Interval]] | None:
    """Predict the step time on each part of a GPU against that on the whole of it; first answer wins.

    Args:
        graph: Every shape is resolved but for the batch.
        workload: How it is run.
        gpus: Whole GPUs.
        parts: For each of *gpus* its parts, each with its own SMs, rates and bandwidth; one may be the GPU itself. A
            share comes twice: alone, with the bandwidth of the whole GPU, and beside partners, with its part of it.
        known: What is known, for each of *gpus*.

    Returns:
        For each of *gpus* one ratio a part, at least 1, in the order of *parts*: an interval of the ratio itself.
    """


@hookspec(firstresult=True)
def predict_colocation(needs: Sequence[GpuNeed], gpu: Gpu) -> Colocation | None:
    """Predict the throughput of jobs under MPS beside each other, by the need of each on *gpu*; first answer wins."""


@hookspec(firstresult=True)
def decide(stage: Stage, policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Decide a stage of a job, on the draft of the stages before; first answer wins.

    Args:
        stage: What is decided, in the order of `STAGES`: ``eligibility``, whether the request may be changed at all;
            ``fit``, where the workload fits by the pessimistic end of its memory; ``deadline``, which GPUs end the job
            in time; ``generation``, which GPU generation to prefer; ``sharing``, what share of a GPU is enough;
            ``slo``, what an inference job's promise still needs; ``veto``, which nodes to avoid for their other jobs.
        policy_input: The job, and where it may run.
        draft: What was decided so far.

    Returns:
        The next draft; ``None`` leaves it as it is. A draft that is ``final`` ends the round.
    """


@hookspec
def describe_manager() -> Manager | None:
    """Describe the workload manager that this plugin adapts; all answers count, of two with one name the first."""


@hookspec(firstresult=True)
def parse_submission(submission: DecisionRequest, context: Context) -> Job | None:
    """Parse a workload manager's submission; first answer wins.

    Args:
        submission: Its fields, or its script. `gpusage_hooks.comment` reads what the user says to us.
        context: As for each of the manager's hooks: its settings, and the GPUs that gpusage knows.

    Raises:
        RequestError: The user's words to us are malformed.
    """


@hookspec(firstresult=True)
def render_decision(job: Job, decision: Decision, cluster: Cluster, context: Context) -> RenderedDecision | None:
    """Put a decision into the workload manager's own words; first answer wins."""


@hookspec(firstresult=True)
def observe_cluster(manager: str, context: Context) -> Cluster | None:
    """Observe a workload manager's cluster; may take seconds; first answer wins.

    Args:
        manager: Its name.
        context: Its settings, and the GPUs that gpusage knows.

    Returns:
        What it has; ``None`` where there is no such manager here.

    Raises:
        RequestError: The manager does not answer.
    """


@hookspec(firstresult=True)
def read_cluster(path: str, catalogue: GpuCatalogue) -> Cluster | None:
    """Read a workload manager's own configuration, on a machine where it need not run; first answer wins.

    Args:
        path: Of the file that a user names.
        catalogue: The GPUs that gpusage knows.

    Returns:
        What it describes, all of it free; ``None`` where the file is not this manager's.

    Raises:
        RequestError: The file is this manager's, and cannot be read or understood.
    """


@hookspec(firstresult=True)
def read_past_jobs(path: str) -> Sequence[PastJob] | None:
    """Read the accounting of ended jobs that a workload manager printed; first answer wins.

    Args:
        path: Of the file that a user names.

    Returns:
        The jobs that had GPUs, in any order, and other rows with why they are left out; ``None`` where the file is not
        this manager's.

    Raises:
        RequestError: The file is this manager's, and cannot be read or understood.
    """


@hookspec(firstresult=True)
def collect_past_jobs(manager: str, since_s: float, context: Context) -> Sequence[PastJob] | None:
    """Ask a workload manager's accounting for recent jobs; may take minutes; first answer wins.

    Args:
        manager: Its name.
        since_s: Seconds since 1970; what ended before may be left out.
        context: Its settings, and the GPUs that gpusage knows.

    Returns:
        The jobs that had GPUs and that whoever asks may see, in any order; ``None`` where there is no such manager
        here.

    Raises:
        RequestError: It keeps no accounting, or does not answer.
    """


@hookspec(firstresult=True)
def find_jobs(manager: str, job_id: str, user: str, context: Context) -> Sequence[AnnotatedJob] | None:
    """Find jobs of a workload manager, ended ones too, by id or by user; first answer wins.

    Args:
        manager: Its name.
        job_id: As a user types it; empty for any.
        user: A login name; empty for anybody.
        context: Its settings, and the GPUs that gpusage knows.

    Returns:
        Those that the caller may see, with or without an annotation; ``None`` where the id is of no form that this
        manager has, or there is no such manager here.

    Raises:
        RequestError: The manager does not answer.
    """


@hookspec(firstresult=True)
def find_shared_jobs(manager: str, states: Sequence[JobState], context: Context) -> Sequence[AnnotatedJob] | None:
    """Find the jobs in one of *states* whose whole GPU became a share; may take seconds; first answer wins.

    Raises:
        RequestError: The manager does not answer.
    """


@hookspec(firstresult=True)
def restore_request(job: AnnotatedJob, reason: str, context: Context) -> bool | None:
    """Give a waiting job its user's request again, and write *reason* into its annotation; first answer wins.

    Returns:
        Whether it has it: ``False`` where this version of the manager cannot do it, and only the annotation says why.

    Raises:
        RequestError: The manager refuses, or the job waits no more.
    """


@hookspec(firstresult=True)
def find_out_of_memory_jobs(manager: str, context: Context) -> Sequence[OutOfMemoryJob] | None:
    """Find the jobs whose share's memory was too small, whether they run again or failed; first answer wins.

    Returns:
        Those that the manager still knows; ``None`` where there is no such manager here.

    Raises:
        RequestError: The manager does not answer.
    """


@hookspec(firstresult=True)
def requeue_on_whole_gpu(job: AnnotatedJob, reason: str, context: Context) -> bool | None:
    """Correct a job that ran out of memory and runs again, by its adapter's own part on the node; first answer wins.

    Give it its user's request, and write *reason* into its annotation. A job whose failure the manager has reported is
    never run again: others have acted on the report.

    Returns:
        Whether it has that request: ``False`` where this version of the manager cannot do it.

    Raises:
        RequestError: The manager refuses, or the job is not one of `find_out_of_memory_jobs`.
    """


@hookspec(firstresult=True)
def collect_usage(manager: str, context: Context) -> Sequence[Usage] | None:
    """Return the usage of jobs that ended lately, as their nodes observed it; first answer wins.

    Runs in the background, every so often, and may take seconds; the same job may be reported several times.

    Raises:
        RequestError: The manager does not answer.
    """


@hookspec(firstresult=True)
def read_accounting(manager: str, since_s: float, until_s: float, context: Context) -> Sequence[Usage] | None:
    """Return every run of a job with a GPU that ended in a time, as the manager's accounting has it; first answer wins.

    A report is of the whole cluster by it: of jobs, too, that no node sampled and for which gpusage was never asked.
    May take minutes.

    Args:
        manager: Its name.
        since_s: Those that ended then or later, seconds since 1970.
        until_s: Those that ended then or before.
        context: Its settings, and the GPUs that gpusage knows.

    Returns:
        Whose it was, when it ran, and on how many GPUs of all nodes (`Usage.gpu_count`); a share by ``granted``. What
        only a node observes is ``None``, and nothing was sampled.

    Raises:
        RequestError: The manager keeps no accounting, or does not answer.
    """


@hookspec(firstresult=True)
def read_gpu(device: str) -> GpuReading | None:
    """Read the counters of one GPU of this machine, ``None`` where it is not of your kind; first answer wins.

    Runs on a compute node, every few seconds while a job has the GPU, and must cost next to nothing.

    Args:
        device: As the job's environment names it: a number of this machine, or the GPU's own identifier.
    """


@hookspec
def add_commands() -> Sequence[object] | None:
    """Return click commands that belong under ``gpusage``; all answers count.

    A group that bears the name of another plugin's group adds its subcommands to it.
    """


@hookspec
def decision_made(record: DecisionRecord) -> None:
    """Receive a decision, soon after its response was sent; an exception here is logged and has no other effect."""


@hookspec
def usage_observed(usage: Usage) -> None:
    """Receive the usage of a job, soon after it ended; an exception here is logged and has no other effect."""

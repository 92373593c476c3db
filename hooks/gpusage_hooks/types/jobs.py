"""A job on its way: as submitted, as parsed, as its workload manager has it, and as its node observed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from gpusage_hooks.types.clusters import GpuRequest, LimitedBy
from gpusage_hooks.types.workloads import ModelRequest

Outcome = Literal["completed", "failed", "out_of_memory", "interrupted", "cancelled", "timed_out", "unknown"]
"""``failed`` is the program's own failure; ``interrupted`` one that a signal, the node, the host's memory or a command
that is not there made."""
Division = Literal["percentage", "partition", "slice", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The part of a GPU that a job really had, as a probe on the node read it back.

    Attributes:
        division: What holds the job to its part; ``whole`` where nothing does.
        share_percent: The part that the workload manager booked; 100 for a whole GPU.
        thread_percent: The percentage of the SMs that the job may use; ``None`` where nothing limits it.
        memory_limit_bytes: The limit on its device memory; ``None`` where there is none.
        limited_by: What keeps it within that limit.
        trouble: Why it is not what was asked for, one clause; empty where it is.
    """

    division: Division = "whole"
    share_percent: int = 100
    thread_percent: int | None = None
    memory_limit_bytes: int | None = None
    limited_by: LimitedBy = "none"
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one job really did on its GPUs. ``None`` means that it was not observed, never that it was none.

    Attributes:
        number: Of the decision that the job carries in its annotation; empty where it carries none.
        manager: The workload manager's name, as in `Manager`.
        job_id: In the manager's own form.
        user: By name.
        user_id: What the manager's submissions call the same user, maybe a number; ``None`` if unknown, as
            in what older releases kept.
        account: The account or queue that pays; empty if unknown.
        partition: Where it ran, by the manager's own name; empty if unknown.
        gpu: The catalogue's name, or the device's own words where the catalogue does not know it.
        gpu_count: How many GPUs it had: on the node that sampled it, or of all nodes where the accounting has it; the
            mean over its time where that changed.
        sampled_on: The node that sampled it, or the container that was sampled; empty where none was.
        started_at_s: When the job started, seconds since 1970.
        ended_at_s: When it ended.
        sampled_s: How long the device was looked at.
        alone_s: How long of that no other job was on the GPU.
        held_s: How long of that it kept the GPU from others, where each of k jobs on it keeps a k-th.
        gpu_utilization: NVML's, mean over the sampled time: the share of time with any kernel running, 0 to 1.
        peak_utilization: The same over the busiest minute.
        longest_idle_s: The longest time in which it ran no kernel, hardly any program, and read nothing.
        sm_activity: Mean share of busy SMs, 0 to 1.
        dram_activity: Mean share of the memory bandwidth, 0 to 1.
        memory_bytes: Peak of the job's own processes.
        energy_j: Of the whole GPU while the job ran.
        cpu_s: Processor time of the job.
        cpus: Processors that it was given.
        read_bytes: What it read from storage.
    """

    number: str
    manager: str
    job_id: str
    user: str
    user_id: str | None = None
    account: str = ""
    partition: str = ""
    job_name: str = ""
    gpu: str = ""
    gpu_count: float | None = None
    granted: Allocation = Allocation()
    outcome: Outcome = "unknown"
    sampled_on: str = ""
    started_at_s: float
    ended_at_s: float
    sampled_s: float = 0.0
    alone_s: float = 0.0
    held_s: float | None = None
    gpu_utilization: float | None = None
    peak_utilization: float | None = None
    longest_idle_s: float | None = None
    sm_activity: float | None = None
    dram_activity: float | None = None
    memory_bytes: int | None = None
    energy_j: float | None = None
    cpu_s: float | None = None
    cpus: int | None = None
    read_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What the counters of one GPU say at one moment. ``None`` means that the GPU has no such counter.

    Attributes:
        name: In the vendor's own words.
        gpu_utilization: The share of time with any kernel running, since the last reading or over a moment, 0 to 1.
        sm_activity: Mean share of busy SMs since the last reading, 0 to 1.
        dram_activity: Mean share of the memory bandwidth since the last reading, 0 to 1.
        energy_j: A counter that only grows; where it begins does not matter.
        process_memory_bytes: What each process on the GPU holds, by its number on this machine; ``None`` where the
            driver does not report it.
    """

    name: str
    gpu_utilization: float | None = None
    sm_activity: float | None = None
    dram_activity: float | None = None
    energy_j: float | None = None
    process_memory_bytes: Mapping[int, int | None] = field(default_factory=lambda: MappingProxyType({}))


JobState = Literal["waiting", "running", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """A submission as one workload manager handed it over, untouched: what is to be decided on.

    Attributes:
        manager: The workload manager's name, as in `Manager`.
        fields: The job's fields in the manager's own words.
        script: The job script's text, where that is all there is (offline validation).
        arguments: Of this script, as its submitter writes them behind its name.
        comment: The submitter's variable ``GPUSAGE_COMMENT``, beside a script; other submissions have it in `fields`.
        origin: For people: a script's path, or ``uid 1000``.
        until_s: When the client of gpusaged gives up, in seconds since 1970; ``None`` where it does not say.
        first_by_s: When it gives up unless a first byte has come; ``None`` where it does not wait for one.
        missed: How many jobs before this one got no answer, by the reason.
    """

    manager: str
    fields: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    script: str | None = None
    arguments: tuple[str, ...] = ()
    comment: str = ""
    origin: str = ""
    until_s: float | None = None
    first_by_s: float | None = None
    missed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """One job that ended, as a workload manager's accounting has it.

    Attributes:
        submitted_at_s: Seconds since 1970.
        duration_s: How long it ran.
        gpu_count: Whole GPUs, at least 1; a job that held a share counts as one for a GPU.
        gpu_type: The site's name of the type on which it ran, ``None`` where it is not known.
        model: As its user named it, with options: ``resnet50.onnx,batch=64``.
        time_limit_s: ``None`` where it had none.
        started_at_s: Seconds since 1970; ``None`` where it is not known.
        outcome: As in `Usage`.
        partition: Where it ran, by the manager's own name; empty if unknown.
        node: The first of its nodes; empty if unknown.
        memory_bytes: The most GPU memory that the manager's own accounting saw its processes hold at a time, or more.
        peak_utilization: The most that it saw its kernels run of the time, 0 to 1, or more.
        left_out: Why a row of the accounting is no job that ran on GPUs, for people; it has no other figures then.
    """

    job_id: str
    user: str
    submitted_at_s: float
    duration_s: float
    gpu_count: int
    gpu_type: str | None = None
    model: str | None = None
    time_limit_s: float | None = None
    started_at_s: float | None = None
    outcome: Outcome = "unknown"
    partition: str = ""
    node: str = ""
    memory_bytes: int | None = None
    peak_utilization: float | None = None
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """Who submits a job, and under what name: with the model, what identifies a job that comes again.

    Each is read from the submission when it is asked for; from then on the answer counts as one that rests on it.

    Attributes:
        fields: The submission's, in the manager's own words.
        user_field: The name of the field that names the user, by id or by name.
        account_field: The same of the account or queue that pays.
        job_name_field: The same of the job's name.
        script_digest_field: The same of the digest of its script, as in `JobIdentity`.
    """

    fields: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    user_field: str = "user"
    account_field: str = "account"
    job_name_field: str = "job_name"
    script_digest_field: str = "script_digest"

    @property
    def user(self) -> str:
        """Return the user's id or name; empty where it is not known."""
        return self.fields.get(self.user_field, "")

    @property
    def account(self) -> str:
        """Return the account or queue that pays; empty where it is not known."""
        return self.fields.get(self.account_field, "")

    @property
    def job_name(self) -> str:
        """Return the job's name; empty where it has none."""
        return self.fields.get(self.job_name_field, "")

    @property
    def script_digest(self) -> str:
        """Return the digest of the job's script; empty where it has none, or the adapter makes none."""
        return self.fields.get(self.script_digest_field, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdentity:
    """What identifies a job that came before, if all of it is known.

    Attributes:
        user: As in `Submitter`.
        fingerprint: Equal for models that do the same work, whatever their files are called.
        family: Of the model, by its name: ``resnet`` for ``resnet50``.
        script_digest: Equal for scripts that differ in numbers, comments and blanks alone; shows nothing else of them.
        request: What the job asks for, in a few words that are equal for equal requests.
    """

    user: str = ""
    account: str = ""
    job_name: str = ""
    fingerprint: str = ""
    family: str = ""
    script_digest: str = ""
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submission that was understood.

    Attributes:
        request: What it asks for.
        request_text: The same in the manager's own words, for people, for example ``gres/gpu:1``.
        model_request: ``None`` where the user said nothing to us.
        card: The model's card, where one travelled with the job.
        card_trouble: Why none did, as one sentence, where that is known.
        caveat: What may turn out otherwise when the job is submitted, as one sentence; for offline validation.
        submitter: Who submits it.
        dry_run: Nothing is submitted: its user only asks what would become of it. It is answered, not recorded.
        shows_model: It names no model, and its run is observed, as its user asks by ``learn=on``.
        first_run: Earlier runs of its script, which were observed: a request without a model. ``None`` without any.
        run_record: Name of what earlier runs of this script showed, in its user's folder of such records; for offline
            validation. Empty where the user says ``learn=off``.
    """

    submission: DecisionRequest
    request: GpuRequest
    request_text: str
    model_request: ModelRequest | None = None
    card: str | None = None
    card_trouble: str | None = None
    caveat: str | None = None
    submitter: Submitter = Submitter()
    dry_run: bool = False
    shows_model: bool = False
    first_run: ModelRequest | None = None
    run_record: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedJob:
    """A job as its workload manager has it, with the annotation that it carries.

    Attributes:
        job_id: In the manager's own form; tasks of an array that are alike may be one.
        mark: The annotation as the manager keeps it, with what others wrote beside it; empty where there is none.
        waits_for: Why it waits, in the manager's own word; empty where it does not.
        stuck: Why it seems that it can never start as it is, one clause; empty where it can.
        needs_whole_gpu: Whether it is stuck in a way that a whole GPU alone mends.
        other_types: GPU types that would do as well as the one that it names for gpusage, of a job that waits and has
            no share; where it is stuck, the first is free.
        scopes: What it waits under, as in `GpuRequest.scopes`: an administrator may have moved it.
        nodes: Where it runs, by the manager's own names; none where it does not, or that is not known.
    """

    job_id: str
    manager: str
    user: str
    state: JobState
    mark: str = ""
    waits_for: str = ""
    stuck: str = ""
    needs_whole_gpu: bool = False
    other_types: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemoryJob:
    """A job that failed on a share, most of all with CUDA's words for "out of memory" in its own output.

    Whoever may write that output may forge them: they gain one more run of that job, with what its user asked for.

    Attributes:
        job: With the annotation that it carries.
        started_at_s: When the run began that failed, seconds since 1970.
        ended_at_s: When it failed.
        final: Why it does not run again, one clause; empty where it does.
        outcome: ``out_of_memory``, or ``failed`` where nothing says so: the share may still be the reason.
    """

    job: AnnotatedJob
    started_at_s: float
    ended_at_s: float
    final: str = ""
    outcome: Outcome = "out_of_memory"

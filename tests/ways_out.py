"""Ways in which a job may get more GPU memory than its part, and what holds it; docs/slurm.md sums this table up.

Each way is a shell script of job 1, in its batch step's cgroup and as its user. `take PREFIX...` starts a process that
takes all the memory it can get and keeps it. The sentences of NVIDIA's and of the kernel's stand here in our own words,
each with its page.
"""

from __future__ import annotations

from dataclasses import dataclass

PARTITIONING = "docs.nvidia.com/deploy/mps/620/mpsv3-memory-partitioning.html"
VARIABLES = "docs.nvidia.com/deploy/mps/appendix-tools-and-interface-reference.html"
NAMESPACES = "docs.nvidia.com/deploy/mps/620/mpsv3-namespaces.html"
CONTROL = "man.archlinux.org/man/nvidia-cuda-mps-control.1"
LIMITS = "docs.nvidia.com/deploy/nvml-api/api/structnvmlSetMemoryLimits__v1__t.html"
KERNEL = "docs.kernel.org/admin-guide/cgroup-v2.html"

EACH_CLIENT = f"the pinned limit holds for each client, not for all of a job ({VARIABLES})"
NO_DAEMON = f"a program that reaches no control daemon runs as without MPS, so without its limits ({CONTROL})"
ALL_MEMORY = f"the limit of a cgroup counts all device memory of all its processes ({PARTITIONING})"
ONLY_LOWER = f"a client can lower its limit, and the variable is the client's own ({VARIABLES})"
UNSEEN = f"an entry for a device that the client does not see voids the limits ({VARIABLES})"
BY_FOLDER = f"the folder that a client connects to chooses its namespace, and its limits ({NAMESPACES})"
ONE_USER = f"a server has one user; without -m it serves no other ({CONTROL})"
ROOT_ALONE = f"limits are set by root ({LIMITS})"
MEMBERS = f"a process is moved by who may write both cgroups, and its children stay in its cgroup ({KERNEL})"
DEVICES = f"a daemon's clients see the devices that the daemon sees ({VARIABLES})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One way out.

    Attributes:
        name: What a job does.
        script: How, for `sh`.
        step: What a step of the job does meanwhile, in its own cgroup.
        other: What a job of another user's does meanwhile on the same GPU.
        wall: Whether the driver's limit on the job's cgroup holds it.
        cap: Whether MPS's variables do.
        version: Of MPS's control protocol; in v3 the job has a namespace.
        constrained: Whether ConstrainDevices holds on the node.
        late: Whether it comes before the job's wall, for which `TaskProlog` waits.
        context_mib: What each process has of a GPU beside what it allocates.
        source: NVIDIA's sentence, or the kernel's.
    """

    name: str
    script: str
    step: str = ""
    other: str = ""
    wall: bool = True
    cap: bool = False
    version: int = 2
    constrained: bool = True
    late: bool = False
    context_mib: int = 0
    source: str = ALL_MEMORY


TWO = "take; "
"""The script of a job that has its whole part already: whatever another process of it gets is beyond."""
MOVED = 'take sh -c \'echo $$ >"$TO" 2>/dev/null; exec "$0" "$@"\''
"""A process that wants to be in another cgroup before it takes memory."""
UNMAPPED = "take unshare --user --map-root-user"

WAYS = (
    # One process
    Attempt(name="one process takes all", script="take", cap=True),
    Attempt(name="small allocations until one is refused", script="take_in_pieces", cap=True),
    Attempt(name="it dies, and the next takes all", script="take; kill -9 $!; take", cap=True),
    Attempt(name="its own UUID in CUDA_VISIBLE_DEVICES", script="CUDA_VISIBLE_DEVICES=$UUID take", cap=True),
    Attempt(name="it is faster than its wall", script="take", late=True, wall=False, cap=True),
    # Several processes
    Attempt(name="two processes", script=f"{TWO}take", source=EACH_CLIENT),
    Attempt(
        name="the children of torchrun",
        script="for LOCAL_RANK in 0 1 2 3; do export LOCAL_RANK; take; done",
        source=EACH_CLIENT,
    ),
    Attempt(name="a double fork", script=f'{TWO}take sh -c \'("$0" "$@" &) & wait\'', source=EACH_CLIENT),
    Attempt(name="a daemon by setsid", script=f"{TWO}take setsid", source=EACH_CLIENT),
    Attempt(name="a daemon by nohup", script=f"{TWO}take nohup", source=EACH_CLIENT),
    Attempt(
        name="one is suspended, another takes", script=f"{TWO}kill -STOP $!; take; kill -CONT %1", source=EACH_CLIENT
    ),
    Attempt(name="the contexts of forty processes", script="contexts 40", context_mib=600, source=EACH_CLIENT),
    # Variables
    Attempt(
        name="unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        script="unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; take",
        source=ONLY_LOWER,
    ),
    Attempt(name="env -i", script="take env -i", source=NO_DAEMON),
    Attempt(name="a higher limit", script="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=80G take", source=ONLY_LOWER),
    Attempt(name="a lower limit", script="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G take", cap=True, source=ONLY_LOWER),
    Attempt(name="a limit that is none", script="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=all take", source=ONLY_LOWER),
    Attempt(
        name="an entry for an unseen GPU",
        script="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT,1=1G take",
        source=UNSEEN,
    ),
    Attempt(name="a library by LD_PRELOAD unsets the limit", script='LD_PRELOAD="$PRELOAD" take', source=ONLY_LOWER),
    Attempt(name="a forged SLURM_JOB_ID", script="SLURM_JOB_ID=2 SLURM_JOBID=2 take", cap=True),
    Attempt(
        name="forged variables of gpusage",
        script="GPUSAGE_JOB=2 GPUSAGE_DECISION=mps:100 GPUSAGE_MEMORY_MIB=80000 take",
        cap=True,
    ),
    # MPS's folders and daemons
    Attempt(name="no pipe folder", script="unset CUDA_MPS_PIPE_DIRECTORY; take", source=NO_DAEMON),
    Attempt(name="a misspelt pipe folder", script="CUDA_MPS_PIPE_DIRECTORY=/nowhere take", source=NO_DAEMON),
    Attempt(
        name="the pipe folder deleted",
        script='rm -rf "$CUDA_MPS_PIPE_DIRECTORY" 2>/dev/null; take',
        cap=True,
        source=MEMBERS,
    ),
    Attempt(
        name="the daemon told to quit",
        script="echo quit | nvidia-cuda-mps-control 2>/dev/null; take",
        cap=True,
        source=ONE_USER,
    ),
    Attempt(
        name="an MPS daemon of its own",
        script="own_daemon; unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; take",
        source=NO_DAEMON,
    ),
    # MPS v3
    Attempt(name="v3: a process in its namespace", script="take", cap=True, version=3, source=BY_FOLDER),
    Attempt(
        name="v3: the variable unset",
        script="unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; take",
        cap=True,
        version=3,
        source=BY_FOLDER,
    ),
    Attempt(
        name="v3: a higher limit",
        script="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=80G take",
        cap=True,
        version=3,
        source=BY_FOLDER,
    ),
    Attempt(
        name="v3: an entry for an unseen GPU",
        script="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,1=1G take",
        version=3,
        source=UNSEEN,
    ),
    Attempt(name="v3: two processes", script=f"{TWO}take", version=3, source=EACH_CLIENT),
    Attempt(
        name="v3: a neighbour's namespace",
        script="CUDA_MPS_PIPE_DIRECTORY=${CUDA_MPS_PIPE_DIRECTORY%1}3; unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; take",
        version=3,
        source=BY_FOLDER,
    ),
    Attempt(
        name="v3: the main socket",
        script="CUDA_MPS_PIPE_DIRECTORY=${CUDA_MPS_PIPE_DIRECTORY%/*/*}; unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; take",
        version=3,
        source=BY_FOLDER,
    ),
    # Other GPUs
    Attempt(
        name="another GPU by its index",
        script="CUDA_VISIBLE_DEVICES=1 take",
        cap=True,
        constrained=False,
        source=DEVICES,
    ),
    Attempt(
        name="another GPU by its UUID",
        script="CUDA_VISIBLE_DEVICES=$OTHER_UUID take",
        cap=True,
        constrained=False,
        source=DEVICES,
    ),
    Attempt(
        name="another GPU past MPS",
        script="unset CUDA_MPS_PIPE_DIRECTORY; CUDA_VISIBLE_DEVICES=1 take",
        cap=True,
        source=MEMBERS,
    ),
    # Other users
    Attempt(name="another user's job on the GPU", script="take", other="take", source=ONE_USER),
    Attempt(
        name="another user's job at this user's daemon",
        script="take",
        other="CUDA_MPS_PIPE_DIRECTORY=$FIRST_PIPE CUDA_VISIBLE_DEVICES=0 take",
        cap=True,
        source=ONE_USER,
    ),
    # Steps
    Attempt(name="a step beside the batch script", script="take", step="take", source=EACH_CLIENT),
    Attempt(
        name="a step without the job's variables (srun --export=NONE)",
        script="take",
        step="take env -i",
        source=NO_DAEMON,
    ),
    # Namespaces and cgroups
    Attempt(name="a user namespace of its own", script=f"{TWO}{UNMAPPED} env -i", source=MEMBERS),
    Attempt(name="a PID namespace of its own", script=f"{TWO}{UNMAPPED} --pid --fork env -i", source=MEMBERS),
    Attempt(name="a cgroup namespace of its own", script=f"{TWO}{UNMAPPED} --cgroup env -i", source=MEMBERS),
    Attempt(
        name="a mount namespace with a /run of its own",
        script=f'{UNMAPPED} --mount sh -c \'mount -t tmpfs none "$MPS" && exec "$0" "$@"\'',
        source=NO_DAEMON,
    ),
    Attempt(
        name="another job's cgroup.procs",
        script=f"export TO=$OTHER_CGROUP/cgroup.procs; {MOVED}",
        cap=True,
        source=MEMBERS,
    ),
    Attempt(name="the root's cgroup.procs", script=f"export TO=$ROOT/cgroup.procs; {MOVED}", cap=True, source=MEMBERS),
    Attempt(
        name="a cgroup that was delegated to it",
        script=f"{TWO}export TO=$DELEGATED/cgroup.procs; {MOVED}",
        source=ALL_MEMORY,
    ),
    Attempt(name="nvidia-smi sets its limit", script="raise_limit; take", cap=True, source=ROOT_ALONE),
    Attempt(
        name="root of a user namespace sets its limit",
        script="raise_limit unshare --user --map-root-user; take",
        cap=True,
        source=ROOT_ALONE,
    ),
)

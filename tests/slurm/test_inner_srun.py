"""A job whose GPU became a share runs its own `srun` lines unchanged, whatever they ask for.

The decision is fixed (40 % of a GPU), so that nothing here depends on a prediction; request, rendering, Lua, task
prolog and Slurm are the real ones.
"""

from __future__ import annotations

import json
import re
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import slurm_jobs
from gpusage.boundary.edits import make_edits
from gpusage.devices.shares import memory_cap_bytes
from gpusage.node.dividing.granted import NOT_READ_BACK, read_granted
from gpusage.service.protocol import Response, parse_line
from gpusage_hooks.types import Allocation, Cluster, Code, Decision, DecisionRequest, GpuPool
from gpusage_hooks.units import MIB
from gpusage_sandboxes import processes
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_slurm.install.node_scripts import EPILOG, PROLOG
from gpusage_slurm.install.site import Site, plan_installation
from gpusage_slurm.submission.render import render_decision
from gpusage_slurm.submission.request import parse_submission
from mps import control_in, driver_in
from slurm_jobs import GENEROUS, HeldJob, own_output, release, wait_for_state
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("empty_queue")]

POOL = GpuPool(
    gpu="v100", site_type="v100", gpu_count=2, free_gpu_count=2, mps_per_gpu=100, feature="v100", exact_feature="v100"
)
# Where a second type can be shared, a share needs the feature of the type that its user named.
OTHER = replace(POOL, gpu="h100-sxm5-80gb", site_type="h100", feature="h100", exact_feature="h100")
CLUSTER = Cluster(manager="slurm", version="any", pools=(POOL, OTHER))
SHOW = "show='echo $0 percent=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE device=$CUDA_VISIBLE_DEVICES mark=$GPUSAGE_DECISION'"
SCRIPT = f"""#!/bin/sh
#SBATCH --comment=model=r.onnx,batch=4
{SHOW}
sh -c "$show" batch
srun sh -c "$show" plain
srun --gres=gpu:1 sh -c "$show" gres
srun --gpus=1 sh -c "$show" gpus
srun --gpus-per-node=1 sh -c "$show" per-node
srun --gpus-per-task=1 sh -c "$show" per-task
srun --gpus=1 --mem-per-gpu=100M sh -c "$show" memory
srun --gpus=1 --gpu-bind=none sh -c "$show" unbound
srun --gpus=1 --gpu-bind=closest sh -c "$show" closest
srun --overcommit -n2 --gpus=1 --gpu-bind=single:1 sh -c "$show" two-tasks
srun --overlap --exact --gpus=1 sh -c "$show" overlap
srun --gres=none sh -c "$show" none
echo visible percent=$SLURM_GPUS$SLURM_GPUS_PER_NODE$SLURM_GPUS_PER_TASK$SLURM_TRES_PER_TASK
env | grep -E '^(SLURM_|GPUSAGE_|CUDA_)' | sort
"""
NEWER = """
srun --tres-per-task=gres/gpu:1 sh -c "$show" tres-per-task
srun --tres-per-task=cpu:1,gres/gpu:1 sh -c "$show" cpu-and-gpu
"""


class Daemon(socketserver.ThreadingUnixStreamServer):
    """Answers every ask whose comment names a model with 40 % of one GPU, through the real hooks."""

    daemon_threads = True


class Handler(socketserver.StreamRequestHandler):
    """One question, one answer."""

    def handle(self) -> None:
        """Answer one line."""
        request = parse_line(self.rfile.readline())
        assert isinstance(request, DecisionRequest)
        job = parse_submission(DecisionRequest(manager="slurm", fields=request.fields))
        assert job is not None
        if job.model_request is None or job.request.gpu_count != 1 or job.request.obstacles:
            self.wfile.write(Response(code=Code.KEEP, message="; ".join(job.request.obstacles)).line())
            return
        request = replace(job.request, mps_thread_percent=40, memory_cap_bytes=2**30)
        decision = Decision(code=Code.REWRITE, request=request, reasons=(), plugin="test")
        rendered = render_decision(job, decision, CLUSTER)
        assert rendered is not None
        code = Code.REWRITE if rendered.fields else Code.KEEP
        message = rendered.trouble or f"{rendered.before} -> {rendered.after}"
        self.wfile.write(Response(code=code, message=message, settings=rendered.fields).line())


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed, as `gpusage slurm install` does it."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2")), release=slurm_release) as sandbox:
        etc = sandbox.layout.etc
        path = etc / "gpusaged.sock"
        toml = etc / "gpusage.toml"
        toml.write_text(f"[daemon]\nsocket = {json.dumps(str(path))}\n{GENEROUS}")
        with pytest.MonkeyPatch.context() as patch, Daemon(str(path), Handler) as daemon:
            patch.setenv("GPUSAGE_CONFIG", str(toml))
            site = Site(
                slurm_conf=sandbox.layout.slurm_conf,
                gpusage_toml=toml,
                command=Path("gpusage"),
                libexec=sandbox.layout.libexec,
            )
            make_edits(plan_installation(site, "enforce"))
            give_mps(sandbox)
            threading.Thread(target=daemon.serve_forever, daemon=True).start()
            sandbox.restart_controller()
            sandbox.reconfigure()
            yield sandbox
            daemon.shutdown()


def mps_folder(sandbox: Sandbox) -> Path:
    """Return where the nodes keep what `gpusage-mps` writes."""
    return sandbox.layout.state / "mps"


def give_mps(sandbox: Sandbox) -> None:
    """Let the nodes' prolog and epilog find a stand-in for NVIDIA's control daemon."""
    control, conf = control_in(sandbox.layout.jobs), sandbox.layout.slurm_conf
    driver = driver_in(sandbox.layout.jobs) or "none"
    for script in (PROLOG, EPILOG):
        wrapper, copy = script.copy(sandbox.layout.etc), script.copy(sandbox.layout.libexec)
        stand_ins = f"GPUSAGE_MPS_CONTROL={control} GPUSAGE_CUDA_LIBRARY={driver}"
        path = f"PATH={sandbox.layout.jobs}/bin:/usr/bin:/bin"
        exports = f"export {stand_ins} GPUSAGE_MPS_FOLDER={mps_folder(sandbox)} {path}"
        wrapper.write_text(f"#!/bin/sh\n{exports}\nexec {copy}\n")
        wrapper.chmod(0o755)
        conf.write_text(conf.read_text().replace(f"{script.key}={copy}", f"{script.key}={wrapper}"))


def submit_held(sandbox: Sandbox, *options: str, script: str) -> HeldJob:
    """Submit *script*, held, once the stand-in for gpusaged was in time."""
    path = sandbox.layout.jobs / "job.sh"
    path.write_text(script)
    return slurm_jobs.submit_held(sandbox, *options, wrap=path)


def run_job(sandbox: Sandbox, *options: str, script: str = SCRIPT) -> tuple[str, dict[str, str]]:
    """Submit *script*, wait for its end, and return what sbatch said and what each step showed."""
    output = sandbox.layout.jobs / "output"
    output.unlink(missing_ok=True)
    held = submit_held(sandbox, f"--output={output}", *options, script=script)
    release(sandbox, held.job_id)
    wait_for_state(sandbox, held.job_id, "COMPLETED", "FAILED")
    lines = output.read_text().splitlines()
    print("\n".join([held.output, *lines]))
    return held.output, {line.split(" ", 1)[0]: line.partition(" ")[2] for line in lines if " percent=" in line}


SHARE = "percent=40 device=0 mark=mps:40"


@pytest.mark.short
@pytest.mark.parametrize(
    ("option", "visible"),
    [("--gres=gpu:1", ""), ("--gpus=1", "1"), ("--gpus-per-node=1", "1"), ("--gpus-per-task=1", "1")],
)
def test_every_inner_srun_gets_the_share_and_the_request_stays_visible(
    sandbox: Sandbox, option: str, visible: str
) -> None:
    newer = NEWER if sandbox.installation.major_minor >= (23, 11) else ""
    output, steps = run_job(sandbox, option, "--ntasks=1", script=SCRIPT + newer)
    assert "gpusage: gres/gpu:1 -> gres/mps:40" in output
    shown = {"percent=", "percent=gres/gpu=1"} if not visible else {"percent=1", "percent=gres/gpu=1"}
    assert steps.pop("visible") in shown
    assert steps.pop("none") == "percent= device= mark=mps:40"
    assert set(steps.values()) == {SHARE}
    assert len(steps) == (13 if newer else 11)


def test_a_type_that_the_user_named_is_held_by_its_feature_and_inner_sruns_run(sandbox: Sandbox) -> None:
    script = f'#!/bin/sh\n#SBATCH --comment=model=r.onnx\n{SHOW}\nsh -c "$show" batch\nsrun sh -c "$show" plain\n'
    for option in ("--gres=gpu:v100:1", "--gpus=v100:1", "--gpus-per-task=v100:1"):
        output, steps = run_job(sandbox, option, "--ntasks=1", script=script)
        assert "gres/gpu:v100:1 -> gres/mps:40, constraint v100" in output
        assert steps == {"batch": SHARE, "plain": SHARE}
    output, steps = run_job(sandbox, "--gres=gpu:v100:1", "--prefer=v100", script=script)
    assert "--prefer would stand in place" in output
    assert steps["plain"] == "percent= device=0 mark="


CONCURRENT_STEPS = """#!/bin/sh
#SBATCH --comment=model=r.onnx,batch=4 --gres=gpu:1
touch {folder}/beside-$SLURM_JOB_ID
until [ $(ls {folder}/beside-* | wc -l) = 2 ]; do sleep 0.1; done
env | grep ^CUDA_ | sort
"""


@pytest.fixture(params=[None, 16_384])
def nvml_mib(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[int | None]:
    """Let the nodes know their GPUs' memory, in MiB, by a stand-in for nvidia-smi; ``None`` where they do not."""
    program = sandbox.layout.jobs / "bin" / "nvidia-smi"
    if request.param:
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "GPU-$2, {request.param}"\n')  # nvidia-smi -i 0 --query-gpu=...
        program.chmod(0o755)
    yield request.param
    program.unlink(missing_ok=True)


def test_two_jobs_share_a_gpu_through_mps_and_may_use_their_parts_of_its_memory(
    sandbox: Sandbox, nvml_mib: int | None
) -> None:
    """A node that cannot tell its GPU's memory leaves the cap that was decided."""
    folder, mps = sandbox.layout.jobs, mps_folder(sandbox)
    gpu = "gpu-GPU-0" if nvml_mib else "gpu-0"
    cap_mib = memory_cap_bytes(nvml_mib * MIB, 40) // MIB if nvml_mib else 1024
    has_driver = (folder / "libcuda.so.1").exists()
    options = (f"--export=ALL,GPUSAGE_MPS_FOLDER={mps}", f"--output={folder}/%j.out")
    for left in folder.glob("beside-*"):
        left.unlink()
    script = CONCURRENT_STEPS.format(folder=folder)
    jobs = [submit_held(sandbox, *options, script=script).job_id for _ in range(2)]
    release(sandbox, *jobs)
    for job in jobs:
        wait_for_state(sandbox, job, "COMPLETED")
    for job in jobs:
        assert own_output(folder / f"{job}.out").split() == [
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40",
            "CUDA_MPS_CLIENT_PRIORITY=1",
            f"CUDA_MPS_LOG_DIRECTORY={mps}/{gpu}/log",
            f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={cap_mib}M",
            f"CUDA_MPS_PIPE_DIRECTORY={mps}/{gpu}/pipe",
            "CUDA_VISIBLE_DEVICES=0",
        ]
        allocation = Allocation(
            division="percentage",
            share_percent=40,
            thread_percent=40,
            limited_by="cap" if nvml_mib else "none",
            memory_limit_bytes=cap_mib * MIB if nvml_mib else None,
            trouble=NOT_READ_BACK,
        )
        fields_read = replace(allocation, trouble="")
        assert read_granted(job, folder=mps, sm_count=132) == (fields_read if has_driver else allocation)
    wait_until(lambda: not (mps / gpu / "pipe" / "running").exists())


HELD = """#!/bin/sh
#SBATCH --comment=model=r.onnx,batch=4 --gres=gpu:1
touch {folder}/held-$SLURM_JOB_ID
until [ -e {folder}/go ]; do sleep 0.1; done
echo $CUDA_MPS_PIPE_DIRECTORY
"""


def test_a_share_and_its_mps_daemon_outlive_the_slurmd_of_their_node(sandbox: Sandbox) -> None:
    """A job of before the restart and one of after it are clients of one daemon, which ends with the last of them."""
    folder, mps, node = sandbox.layout.jobs, mps_folder(sandbox), sandbox.nodes()[0]
    log, go = folder / "nvidia-cuda-mps-control.log", folder / "go"
    for path in (log, go):
        path.unlink(missing_ok=True)
    options = (f"--export=ALL,GPUSAGE_MPS_FOLDER={mps}", f"--output={folder}/%j.out")

    def begun() -> str:
        job = submit_held(sandbox, *options, script=HELD.format(folder=folder)).job_id
        release(sandbox, job)
        wait_until((folder / f"held-{job}").exists)
        return job

    def start_time() -> str:
        return re.findall(r"SlurmdStartTime=(\S+)", sandbox.run("scontrol", "show", "node", node).stdout)[0]

    before, slurmd, started = begun(), sandbox.pid(node), start_time()
    assert slurmd is not None
    processes.kill([slurmd])
    sandbox.start_node(node)
    wait_until(lambda: start_time() != started)  # the new one has told slurmctld that it is there
    sandbox.wait_for_nodes()
    jobs = [before, begun()]
    go.touch()
    for job in jobs:
        wait_for_state(sandbox, job, "COMPLETED")
    assert [own_output(folder / f"{job}.out").strip() for job in jobs] == [f"{mps}/gpu-0/pipe"] * 2
    wait_until(lambda: not (mps / "gpu-0" / "pipe" / "running").exists())
    assert [line.split()[0] for line in log.read_text().splitlines() if line[:2] == "-d" or line == "quit"] == [
        "-d",
        "quit",
    ]


def test_cpus_that_a_task_asks_for_beside_its_gpu_stay(sandbox: Sandbox) -> None:
    script = "#!/bin/sh\n#SBATCH --comment=model=r.onnx\nsrun sh -c 'echo cpus percent=$SLURM_CPUS_ON_NODE'\n"
    _, steps = run_job(sandbox, "--gpus-per-task=1", "--ntasks=1", "--cpus-per-task=3", script=script)
    assert steps["cpus"] == "percent=3" if sandbox.installation.major_minor >= (23, 11) else steps["cpus"]


def test_a_job_that_a_shared_job_submits_gets_the_whole_gpu_that_it_asks_for(sandbox: Sandbox) -> None:
    """It inherits the enclosing job's environment, marks and all; only Slurm's own variables are about itself."""
    inner = sandbox.layout.jobs / "inner.sh"
    inner.write_text(SCRIPT.replace("#SBATCH --comment=model=r.onnx,batch=4\n", ""))
    output = sandbox.layout.jobs / "inner-output"
    script = f"#!/bin/sh\n#SBATCH --comment=model=r.onnx\nsbatch --wait --gres=gpu:1 --output={output} {inner}\n"
    message, _ = run_job(sandbox, "--gres=gpu:1", script=script)
    assert "gres/mps:40" in message
    lines = output.read_text().splitlines()
    steps = {line.split(" ", 1)[0]: line.partition(" ")[2] for line in lines if " percent=" in line}
    whole = {name: text for name, text in steps.items() if name not in ("none", "visible")}
    assert len(whole) == 11
    assert all(text.endswith("mark=") and "percent= " in text and "device= " not in text for text in whole.values())
    assert not [line for line in lines if line.startswith(("GPUSAGE_DECISION", "GPUSAGE_CARD", "CUDA_MPS_"))]


@pytest.mark.parametrize(
    "options",
    [
        ("--gres=gpu:2",),
        ("--gpus=1", "--cpus-per-gpu=2"),
        ("--gpus=1", "--mem-per-gpu=1G"),
        ("--gres=gpu:1", "--exclusive"),
        ("--gres=gpu:1", "--ntasks=2"),
        ("--gres=mps:20",),
    ],
)
def test_what_a_share_would_break_runs_as_it_was_written(sandbox: Sandbox, options: tuple[str, ...]) -> None:
    script = "#!/bin/sh\n#SBATCH --comment=model=r.onnx\necho batch percent=${GPUSAGE_DECISION:-none}\n"
    output, steps = run_job(sandbox, *options, script=script)
    assert " -> " not in output
    assert steps["batch"] == "percent=none"


def test_a_script_with_an_srun_that_no_share_could_carry_keeps_its_gpu_and_runs(sandbox: Sandbox) -> None:
    line = f'{SHOW}\nsrun --gpus=1 --cpus-per-gpu=1 sh -c "$show" counted\n'
    output, steps = run_job(sandbox, "--gres=gpu:1", script=f"#!/bin/sh\n#SBATCH --comment=model=r.onnx\n{line}")
    assert "--cpus-per-gpu for an srun" in output
    assert steps == {"counted": "percent= device=0 mark="}


def test_what_salloc_inside_a_share_gets_is_a_whole_gpu_of_its_own(sandbox: Sandbox) -> None:
    line = f'{SHOW}\nsalloc -Q --gres=gpu:1 srun --gpus=1 sh -c "$show" inside\n'
    _, steps = run_job(sandbox, "--gres=gpu:1", script=f"#!/bin/sh\n#SBATCH --comment=model=r.onnx\n{line}")
    assert steps["inside"].endswith("device=1 mark=")


def test_a_direct_srun_keeps_its_gpu(sandbox: Sandbox) -> None:
    done = sandbox.run("srun", "--gres=gpu:1", "--comment=model=r.onnx", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert done.stdout == "0\n"


def test_export_none_reaches_the_share_as_well(sandbox: Sandbox) -> None:
    output, steps = run_job(sandbox, "--gres=gpu:1", "--export=NONE")
    assert "gres/mps:40" in output
    assert {name for name, text in steps.items() if "percent=40 device=0" in text} == set(steps) - {"none", "visible"}

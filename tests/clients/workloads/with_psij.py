from pathlib import Path

from psij import Job, JobAttributes, JobExecutor, JobSpec, ResourceSpecV1
from psij.executors.batch.slurm import SlurmExecutorConfig

MODELS = {
    "small": "model=small.onnx,batch=8,mode=infer",
    "large": "model=large.onnx,batch=52,mode=train,utilization=20",
}
executor = JobExecutor.get_instance("slurm", config=SlurmExecutorConfig(queue_polling_interval=1))


def submit(name):
    job = Job(
        JobSpec(
            executable="python",
            arguments=["training.py", name],
            directory=Path.cwd(),
            stdout_path=Path(f"{name}.txt").absolute(),
            resources=ResourceSpecV1(gpu_cores_per_process=1),
            attributes=JobAttributes(custom_attributes={"slurm.comment": MODELS[name]}),
        )
    )
    executor.submit(job)
    return job


for job in [submit(name) for name in MODELS]:
    status = job.wait()
    print(status.state.name, status.exit_code)

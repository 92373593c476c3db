from pathlib import Path

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import SlurmProvider

MODELS = {
    "small": "model=small.onnx,batch=8,mode=infer",
    "large": "model=large.onnx,batch=52,mode=train,utilization=20",
}


def executor(name):
    provider = SlurmProvider(
        exclusive=False,  # parsl asks for whole nodes otherwise, and gpusage leaves those alone
        scheduler_options=f"#SBATCH --gres=gpu:1\n#SBATCH --comment={MODELS[name]}",
        worker_init=f"export PYTHONPATH={Path.cwd()}",
        walltime="00:10:00",
        init_blocks=1,
        max_blocks=1,
    )
    return HighThroughputExecutor(label=name, max_workers_per_node=1, address="127.0.0.1", provider=provider)


def run(name):
    from training import train

    return train(name)


with parsl.load(Config(executors=[executor(name) for name in MODELS])):
    for future in [parsl.python_app(run, executors=[name])(name) for name in MODELS]:
        print(future.result(), future.task_status())

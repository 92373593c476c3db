import submitit
from training import train

MODELS = {
    "small": "model=small.onnx,batch=8,mode=infer",
    "large": "model=large.onnx,batch=52,mode=train,utilization=20",
}


def submit(name):
    executor = submitit.AutoExecutor(folder="submitit", cluster="slurm")
    executor.update_parameters(timeout_min=10, slurm_additional_parameters={"gres": "gpu:1", "comment": MODELS[name]})
    return executor.submit(train, name)


for job in [submit(name) for name in MODELS]:
    print(job.result())

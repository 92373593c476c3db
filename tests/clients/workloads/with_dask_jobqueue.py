from contextlib import ExitStack

from dask_jobqueue import SLURMCluster
from distributed import Client
from training import train

MODELS = {
    "small": "model=small.onnx,batch=8,mode=infer",
    "large": "model=large.onnx,batch=52,mode=train,utilization=20",
}

with ExitStack() as stack:
    clients = {}
    for name, model in MODELS.items():  # workers of one kind for each model
        cluster = stack.enter_context(
            SLURMCluster(
                cores=1,
                memory="1GB",
                walltime="00:10:00",
                job_extra_directives=["--gres=gpu:1", f"--comment={model}"],
            )
        )
        cluster.scale(jobs=1)
        clients[name] = stack.enter_context(Client(cluster))
    for future in [client.submit(train, name) for name, client in clients.items()]:
        print(future.result(), future.status)

"""Does in advance what makes the first prediction slow: imports modules, reads tables, fills caches."""

from __future__ import annotations

import logging
from importlib import import_module

from gpusage.decisions.advisor import Advisor
from gpusage.plugins.error_text import sentence
from gpusage.predictors.sharing.colocation import slowdown_with_partners
from gpusage_hooks.types import Cluster, DecisionRequest, Interval, ModelGraph, Node, Workload

_log = logging.getLogger(__name__)
_WORKLOADS = (Workload(), Workload(mode="infer", optimizer="none", precision="fp16"))


def warm_up_predictors(advisor: Advisor, cluster: Cluster) -> None:
    """Import adapter and policies, predict and price a small model on every GPU of *cluster*; failing is for a job."""
    try:
        submission = DecisionRequest(manager=cluster.manager, fields={})
        advisor.hooks.parse_submission(submission, advisor.context(cluster.manager))
        gpus = [advisor.catalogue.find(pool.gpu) for pool in cluster.pools if pool.gpu is not None]
        for workload in _WORKLOADS:
            advisor.predict(_small_model(), workload, gpus)
            advisor.price(_small_model(), workload, gpus, advisor.rules.sharing.sizes)
        import_module("gpusage.policies.stages")
        slowdown_with_partners(Interval(value=1.1, low=1.0, high=1.2), partners=1)
    except Exception as error:  # predictors are plugins
        _log.warning("warming up failed: %s", sentence(error))


def _small_model() -> ModelGraph:
    convolution = Node(
        op_type="Conv",
        inputs=((-1, 3, 32, 32),),
        outputs=((-1, 8, 32, 32),),
        parameters=((8, 3, 3, 3),),
        attributes=(("kernel_shape", (3, 3)), ("pads", (1, 1, 1, 1)), ("strides", (1, 1))),
    )
    relu = Node(op_type="Relu", inputs=((-1, 8, 32, 32),), outputs=((-1, 8, 32, 32),))
    product = Node(op_type="Gemm", inputs=((-1, 8192),), outputs=((-1, 10),), parameters=((8192, 10),))
    return ModelGraph(
        name="small",
        source="small",
        nodes=(convolution, relu, product),
        producers=((-1,), (0,), (1,)),
        inputs=(("x", (-1, 3, 32, 32)),),
        parameter_count=8 * 27 + 81920,
    )

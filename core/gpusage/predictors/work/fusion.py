"""What a compiler makes of a forward pass: operators that follow one another become one kernel.

So PyTorch's Inductor treats operators on single numbers, normalizations and sums: nothing between those of a group goes
through memory. Convolutions, products and attentions stay kernels of their libraries. Views start no kernel, and what
lies in another order is read as it lies.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpusage.precisions import AUTOCAST, PURE
from gpusage.predictors.work.lowering import Lowering, divided
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Workload

_C = OperatorClass
_FUSED = (_C.ELEMENTWISE, _C.BATCH_NORMALIZATION, _C.NORMALIZATION, _C.REDUCTION, _C.COPY)
_FUSES = np.array([one in _FUSED for one in OperatorClass])
MEASURED = (*AUTOCAST, *PURE.values())
"""In inference; no compiled run in fp32, and none that trains, is in public data that we may use."""


def is_fused(workload: Workload) -> bool:
    """Tell whether *workload* is compiled and of a kind that was measured compiled."""
    plain = workload.mode == "infer" and workload.generate is None
    return workload.compile and plain and workload.precision in MEASURED


def fused(lowering: Lowering) -> Lowering:
    """Return the work of a pass whose operators are fused, one kind for all nodes that lose as much by it."""
    structure, kind = lowering.structure, lowering.structure.kind_of_node
    classes, count = lowering.operator_class[kind], len(kind)
    fuses = _FUSES[classes]
    works = classes[structure.destinations] != OperatorClass.VIEW
    source, reader = structure.sources[works], structure.destinations[works]
    of_both = fuses[source] & fuses[reader]
    unread_bytes = np.bincount(reader, lowering.output_bytes[kind][source] * of_both, count)
    readers = np.bincount(source, minlength=count)
    is_passed_on = fuses & (readers > 0) & (np.bincount(source, of_both, count) == readers)
    changes, labels = np.unique(np.stack([unread_bytes, is_passed_on]), axis=1, return_inverse=True)
    whole, label_of_kind = divided(lowering, labels.reshape(-1))
    not_read, passed_on = changes[:, label_of_kind]
    stays = 1.0 - passed_on
    return replace(
        whole,
        read_bytes=np.maximum(whole.read_bytes - not_read, 0.0),
        written_bytes=whole.written_bytes * stays,
        sequential_steps=whole.sequential_steps * stays,
        trips=whole.trips * stays,
        across_bytes=np.zeros_like(whole.across_bytes),
    )

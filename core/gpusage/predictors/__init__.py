"""What a workload needs on a GPU, predicted from its graph.

* ``work``: each node as numpy columns, and the passes of a generated answer; ``parallel``: the part of one of several
  GPUs.
* ``times``: kernels and how long they take, a step, how busy it keeps a GPU; ``memory``: tensors that live at once, and
  the peak; ``sharing``: a share of a GPU, its host, partners.
* ``step_work`` and ``analysis`` compute all of that on first use, ``needs`` answers the hook with it, ``known`` puts
  observed figures in its place, ``explanation`` takes it apart.
* ``artifacts`` are the learned values, ``intervals`` how far off they may be, ``extrapolation`` when not to trust them.

Decisions: docs/decisions/predictors.md
"""

"""What a workload needs on a GPU, predicted from its graph.

In the order of a prediction:

- *The work of a step:* ``operators``, ``layouts``, ``structure``, ``kind_table``, ``lowering``, ``checkpoints``,
  ``sequences``, ``generation``, ``kernels``.
- *Its time:* ``efficiency``, ``kernel_times``, ``gradients``, ``residual``, ``step_time``.
- *Several GPUs:* ``divisions``, ``links``, ``data_parallel``, ``model_parallel``, ``context_parallel``,
  ``expert_parallel``; where a model generates, ``tensor_parallel``, ``pipeline``.
- *Its memory:* ``liveness``, ``memory``. *Its utilization:* ``activity``, with ``trees``.
- *All of it, cached with the graph:* ``analysis``; its interval and limits: ``intervals``, ``extrapolation``.
- *Shares and partners:* ``host``, ``slowdown``, ``colocation``.
- *The hooks:* ``needs``, ``known``, ``slowdown``, ``colocation``; ``explanation`` takes a prediction apart.
- *What was learned:* ``artifacts`` and ``arrays`` read ``pretrained/``.

Decisions: docs/decisions/predictors.md
"""

"""Predicts what a deep-learning job needs from a GPU, and decides what it should ask for.

```python
graph = gpusage.read_model("resnet50.onnx")
need = gpusage.predict(graph, gpu="a100", batch_size=64, mode="train")
need.step_time_s.value, need.memory_bytes.high
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusage.api import largest_batch, predict, predict_colocation, read_model

__all__ = ["largest_batch", "predict", "predict_colocation", "read_model"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the API holds
    """Import the API only when it is used: `import gpusage.configuration` must stay light."""
    if name not in __all__:
        message = f"module 'gpusage' has no attribute {name!r}"
        raise AttributeError(message)
    from gpusage import api  # noqa: PLC0415 - that is the point

    return getattr(api, name)

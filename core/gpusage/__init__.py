"""Predicts what a deep-learning job needs from a GPU, and decides what it should ask for.

```python
graph = gpusage.read_model("resnet50.onnx")
need = gpusage.predict(graph, gpu="a100", batch_size=64, mode="train")
need.step_time_s.value, need.required_bytes.high
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusage.python.functions import explain, largest_batch, predict, predict_colocation, read_model
    from gpusage.python.results import Explained, Need, Needs
    from gpusage_hooks.errors import GpuUsageError

    __version__: str

__all__ = [
    "Explained",
    "GpuUsageError",
    "Need",
    "Needs",
    "__version__",
    "explain",
    "largest_batch",
    "predict",
    "predict_colocation",
    "read_model",
]

_HOMES = {
    "Explained": "gpusage.python.results",
    "GpuUsageError": "gpusage_hooks.errors",
    "Need": "gpusage.python.results",
    "Needs": "gpusage.python.results",
}


def __getattr__(name: str) -> Any:  # whatever the API holds
    """Import the API only when it is used: `import gpusage.settings.configuration` must stay light."""
    if name not in __all__:
        message = f"module 'gpusage' has no attribute {name!r}"
        raise AttributeError(message)
    if name == "__version__":
        return import_module("importlib.metadata").version("gpusage")
    return getattr(import_module(_HOMES.get(name, "gpusage.python.functions")), name)


def __dir__() -> list[str]:
    return [*__all__]

"""A host without a GPU that passes for a GPU node: calls for 'cuda' run on the CPU."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
NAME = "NVIDIA H100 80GB HBM3"
MEMORY_BYTES = 80 << 30
_ZERO = (
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved current_device utilization initial_seed"
)
_NOTHING = (
    "synchronize empty_cache set_device manual_seed manual_seed_all seed seed_all init _lazy_init ipc_collect "
    "reset_peak_memory_stats reset_max_memory_allocated set_rng_state set_rng_state_all "
    "set_per_process_memory_fraction"
)
_TENSOR_TYPES = "Float Double Half BFloat16 Byte Char Short Int Long Bool"
# Functions that take a device by position.
_MOVES = frozenset({"to", "type", "empty_like", "zeros_like", "ones_like", "rand_like", "randn_like"})


def on_cpu(value: Any) -> Any:
    """Return the CPU for a GPU device, and any other *value* as it is."""
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    is_gpu = isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))
    return CPU if is_gpu else value


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class CudaOnCpu(TorchFunctionMode):
    """Maps each GPU device in a call to the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call *func* with its devices mapped."""
        keywords, name = dict(kwargs or {}), getattr(func, "__name__", "")
        # Programs check that a tensor has moved, so each tensor passes for one on a GPU.
        if name == "cuda" and args and isinstance(args[0], torch.Tensor):
            return args[0]
        if name == "pin_memory":
            return args[0]
        if name == "__get__" and getattr(getattr(func, "__self__", None), "__name__", "") == "is_cuda":
            return True
        # A device may be named and compared; only what is put there is mapped.
        if func is torch.device:
            return func(*args, **keywords)

        if "device" in keywords:
            keywords["device"] = CPU if _is_index(keywords["device"]) else on_cpu(keywords["device"])
        if name in _MOVES:
            args = tuple(on_cpu(value) for value in args)
            if name == "to" and len(args) > 1 and _is_index(args[1]):
                args = (args[0], CPU, *args[2:])

        # Pinned memory needs a GPU's driver.
        if keywords.get("pin_memory"):
            keywords["pin_memory"] = False
        return func(*args, **keywords)


class _Inert:
    """A stream or an event: every method of it does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: 0.0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _GeneratorOnCpu(torch.Generator):
    """A generator of random numbers on the CPU, for any device."""

    def __new__(cls, *_: object, **__: object) -> Any:
        """Return a generator on the CPU."""
        new: Any = super().__new__
        return new(cls, device=CPU)


def pretend_cuda(count: int) -> None:
    """Let `torch.cuda` answer as on a host with *count* GPUs; `CudaOnCpu` maps devices."""
    cuda: Any = torch.cuda
    for name in _ZERO.split():
        setattr(cuda, name, lambda *_, **__: 0)
    for name in _NOTHING.split():
        setattr(cuda, name, lambda *_, **__: None)
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.device_count = lambda: count
    cuda.get_device_name = lambda *_: NAME
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.is_bf16_supported = lambda *_, **__: True
    cuda.mem_get_info = lambda *_: (MEMORY_BYTES, MEMORY_BYTES)
    cuda.memory_stats = lambda *_, **__: {}
    cuda.get_rng_state = lambda *_: torch.get_rng_state()
    cuda.get_rng_state_all = lambda: [torch.get_rng_state()]
    properties = {"name": NAME, "major": 9, "minor": 0, "total_memory": MEMORY_BYTES, "multi_processor_count": 132}
    cuda.get_device_properties = lambda *_: SimpleNamespace(**properties)
    # Without a GPU there is nothing to wait for.
    cuda.Event = cuda.Stream = _Inert
    cuda.stream = cuda.device = lambda *_, **__: nullcontext()
    cuda.current_stream = cuda.default_stream = lambda *_, **__: _Inert()
    _pretend_accelerator(count)
    _map_modules()
    _map_types()


def _pretend_accelerator(count: int) -> None:
    accelerator: Any = getattr(torch, "accelerator", None)  # PyTorch 2.6 and later
    if accelerator is None:
        return

    accelerator.is_available = lambda: True
    accelerator.device_count = lambda: count
    accelerator.current_accelerator = lambda *_, **__: torch.device("cuda")
    accelerator.current_device_index = accelerator.current_device_idx = lambda: 0
    for name in ("synchronize", "set_device_index", "set_device_idx", "empty_cache"):
        setattr(accelerator, name, lambda *_, **__: None)


def _map_types() -> None:
    """Map a GPU's generator and tensor types, which older programs name, to the CPU's."""
    anything: Any = torch
    anything.Generator = _GeneratorOnCpu
    for name in _TENSOR_TYPES.split():
        setattr(torch.cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    set_default_type = anything.set_default_tensor_type
    anything.set_default_tensor_type = lambda kind: set_default_type(
        kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind
    )


def _map_modules() -> None:
    module: Any = nn.Module
    move = module.to

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if kwargs.get("device") is not None:
            kwargs["device"] = CPU
        moved: nn.Module = move(self, *(CPU if _is_index(value) else on_cpu(value) for value in args), **kwargs)
        return moved

    module.to = to
    module.cuda = lambda self, device=None: self.to(CPU)  # Module.cuda's signature
    defaults: Any = torch
    set_default_device = defaults.set_default_device
    defaults.set_default_device = lambda device: set_default_device(on_cpu(device))

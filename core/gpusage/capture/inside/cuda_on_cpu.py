"""A host without a GPU that passes for a GPU node: calls for 'cuda' run on the CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import wraps
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gpusage.graphs.torch.libraries import replaced

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
NAME = "NVIDIA H100 80GB HBM3"
MEMORY_BYTES = 80 << 30
_TENSOR_TYPES = "Float Double Half BFloat16 Byte Char Short Int Long Bool"
# Functions that take a device by position.
_MOVES = frozenset({"to", "type", "empty_like", "zeros_like", "ones_like", "rand_like", "randn_like"})


def on_cpu(value: Any) -> Any:
    """Return the CPU for a GPU device, also for its number, and any other *value* as it is."""
    if isinstance(value, int):
        return value if isinstance(value, bool) else CPU
    is_gpu = isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"
    return CPU if is_gpu else value


def for_a_tracer() -> AbstractContextManager[None]:
    """Let tensors show where they are, and inference mode be what it is."""
    return replaced((CudaOnCpu, "is_pretending", False))


class CudaOnCpu(TorchFunctionMode):
    """Maps each GPU device in a call to the CPU."""

    is_pretending = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call *func* with its devices mapped."""
        keywords, name = dict(kwargs or {}), getattr(func, "__name__", "")
        # Programs check that a tensor has moved, so each tensor passes for one on a GPU.
        if name == "cuda" and args and isinstance(args[0], torch.Tensor):
            return args[0]
        if name == "pin_memory":
            return args[0]
        attribute = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else ""
        if attribute == "is_cuda":
            return True
        if attribute == "device" and self.is_pretending:
            device = func(*args)
            return GPU if device == CPU else device
        # A device may be named and compared; only what is put there is mapped.
        if func is torch.device:
            return func(*args, **keywords)

        if "device" in keywords:
            keywords["device"] = on_cpu(keywords["device"])
        if name in _MOVES:
            args = (*args[:1], *map(on_cpu, args[1:]))

        # Pinned memory needs a GPU's driver.
        if keywords.get("pin_memory"):
            keywords["pin_memory"] = False
        return func(*args, **keywords)


class Inert:
    """A stream, an event, a profiler or a context: every method of it does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: 0.0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Zero(int):
    """The result of a function that needs a GPU: a number, or a context."""

    __enter__ = __exit__ = lambda *_: None


class _GeneratorOnCpu(torch.Generator):
    """A generator of random numbers on the CPU, for any device."""

    def __new__(cls, *_: object, **__: object) -> Any:
        """Return a generator on the CPU."""
        new: Any = super().__new__
        return new(cls, device=CPU)


def pretend_cuda(count: int) -> None:
    """Let `torch.cuda` answer as on a host with *count* GPUs; `CudaOnCpu` maps devices."""
    anything: Any = torch
    accelerator = getattr(anything, "accelerator", SimpleNamespace())  # PyTorch 2.6 and later
    modules = (anything.cuda, anything.cuda.memory, anything.cuda.random, anything.cuda.nvtx, accelerator)
    for module in modules:
        _silence(module)

    properties = {"name": NAME, "major": 9, "minor": 0, "total_memory": MEMORY_BYTES, "multi_processor_count": 132}
    answers = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "is_tf32_supported": True,
        "device_count": count,
        "get_device_name": NAME,
        "get_device_capability": (9, 0),
        "get_device_properties": SimpleNamespace(**properties),
        "get_arch_list": ["sm_90"],
        "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
        "memory_stats": {},
        "memory_summary": "",
        "get_rng_state": torch.get_rng_state(),
        "get_rng_state_all": [torch.get_rng_state()],
        "current_stream": anything.cuda.Stream(),
        "default_stream": anything.cuda.Stream(),
        "current_accelerator": torch.device("cuda"),
    }
    for module in modules:
        for name in answers.keys() & vars(module).keys():
            setattr(module, name, _constant(getattr(module, name), answers[name]))
    anything.cuda.make_graphed_callables = lambda callables, *_, **__: callables
    # What a file says lay on a GPU stays where it was read.
    torch.serialization.register_package(
        0, lambda _: None, lambda storage, location: storage if str(location).startswith("cuda") else None
    )
    anything.UntypedStorage.cuda = anything.TypedStorage.cuda = lambda self, *_, **__: self
    anything.backends.cudnn.is_acceptable = lambda _: False  # for recurrent layers, whose weights it would put in a row
    enter = anything.inference_mode.__enter__

    def enter_without_gradients(self: Any) -> None:
        # Tensors of this mode refuse a later use in training, and a tracer needs them.
        if CudaOnCpu.is_pretending:
            self._inference_mode_context = torch.set_grad_enabled(not self.mode)
        else:
            enter(self)

    anything.inference_mode.__enter__ = enter_without_gradients
    _map_modules()
    _map_types()


def _silence(module: Any) -> None:
    """Let every function of *module* return zero, and make its classes ones that do nothing, for there is no GPU."""
    for name, value in list(vars(module).items()):
        # Functions that PyTorch's own modules share are defined elsewhere.
        if not str(getattr(value, "__module__", "")).startswith(("torch.cuda", "torch.accelerator")):
            continue
        if isinstance(value, FunctionType):
            setattr(module, name, _constant(value, _Zero()))
        # A class stays one, because programs ask whether an object is of it.
        elif isinstance(value, type) and not (issubclass(value, Exception) or name.endswith(("Tensor", "Storage"))):
            setattr(module, name, type(name, (Inert,), {}))


def _constant(function: Any, value: Any) -> Any:
    """Return a function that passes for *function*, and returns *value*."""
    return wraps(function)(lambda *_, **__: value)


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
        moved: nn.Module = move(self, *map(on_cpu, args), **kwargs)
        return moved

    module.to = to
    module.cuda = lambda self, device=None: self.to(CPU)  # Module.cuda's signature
    defaults: Any = torch
    set_default_device = defaults.set_default_device
    defaults.set_default_device = lambda device: set_default_device(on_cpu(device))

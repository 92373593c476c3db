"""Changes of heavy libraries when the program imports them, for a light way to its first step."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from gpusage.capture.inside.cuda_on_cpu import CPU
from gpusage.capture.inside.light import LeftOut, substitute
from gpusage.capture.inside.observer import Wrapper

_COMPILED_OPTIMIZERS = ("DeepSpeedCPUAdam", "FusedAdam")


class LibraryFinder:
    """Finds libraries by the other finders, and changes each, by its name, after its import.

    Some programs look for a library and do not import it, so a change stays until then.
    """

    def __init__(self, changes: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._changes = dict(changes)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the place of the library *name*; ``None`` for any other module."""
        if name not in self._changes:
            return None
        finders = [each.find_spec for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        spec = next(filter(None, (find(name, path, target) for find in finders)), None)
        loader: Any = spec.loader if spec else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                # Another finder may have asked this one again, so that the loader is wrapped twice.
                if change := self._changes.pop(name, None):
                    change(module)

            loader.exec_module = exec_module
        return spec


def make_libraries_light(left_out: LeftOut, after_step: Callable[[Any], None]) -> None:
    """Change each library that the program imports from now on; *left_out* notes its calls of them.

    In the place of an update *after_step* is called, with the optimizer in PyTorch's form.
    """
    changes: Mapping[str, Callable[[ModuleType], None]] = {
        "deepspeed": lambda deepspeed: _run_deepspeed_alone(deepspeed, left_out),
        "keras": lambda keras: _observe_keras(keras, left_out, after_step),
    }
    finder: Any = LibraryFinder(changes)
    sys.meta_path.insert(0, finder)


class InertOptimizer(torch.optim.SGD):
    """Replaces an optimizer that would be compiled first; its subclass has the optimizer's name."""

    def __init__(
        self,
        params: Any = None,
        lr: float = 0.0,
        *_: object,
        model_params: Any = None,  # DeepSpeedCPUAdam's name for it
        momentum: float = 0.0,
        **__: object,
    ) -> None:
        super().__init__(model_params if params is None else params, lr=float(lr), momentum=momentum)


class DeepSpeedEngine(Wrapper):
    """Replaces DeepSpeed's engine: it divides nothing, and calls its optimizer as the real engine does.

    Without an *optimizer* it is for inference; *settings* are DeepSpeed's.
    """

    device = CPU
    local_rank = global_rank = global_steps = 0

    def __init__(self, module: nn.Module, optimizer: Any, settings: Mapping[str, Any]) -> None:
        super().__init__(module)
        self.optimizer, self.config = optimizer, settings
        self._passes = 0
        self._is_boundary: bool | None = None

    def backward(self, loss: torch.Tensor, **_: object) -> torch.Tensor:
        """Compute the gradients."""
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def step(self, **_: object) -> None:
        """Update the weights if this pass is the last of an accumulation."""
        self._passes += 1
        if self.is_gradient_accumulation_boundary() and self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def is_gradient_accumulation_boundary(self) -> bool:
        """Return whether the weights are updated after this pass."""
        is_last = self._passes % self.gradient_accumulation_steps() == 0
        return is_last if self._is_boundary is None else self._is_boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Let the program itself set the boundary, as accelerate does."""
        self._is_boundary = is_boundary

    def gradient_accumulation_steps(self) -> int:
        """Return the number of passes of an update."""
        return self._batches()[1]

    def zero_optimization_stage(self) -> int:
        """Return the stage of ZeRO: 0 divides nothing, 3 everything."""
        return int(self.config.get("zero_optimization", {}).get("stage", 0))

    def bfloat16_enabled(self) -> bool:
        """Return whether the real engine casts the weights to bf16."""
        return bool(self.config.get("bf16", {}).get("enabled"))

    def fp16_enabled(self) -> bool:
        """Return whether the real engine casts the weights to fp16."""
        return bool(self.config.get("fp16", {}).get("enabled"))

    def train_micro_batch_size_per_gpu(self) -> int:
        """Return the batch of a pass."""
        return self._batches()[0]

    def train_batch_size(self) -> int:
        """Return the batch of an update on all GPUs."""
        part, steps = self._batches()
        return part * steps * _process_count()

    def get_lr(self) -> list[float]:
        """Return the learning rate of each group of weights."""
        return [group["lr"] for group in self.optimizer.param_groups] if self.optimizer is not None else []

    def _batches(self) -> tuple[int, int]:
        """Return the batch of a pass, and the passes of an update."""
        names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        # DeepSpeed: train_batch_size = micro batch x accumulation x processes.
        whole, part, steps = (self.config.get(name) for name in names)
        if whole is None:
            return part or 1, steps or 1
        of_gpu = whole // _process_count()
        part = part or max(of_gpu // (steps or 1), 1)
        return part, steps or max(of_gpu // part, 1)


def _process_count() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _run_deepspeed_alone(deepspeed: Any, left_out: LeftOut) -> None:
    """Let DeepSpeed compile and divide nothing."""

    def initialize(
        args: Any = None,
        model: Any = None,
        optimizer: Any = None,
        model_parameters: Any = None,
        training_data: Any = None,
        lr_scheduler: Any = None,
        **words: Any,
    ) -> tuple[Any, Any, Any, Any]:
        config = words.get("config") or words.get("config_params") or args.deepspeed_config
        settings = config if isinstance(config, Mapping) else json.loads(Path(config).read_text(encoding="utf-8"))
        # A program names its optimizer as an object, as a function of the weights, or in DeepSpeed's settings.
        weights = [*(model_parameters if model_parameters is not None else model.parameters())]
        named = settings.get("optimizer")
        if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer(weights)
        elif optimizer is None and named:
            optimizer = type(named["type"], (InertOptimizer,), {})(weights, **named.get("params", {}))

        engine = engine_class(model, optimizer, settings)
        # It casts the weights itself.
        left_out.strategy = f"zero{engine.zero_optimization_stage()}".replace("zero0", "ddp")
        casts = {"bf16": engine.bfloat16_enabled(), "fp16": engine.fp16_enabled()}
        left_out.precision = next((word for word, is_on in casts.items() if is_on), None)
        loader = None
        if training_data is not None:
            batch, collate = engine.train_micro_batch_size_per_gpu(), words.get("collate_fn")
            loader = torch.utils.data.DataLoader(training_data, batch_size=batch, collate_fn=collate)

        if lr_scheduler is None and "scheduler" in settings and optimizer is not None:
            lr_scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        elif callable(lr_scheduler) and not hasattr(lr_scheduler, "step"):
            lr_scheduler = lr_scheduler(optimizer)
        return engine, optimizer, loader, lr_scheduler

    def begin(*_: object, **__: object) -> None:
        if left_out.gpu_count > 1 and not torch.distributed.is_initialized():
            torch.distributed.init_process_group("fake")

    engine_class = substitute(DeepSpeedEngine, deepspeed.DeepSpeedEngine)
    deepspeed.initialize = initialize
    deepspeed.init_distributed = deepspeed.comm.init_distributed = begin
    for name in ("get_rank", "get_world_size", "barrier", "is_initialized"):
        setattr(deepspeed.comm, name, getattr(torch.distributed, name))
    deepspeed.zero.Init = deepspeed.zero.GatheredParameters = lambda *_, **__: nullcontext()
    for name in _COMPILED_OPTIMIZERS:
        setattr(deepspeed.ops.adam, name, type(name, (InertOptimizer,), {}))


def _observe_keras(keras: Any, left_out: LeftOut, after_step: Callable[[Any], None]) -> None:
    """Let Keras' optimizers update nothing, and its layers take tensors without values."""
    if keras.config.backend() != "torch":
        return
    optimizers: dict[int, Any] = {}

    def apply(optimizer: Any, gradients: Any, trainable_variables: Any = None) -> None:
        variables = trainable_variables or optimizer._trainable_variables
        group = {"params": [each.value for each in variables], "momentum": getattr(optimizer, "momentum", 0)}
        known = optimizers.setdefault(id(optimizer), type(type(optimizer).__name__, (), {})())
        known.param_groups = [group]
        policy = keras.config.dtype_policy().name
        left_out.precision = {"mixed_bfloat16": "bf16", "mixed_float16": "fp16"}.get(policy)
        after_step(known)

    keras.optimizers.Optimizer.apply = apply
    convert = sys.modules["keras.src.backend.torch.core"].convert_to_tensor

    def convert_to_tensor(x: Any, dtype: Any = None, **words: Any) -> Any:
        if not (isinstance(x, torch.Tensor) and x.is_meta):
            return convert(x, dtype, **words)
        return x if dtype is None else x.to(getattr(torch, keras.backend.standardize_dtype(dtype)))

    # Keras' modules import the function by its name, so each has a reference of its own.
    for module in [each for name, each in sys.modules.items() if name.startswith("keras.")]:
        names: Any = module
        if getattr(names, "convert_to_tensor", None) is convert:
            names.convert_to_tensor = convert_to_tensor

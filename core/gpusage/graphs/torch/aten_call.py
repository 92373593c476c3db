"""One call of an aten operator, as both PyTorch readers see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpusage.graphs.torch.recording import Recording, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AtenCall:
    """One call of an aten operator.

    Attributes:
        name: Without overload, for example ``conv2d`` or ``add_``.
        arguments: By the schema's names; tensors are `Tensor` values, alone or in lists.
        outputs: The tensors that it returned.
    """

    name: str
    arguments: Mapping[str, Any]
    outputs: tuple[Tensor, ...]

    def tensor(self, name: str) -> Tensor | None:
        """Return the tensor argument *name*, None where it was not given."""
        value = self.arguments.get(name)
        return value if isinstance(value, Tensor) else None

    def tensors(self) -> tuple[Tensor, ...]:
        """Return every tensor that is read, in order."""
        return tuple(tensors_in(tuple(self.arguments.values())))

    def sizes(self, name: str, count: int, default: int) -> tuple[int, ...]:
        """Return the argument *name* as *count* whole numbers, one number standing for all."""
        value = self.arguments.get(name)
        numbers = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        numbers = tuple(default if number is None else int(number) for number in numbers)
        return numbers * count if len(numbers) == 1 else numbers or (default,) * count


Rule = Callable[[Recording, AtenCall], None]


def tensors_in(value: Any) -> Iterator[Tensor]:  # noqa: ANN401 - an argument may be anything
    """Return the tensors of *value*, which may be one, or a list of such."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def plain_name(name: str) -> str:
    """Return the name of the operator that computes the same and writes elsewhere."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") and len(name) > 1 else name

"""Keeps the values of small tensors that follow from constants alone, for models that look at them.

On the meta device a tensor has no values. Yet some models decide by a mask or by positions that they made themselves
from a range; those values depend on no weight and no input, so they are computed beside, on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

MAXIMUM_ELEMENTS = 2**21
"""Of a tensor whose values are kept: a mask of 1024 tokens by 1024 has half of that."""

_CPU = torch.device("cpu")


class KnownValues:
    """The values of meta tensors, where they are known."""

    def __init__(self) -> None:
        self._values: dict[int, torch.Tensor] = {}

    def known(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Remember that *tensor*, on the meta device and kept alive elsewhere, has these *values*."""
        if values.device == _CPU and values.numel() <= MAXIMUM_ELEMENTS:
            self._values[id(tensor)] = values

    def compute(self, func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:  # noqa: ANN401 - torch's types
        """Return what *func* gives on the values of its arguments, None where one of them is not known."""
        leaves = [leaf for leaf in tree_leaves((args, words)) if isinstance(leaf, torch.Tensor)]
        if any(id(leaf) not in self._values for leaf in leaves):
            return None
        real, real_words = tree_map(self._real, (args, words))
        try:
            return func(*real, **real_words)
        except Exception:  # noqa: BLE001 - the values are a courtesy; without them the shapes still are right
            return None

    def follow(self, returned: Any, real: Any) -> None:  # noqa: ANN401 - whatever an operator returns
        """Remember that *returned* has the values *real*, or none where *real* is None."""
        metas = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
        values = [leaf for leaf in tree_leaves(real) if isinstance(leaf, torch.Tensor)]
        for number, meta in enumerate(metas):
            self._values.pop(id(meta), None)
            if number < len(values) and values[number].shape == meta.shape:
                self.known(meta, values[number])

    def _real(self, leaf: Any) -> Any:  # noqa: ANN401 - an argument may be anything
        if isinstance(leaf, torch.Tensor):
            return self._values[id(leaf)]
        return _CPU if isinstance(leaf, torch.device) else leaf


def is_small(returned: Any) -> bool:  # noqa: ANN401 - whatever an operator returns
    """Return whether the values of what an operator returned are worth keeping."""
    return all(leaf.numel() <= MAXIMUM_ELEMENTS for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor))

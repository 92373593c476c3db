"""Array types of the predictors, and the check of an artifact's figures."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def shaped(name: str, figures: npt.ArrayLike, *shape: int | None) -> FloatArray:
    """Return the *figures* that an artifact calls *name* as an array of *shape*, ``None`` being any length.

    An empty list fits every shape that allows a first length of 0.

    Raises:
        ValueError: They have another shape, or are no numbers.
    """
    array = np.array(figures, dtype=np.float64)
    if array.shape == (0,) and shape[0] in {None, 0}:
        array = array.reshape([0, *(size or 0 for size in shape[1:])])
    if array.ndim != len(shape) or any(size not in (None, got) for size, got in zip(shape, array.shape, strict=True)):
        message = f"{name!r} must have the shape {shape}; got {array.shape}"
        raise ValueError(message)
    return array

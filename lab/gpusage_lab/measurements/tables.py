"""The public measurements: one CSV of a folder that the user names, as a table.

pandas and numpy's friends are the extra ``[train]``; nothing that predicts imports this module.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from gpusage_hooks.errors import RequestError

_NETWORKS = (
    *("config", "batch_size", "layers_type_activations_params"),
    *("avg_gpu_util_pct", "avg_sm_active_frac", "max_gpu_memory_MiB"),
)
COLUMNS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        file: frozenset(columns)
        for file, columns in {
            "timm_benchmark.csv": (
                *("mode", "precision", "memory_layout", "torch_version", "torch_compile", "device"),
                *("model", "timm_module", "img_size_px", "batch_size", "samples_per_s"),
            ),
            "timm_static_features.csv": ("model", "img_size_px"),
            "torchvision_gpu_bench.csv": ("source_path", "precision", "mode", "model", "step_time_median_ms"),
            "neusight_models.csv": ("device", "model", "mode", "seq_len", "batch_size", "option", "measured_e2e_ms"),
            "neusight_ops.csv.gz": (
                *("op", "device", "latency_ms", "b", "m", "n", "k", "h"),
                *("c_in", "c_out", "kernel", "in_size", "stride", "pad"),
            ),
            "deepbench_gemm.csv": ("gpu", "precision", "m", "n", "k", "time_ms"),
            "gpumemnet_timm_memory.csv": (
                *("model", "batch_size", "quality"),
                *("max_gpu_memory_MiB", "faketensor_after_backward_MiB"),
            ),
            "gpumemnet_mlp_step1.csv": _NETWORKS,
            "gpumemnet_mlp_step2.csv": _NETWORKS,
            "gpumemnet_cnn.csv": _NETWORKS,
            "gavel_pairs.csv": (
                *("source_file_tag", "gpu", "model_a", "batch_size_a", "model_b", "batch_size_b"),
                *("norm_a", "norm_b", "usable", "solo_a_steps_per_s", "solo_b_steps_per_s"),
            ),
            "lucid_pairs.csv": (
                *("gpu_num1", "model1", "batch_size_1", "amp1", "norm_speed_1"),
                *("gpu_num2", "model2", "batch_size_2", "amp2", "norm_speed_2"),
            ),
            "lucid_solo.csv": (*("model", "batch_size", "amp", "speed_samples_per_s"), "gpu_util_pct"),
            "miso_a100_mig.csv": (*("mig_slice", "model", "batch_size", "iter_time_median_s"), "sm_util_pct_a100_solo"),
            "parvagpu_mig.csv": ("model", "mig_slices", "batch_size", "process_count", "throughput_samples_per_s"),
            "rapp_mps_percent.csv.gz": ("model", "batch_size", "mps_percent", "time_quota_percent", "latency_ms"),
            "published_vision.csv.gz": (
                *("source", "model", "architecture_hint", "task", "mode", "gpu", "gpu_count", "framework_and_version"),
                *("precision", "layout", "compiled_or_engine", "batch_per_gpu", "input", "metric", "value", "note"),
            ),
            "published_language_models.csv.gz": (
                *("source", "model", "architecture_hint", "task", "mode", "method", "gpu", "gpu_count", "parallelism"),
                *("framework", "precision", "attention", "compile", "activation_checkpointing", "metric", "value"),
                *("micro_batch_per_gpu", "global_batch", "sequence_length_in", "sequence_length_out", "note"),
            ),
            "lambda_monitor_util_memory.csv": (
                *("result_dir", "num_steady_samples", "task", "mean_gpu_util_pct_steady"),
            ),
        }.items()
    }
)
"""By file: those that `gpusage train` and `gpusage evaluate` read."""


Table: TypeAlias = Any
"""A pandas DataFrame; pandas has no types of its own."""


class DataFolder:
    """A folder with the files that ``SOURCES.md`` beside them describes.

    Attributes:
        is_sealed: Whoever makes rows of the files leaves out the families of `gpusage_lab.learning.splits`.
    """

    def __init__(self, folder: str | Path, *, is_sealed: bool = False) -> None:
        self.folder = Path(folder)
        self.is_sealed = is_sealed

    def __contains__(self, file: object) -> bool:
        return (self.folder / str(file)).is_file()

    def read(self, file: str) -> Table:
        """Return the whole of *file*, read once a process; a copy, so that a caller may change it.

        Raises:
            RequestError: The folder has no such file, it is not the whole file, or pandas is not installed.
        """
        path = self.folder / file
        if not path.is_file():
            message = (
                f"Data folder '{self.folder}' must have the file {file}; got none. "
                "Name the folder of the public measurements with --data."
            )
            raise RequestError(message)
        return _read(path).copy()


@lru_cache(maxsize=32)
def _read(path: Path) -> Table:
    """Return the file's rows, once they are seen to be all there."""
    pandas = import_pandas()
    try:
        table = pandas.read_csv(path, low_memory=False)
        content = path.read_bytes()
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise _not_whole(path, f"one that cannot be read ({error})") from error
    lacking = sorted(COLUMNS.get(path.name, frozenset()) - set(table.columns))
    if lacking:
        raise _not_whole(path, f"one without the column{'s' * (len(lacking) > 1)} {', '.join(lacking)}")
    if table.empty:
        raise _not_whole(path, "one without rows")
    if path.suffix == ".csv" and not content.endswith(b"\n"):
        raise _not_whole(path, "one that stops in the middle of a line")
    return table


def _not_whole(path: Path, trouble: str) -> RequestError:
    return RequestError(
        f"File '{path}' must be the whole table that SOURCES.md describes; got {trouble}. Copy it again."
    )


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Let libraries that compute use one thread: the order of a sum is part of its last digit.

    Raises:
        RequestError: The libraries are not installed.
    """
    try:
        from threadpoolctl import (  # type: ignore[import-untyped, unused-ignore]
            threadpool_limits,
        )
    except ImportError as error:
        raise _missing(library="scikit-learn") from error
    import_pandas()
    importlib.import_module("sklearn")  # only what is loaded can be limited
    with threadpool_limits(limits=1):
        yield


def _missing(*, library: str) -> RequestError:
    rule = f"Library {library} must be there to learn; got: not installed."
    return RequestError(f"{rule} Install gpusage with its extra [train].")


def import_pandas() -> Any:  # a module without types
    """Return pandas.

    Raises:
        RequestError: It is not installed.
    """
    try:
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise _missing(library="pandas") from error
    return pd

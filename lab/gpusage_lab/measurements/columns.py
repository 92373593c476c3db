"""Which columns of each public file are read: one that lacks any is not the file that SOURCES.md describes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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
            "lucid_solo.csv": (
                *("model", "batch_size", "amp", "speed_samples_per_s"),
                "gpu_util_pct",
            ),
            "miso_a100_mig.csv": (
                *("mig_slice", "model", "batch_size", "iter_time_median_s"),
                "sm_util_pct_a100_solo",
            ),
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

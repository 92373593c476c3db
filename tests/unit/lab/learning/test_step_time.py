from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.times.kernel_times import ideal_times
from gpusage.predictors.times.step_time import timing_with
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Gpu, Workload
from gpusage_lab.learning.step_baselines import constant_roofline
from gpusage_lab.learning.step_fit import Fitted, Penalties, _fit_from, _Objective, fit, initial, mean
from gpusage_lab.learning.step_flat import Sample, flattened
from gpusage_lab.learning.step_operators import PRODUCT_GPUS, operator_samples, product_samples
from gpusage_lab.learning.step_rows import NEUSIGHT_DEVICES, TIMM_DEVICES, TORCHVISION_FILES, step_rows
from gpusage_lab.learning.step_samples import GPU_FOLDS, predicted
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.zoo import Zoo, load_zoo
from graphs import convolution_graph, perceptron_graph
from measurements import write_measurements

A100, T4 = (builtin_catalogue().find(name) for name in ("a100", "t4"))


def sample(batch_size: int, gpu: Gpu, *, factor: float = 1.0) -> Sample:
    """A step that takes *factor* times as long as the constant efficiencies say."""
    workload = Workload(batch_size=batch_size)
    kernels = WorkloadAnalysis(
        convolution_graph() if batch_size % 2 else perceptron_graph(width=2048), workload
    ).kernels
    step_s = float(timing_with(initial(), kernels, [gpu], "fp32").step_s[0])
    return Sample(
        kernels=kernels,
        gpu=gpu,
        precision="fp32",
        measured_s=factor * step_s,
        campaign="one",
        weight=0.2,
        extra_s=1e-4,
        group=str(batch_size),
    )


SAMPLES = [sample(batch_size, gpu, factor=1.5) for batch_size in (63, 64, 127, 128) for gpu in (A100, T4)]


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    objective = _Objective(flattened(SAMPLES), initial(), Penalties())
    generator = np.random.default_rng(0)
    vector = objective.packed() + generator.normal(0.0, 0.1, len(objective.packed()))
    _, gradient = objective(vector)
    direction = generator.normal(0.0, 1.0, len(vector))
    step = 1e-3
    slope = (objective(vector + step * direction)[0] - objective(vector - step * direction)[0]) / (2 * step)
    assert slope == pytest.approx(float(gradient @ direction), rel=1e-2)


def test_a_search_that_leaves_the_range_of_numbers_is_told_to_come_back() -> None:
    objective = _Objective(flattened(SAMPLES), initial(), Penalties())
    near, far = objective.packed(), objective.packed() - 100.0
    loss, gradient = objective(far)
    assert loss > 1e6 * objective(near)[0]
    assert not gradient.any()


def test_a_fit_explains_steps_that_take_longer_than_it_began_with() -> None:
    measured = np.array([item.measured_s for item in SAMPLES])
    before = np.array([timing_with(initial(), s.kernels, [s.gpu], "fp32").step_s[0] + s.extra_s for s in SAMPLES])
    after, _ = predicted(fit(SAMPLES, iterations=80), SAMPLES, with_campaign=True)
    assert np.abs(np.log(after / measured)).mean() < 0.2 * np.abs(np.log(before / measured)).mean()


def test_the_same_samples_give_the_same_fit() -> None:
    first, second = (fit(SAMPLES, iterations=10).efficiency for _ in range(2))
    assert (first.first == second.first).all()
    assert first.gpu_log_factors == second.gpu_log_factors


def test_a_fit_says_what_its_starts_say_on_the_whole() -> None:
    flat, kernels = flattened(SAMPLES), SAMPLES[0].kernels
    alone = [_fit_from(initial(start), flat, 10, Penalties()) for start in (1, 2)]
    ideal = ideal_times(kernels, [A100, T4], "fp32")
    logarithms = [
        item.efficiency.log_efficiencies(kernels.operator_class, ideal.features) for item in (*alone, mean(alone))
    ]
    assert logarithms[2] == pytest.approx((logarithms[0] + logarithms[1]) / 2)
    assert mean(alone).efficiency.latency_s == pytest.approx(
        (alone[0].efficiency.latency_s * alone[1].efficiency.latency_s) ** 0.5
    )


def test_gpus_of_one_chip_are_left_out_together() -> None:
    boards = (
        {"a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm4-40gb"},
        {"rtx-5090", "rtx-pro-6000-max-q"},
        {"rtx-2080-ti", "titan-rtx"},
        {"titan-xp", "gtx-1080-ti"},
        {"v100-pcie-32gb", "v100-sxm2-16gb"},
        {"h100-sxm5-80gb", "h100-pcie-80gb"},
    )
    for chip in boards:
        assert sum(chip <= set(group) for group in GPU_FOLDS) == 1, chip
    measured = {
        *NEUSIGHT_DEVICES.values(),
        *TIMM_DEVICES.values(),
        *TORCHVISION_FILES.values(),
        *PRODUCT_GPUS.values(),
    }
    assert measured - {name for group in GPU_FOLDS for name in group} == {"l4"}


def test_the_constant_roofline_knows_no_power_limit() -> None:
    weak = SAMPLES[1]
    strong = replace(weak, gpu=replace(T4, power_limit_w=10 * T4.power_limit_w))
    low, high = (constant_roofline(samples) for samples in ([weak], [strong]))
    assert weak.gpu is T4
    assert low == high


def test_kernels_are_half_short_at_fifty_microseconds() -> None:
    timing = timing_with(initial(), SAMPLES[0].kernels, [A100, T4], "fp32")
    mean_s = timing.busy_s / SAMPLES[0].kernels.counts.sum()
    assert timing.short_share == pytest.approx(50e-6 / (50e-6 + mean_s))


def test_an_unseen_gpu_has_no_factor_of_its_own() -> None:
    seen = replace(initial(), gpu_log_factors={A100.name: 0.5})
    kernels = SAMPLES[0].kernels
    plain, factored = (timing_with(item, kernels, [A100, T4], "fp32").busy_s for item in (initial(), seen))
    assert factored / plain == pytest.approx([np.exp(0.5), 1.0])


def test_rows_are_read_where_the_zoo_has_the_model(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "timm_benchmark.csv").write_text(
        "mode,precision,memory_layout,torch_version,device,torch_compile,model,timm_module,img_size_px,batch_size,samples_per_s\n"
        "infer,amp,nchw,240,RTX4090,0,resnet50,resnet,224,256,5000\n"
        "infer,amp,nchw,291,RTX4090,0,resnet50,resnet,224,256,5120\n"
        "infer,amp,nhwc,291,RTX4090,0,resnet50,resnet,224,256,9999\n"
        "infer,amp,nchw,291,RTX4090,0,unheard_of,resnet,224,256,9999\n"
    )
    (tmp_path / "torchvision_gpu_bench.csv").write_text(
        "source_path,precision,mode,model,step_time_median_ms\n"
        "results/TITANXP/TITAN Xp_1_gpus__float_model_train_benchmark.csv,fp32,train,resnet50,75\n"
        "results/TITANXP/TITAN Xp_1_gpus__half_model_inference_benchmark.csv,fp16,infer,resnet50,25\n"
        "results/TITANXP/TITAN Xp_2_gpus__float_model_train_benchmark.csv,fp32,train,resnet50,40\n"
    )
    (tmp_path / "neusight_models.csv").write_text(
        "device,model,mode,seq_len,batch_size,option,measured_e2e_ms\nTesla_T4,bert_large,infer,512,8,,694\n"
        "Tesla_T4,bert_large,infer,512,8,fusion,600\nAMD_Instinct_MI100,bert_large,infer,512,8,,134\n"
    )
    zoo = Zoo(dict.fromkeys(["timm:resnet50@224", "torchvision:resnet50@224", "neusight:bert_large@512"], "{}"))
    rows = step_rows(DataFolder(tmp_path), zoo)
    # the newest torch only, one GPU only, NVIDIA and unfused only
    assert [(row.gpu.name, row.family, row.measured_s) for row in rows] == [
        ("rtx-4090", "resnet", 256 / 5120),
        ("titan-xp", "resnet", 0.075),
        ("titan-xp", "resnet", 0.025),
        ("t4", "bert_large", 0.694),
    ]
    # torchvision's script: no update of the weights, no autocast
    assert [(row.workload.precision, row.workload.optimizer) for row in rows[1:3]] == [
        ("fp32", "none"),
        ("fp16-pure", "none"),
    ]
    assert [row.workload.accumulate > 1 for row in rows[1:3]] == [True, False]


def test_products_in_half_precision_are_those_of_gpus_with_tensor_cores_and_of_the_catalogue(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    actual = product_samples(DataFolder(write_measurements(tmp_path)))
    assert [(item.gpu.name, item.precision, item.kernels.matrix_units[0]) for item in actual] == [
        *[("t4", "fp32", 0.0)] * 2,
        *[("t4", "fp16", 1.0)] * 2,
    ]


def test_a_long_operator_teaches_that_more_rows_cost_no_efficiency(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "neusight_ops.csv.gz").write_bytes(
        gzip.compress(
            b"split,device,op,b,m,n,k,h,c_in,c_out,kernel,in_size,stride,pad,latency_ms\n"
            b"train,Tesla_T4,linear,8,128,64,64,,,,,,,,0.5\ntrain,Tesla T4,linear,8,128,64,64,,,,,,,,0.5\n"
            b"train,Tesla T4,linear,8,512,4096,4096,,,,,,,,20\n"
        )
    )
    short, long, more = operator_samples(DataFolder(tmp_path))
    assert (short.measured_s, long.measured_s, more.measured_s) == (0.0005, 0.02, 0.32)
    assert more.kernels.flop == 16 * long.kernels.flop
    assert (more.kernels.inner, more.kernels.width) == (long.kernels.inner, long.kernels.width)


def test_the_host_of_an_unseen_campaign_is_as_those_of_its_source() -> None:
    known = {"lab a": 1.0, "lab b": 2.0, "other c": 9.0}
    fitted = Fitted(efficiency=initial(), campaign_log_factors=known)
    samples = [replace(SAMPLES[0], campaign=name) for name in ("lab new", "lab middle", "nobody's")]
    hosted = Fitted(efficiency=initial(), campaign_log_factors={**known, "lab middle": 1.5})
    steps, _ = predicted(fitted, samples, with_campaign=True)
    assert steps[0] == predicted(hosted, samples, with_campaign=True)[0][1]
    assert steps[2] == predicted(fitted, samples)[0][2]


def test_a_folder_without_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"must have the file timm_benchmark\.csv; got none"):
        DataFolder(tmp_path).read("timm_benchmark.csv")


def test_the_zoo_has_the_models_of_the_measurements() -> None:
    zoo = load_zoo()
    assert len(zoo) > 200
    assert zoo.graph("neusight:gpt2_large@1024").parameter_count == pytest.approx(774e6, rel=0.01)
    assert zoo.graph("torchvision:resnet50@224") is zoo.graph("torchvision:resnet50@224")

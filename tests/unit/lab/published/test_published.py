"""The public record: what a published row means, and how a prediction is held beside it."""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage_lab.measurements.tables import COLUMNS, DataFolder
from gpusage_lab.published.comparison import Compared, compare, goals_table, summaries
from gpusage_lab.published.models import IMAGE_MODELS, TEXT_MODELS, text_model
from gpusage_lab.published.rows import LANGUAGE, VISION, PublishedRow, published_rows
from gpusage_lab.published.runs import Left, Run, run_of
from gpusage_planning.zoo import load_zoo

pytest.importorskip("pandas")

IMAGES = {
    "source": "NVIDIA/DeepLearningExamples",
    "model": "ResNeXt101-32x4d",
    "mode": "infer",
    "gpu": "V100-16GB",
    "gpu_count": "1",
    "framework_and_version": "PyTorch NGC 21.03",
    "precision": "fp32",
    "layout": "no",
    "compiled_or_engine": "eager",
    "batch_per_gpu": "8",
    "input": "224x224",
    "metric": "images/s",
    "value": "200",
}
TRAINING = {
    "source": "QwenLM/Qwen",
    "model": "Qwen-1.8B",
    "mode": "finetune",
    "method": "full",
    "gpu_count": "1",
    "gpu": "NVIDIA A100-SXM4-80GB",
    "parallelism": "none",
    "framework": "transformers",
    "precision": "bf16",
    "attention": "flash2",
    "compile": "no",
    "activation_checkpointing": "yes",
    "micro_batch_per_gpu": "1",
    "global_batch": "8",
    "sequence_length_in": "512",
    "metric": "ms/step",
    "value": "2200",
}
ANSWERS = {
    "source": "QwenLM/Qwen2.5",
    "model": "Qwen2-7B-Instruct",
    "mode": "generate",
    "method": "none",
    "gpu": "NVIDIA A100 80GB",
    "gpu_count": "1",
    "parallelism": "none",
    "framework": "transformers 4.38.2",
    "precision": "BF16",
    "attention": "flash2",
    "compile": "no",
    "activation_checkpointing": "unknown",
    "micro_batch_per_gpu": "1",
    "sequence_length_in": "1",
    "sequence_length_out": "2048",
    "metric": "tokens/s",
    "value": "37.97",
}


def write_published(folder: Path, images: list[dict[str, str]], texts: list[dict[str, str]]) -> DataFolder:
    """Write both tables into a new folder of *folder*, as a path is read once; what a row leaves out is empty."""
    folder = folder / str(len([*folder.iterdir()]))
    folder.mkdir()
    for file, rows in ((VISION, images), (LANGUAGE, texts)):
        text = io.StringIO()
        writer = csv.DictWriter(text, sorted(COLUMNS[file]), restval="")
        writer.writeheader()
        writer.writerows(rows)
        (folder / file).write_bytes(gzip.compress(text.getvalue().encode()))
    return DataFolder(folder)


def one(folder: Path, row: dict[str, str]) -> Run | Left:
    """What one row means."""
    data = write_published(folder, *(([row], [TRAINING]) if "layout" in row else ([IMAGES], [row])))
    return run_of(published_rows(data)[0 if "layout" in row else -1])


def run(folder: Path, row: dict[str, str]) -> Run:
    outcome = one(folder, row)
    assert isinstance(outcome, Run), outcome
    return outcome


def test_a_row_of_an_image_model_is_a_step_of_its_batch(tmp_path: Path) -> None:
    actual = run(tmp_path, IMAGES)
    assert actual.key == "published:timm:resnext101_32x4d@224x224"
    assert (actual.gpu.name, actual.workload.batch_size, actual.units_per_step) == ("v100-sxm2-16gb", 8, 8)
    assert actual.group == "convolutions, inference, fp32"
    assert actual.workload.layout == "channels_first"
    assert run(tmp_path, {**IMAGES, "layout": "yes"}).workload.layout == "channels_last"


def test_a_table_that_is_a_copy_of_another_gpu_s_is_left_out(tmp_path: Path) -> None:
    bert = {**IMAGES, "source": "NVIDIA/TensorRT", "model": "BERT large", "input": "seq 128", "metric": "latency_ms"}
    bert |= {"framework_and_version": "TensorRT OSS 10.15.1.29", "compiled_or_engine": "TensorRT demoBERT"}
    assert run(tmp_path, {**bert, "gpu": "L4"}).gpu.name == "l4"
    copied = one(tmp_path, {**bert, "gpu": "A30"})
    assert isinstance(copied, Left)
    assert "the same figures" in copied.reason


@pytest.mark.parametrize(
    ("framework", "engine", "key"),
    [
        ("PyTorch NGC 22.09-py3", "eager", "vit_base_patch16_384-eager"),
        ("PyTorch NGC 22.09-py3", "FasterTransformer C++", "vit_base_patch16_384"),
        ("PyTorch 2.3", "eager", "vit_base_patch16_384"),
    ],
)
def test_a_transformer_of_images_before_pytorch_2_has_its_attention_written_out(
    tmp_path: Path, framework: str, engine: str, key: str
) -> None:
    row = {**IMAGES, "source": "NVIDIA/FasterTransformer", "model": "ViT-B_16 384", "input": "384x384"}
    actual = run(tmp_path, {**row, "framework_and_version": framework, "compiled_or_engine": engine})
    assert actual.key == f"published:timm:{key}@384x384"


@pytest.mark.parametrize(("published", "precision"), [("fp32/tf32 (as published)", "fp32"), ("tf32", "tf32")])
def test_tf32_is_read_where_it_stands_alone(tmp_path: Path, published: str, precision: str) -> None:
    assert run(tmp_path, {**IMAGES, "gpu": "A100-80GB", "precision": published}).workload.precision == precision


def test_the_throughput_of_several_gpus_is_that_of_all(tmp_path: Path) -> None:
    actual = run(tmp_path, {**IMAGES, "mode": "train", "gpu_count": "8", "precision": "amp-fp16"})
    assert (actual.workload.gpus, actual.workload.strategy, actual.workload.precision) == (8, "ddp", "fp16")
    assert actual.units_per_step == 8 * 8


@pytest.mark.parametrize(
    ("words", "layout"),
    [
        ({"layout": "yes"}, "channels_last"),
        ({"layout": "no"}, "channels_first"),
        ({"layout": "unknown"}, "channels_first"),
        ({"layout": "unknown", "compiled_or_engine": "XLA"}, "channels_last"),
        ({"layout": "unknown", "compiled_or_engine": "XLA", "mode": "infer"}, "channels_first"),
    ],
)
def test_a_row_with_channels_last_is_read_as_such(tmp_path: Path, words: dict[str, str], layout: str) -> None:
    assert run(tmp_path, {**IMAGES, "mode": "train", **words}).workload.layout == layout


def test_a_step_of_an_optimizer_has_all_its_passes(tmp_path: Path) -> None:
    """QwenLM counts 8 passes of one sample as a step."""
    actual = run(tmp_path, TRAINING)
    assert (actual.workload.accumulate, actual.units_per_step) == (8, 8)
    assert actual.workload.checkpointing
    assert (actual.workload.optimizer, actual.key) == ("adamw", "published:qwen-1.8b@512")


def test_adapters_train_a_part_of_weights_of_two_bytes(tmp_path: Path) -> None:
    actual = run(tmp_path, {**TRAINING, "method": "lora r=64 (script default)"})
    assert (actual.workload.lora, actual.workload.precision) == (64, "bf16-pure")


@pytest.mark.parametrize(
    ("method", "words", "precision", "rank"),
    [
        ("qlora (GPTQ int4 base) r=64 (script default)", "int4 GPTQ base + fp16", "int4", 64),
        ("qlora int8 (gptq) r=8 targets=ALL (all linear)", "int8 (gptq)", "int8", 8),
        ("qlora int4 (bnb) r=8 targets=ALL (all linear)", "int4 (bnb)", "nf4", 8),
    ],
)
def test_adapters_above_quantised_weights_are_told_by_method_and_precision(
    tmp_path: Path, method: str, words: str, precision: str, rank: int
) -> None:
    actual = run(tmp_path, {**TRAINING, "method": method, "precision": words})
    assert (actual.workload.lora, actual.workload.precision) == (rank, precision)
    assert actual.group == "language model, training, QLoRA"


def test_adapters_at_some_layers_are_a_share_of_the_weights(tmp_path: Path) -> None:
    at_queries = {"source": "Lightning-AI/litgpt", "method": "qlora r=32 targets=query+value bnb.nf4"}
    actual = run(tmp_path, {**TRAINING, **at_queries, "precision": "bf16-true + bnb.nf4", "metric": "memory_gb"})
    assert (actual.workload.lora, actual.workload.trainable, actual.workload.precision) == (None, 0.01, "nf4")
    assert actual.group == "memory, training, QLoRA"


def test_trained_embeddings_are_a_part_of_the_weights(tmp_path: Path) -> None:
    """Of Qwen-1.8B's 1,837 million weights: 2 x 151,936 words of 2,048 numbers."""
    actual = run(tmp_path, {**TRAINING, "method": "lora + trained embedding/output r=64 (script default)"})
    assert actual.workload.trainable == pytest.approx(2 * 151_936 * 2048 / 1.837e9, rel=0.01)


def test_memory_of_all_gpus_is_divided_by_them(tmp_path: Path) -> None:
    several = {"metric": "memory_gb", "value": "148", "gpu_count": "2", "parallelism": "DeepSpeed ZeRO-3"}
    assert run(tmp_path, {**TRAINING, **several}).counted_bytes == 74 * 2**30


def test_tokens_per_second_count_new_tokens_and_the_prompt_only_where_the_source_does(tmp_path: Path) -> None:
    assert run(tmp_path, ANSWERS).units_per_step == 2048
    with_prompt = {**ANSWERS, "sequence_length_in": "6144", "note": "speed = (prompt + generated tokens) / total time"}
    assert run(tmp_path, with_prompt).units_per_step == 2048 + 6144


def test_layers_that_gpus_compute_in_turn_are_a_pipeline_whose_rate_and_memory_are_of_all(tmp_path: Path) -> None:
    split = {**ANSWERS, "gpu_count": "2", "parallelism": "layer split (device_map) 2"}
    actual = run(tmp_path, split)
    assert (actual.workload.gpus, actual.workload.strategy, actual.units_per_step) == (2, "pipeline", 2048)
    memory = {"source": "QwenLM/Qwen2.5", "metric": "memory_gb", "value": "134"}
    assert run(tmp_path, {**split, **memory}).counted_bytes == 67 * 2**30


@pytest.mark.parametrize(
    ("kernel", "length", "is_left"), [("GEMM", 64, False), ("GEMM", 2048, True), ("GEMV", 64, True)]
)
def test_prompts_through_kernels_that_were_replaced_are_left_out(
    tmp_path: Path, kernel: str, length: int, *, is_left: bool
) -> None:
    of_awq = {"source": "casper-hansen/AutoAWQ", "mode": "infer", "method": f"AWQ int4 g128 class {kernel}"}
    words = {"precision": "int4 (AWQ)", "sequence_length_in": str(length), "metric": "tokens/s"}
    row = {**ANSWERS, **of_awq, **words, "model": "Mistral 7B", "gpu": "RTX 4090"}
    assert isinstance(one(tmp_path, row), Left) == is_left


def test_fused_layers_run_as_few_kernels_as_a_compiler_makes(tmp_path: Path) -> None:
    of_awq = {"source": "casper-hansen/AutoAWQ", "method": "AWQ int4 g128 class GEMM", "attention": "fused"}
    assert run(tmp_path, {**ANSWERS, **of_awq, "precision": "int4 (AWQ)"}).workload.engine == "compile"
    by_hand = {"source": "karpathy/llm.c", "model": "gpt2 124M", "mode": "train", "sequence_length_in": "1024"}
    assert run(tmp_path, {**TRAINING, **by_hand}).workload.compile


def test_a_copy_of_a_model_on_several_gpus_is_read_with_its_micro_batches_and_its_share_of_a_rate(
    tmp_path: Path,
) -> None:
    bloom = {
        "source": "bigscience-workshop/bigscience",
        "model": "BLOOM design study 181B",
        "architecture_hint": "Megatron GPT layers=72 hidden=14336 vocab=250k heads=64",
        "gpu_count": "384",
        "parallelism": "DP8 TP8 PP6 ZeRO-1 (class)",
        "precision": "bf16 (class; fp16/bf16 gave the same speed)",
        "attention": "eager (Megatron fused softmax)",
        "micro_batch_per_gpu": "4",
        "global_batch": "2048",
        "sequence_length_in": "2048",
    }
    actual = run(tmp_path, {**TRAINING, **bloom})
    workload = actual.workload
    assert actual.key == "published:megatron-72x14336x64x250880-eager@2048"
    assert load_zoo().graph(actual.key).parameter_count == pytest.approx(181.2e9, rel=1e-3)
    assert (workload.tensor, workload.pipeline, workload.replica_count, workload.strategy) == (8, 6, 8, "zero1")
    assert (workload.accumulate, workload.precision, actual.units_per_step) == (64, "bf16", 64)
    assert actual.group == "language model, training, tensor, context and pipeline parallelism"
    rate = run(tmp_path, {**TRAINING, **bloom, "metric": "tokens/s/GPU"})
    assert rate.units_per_step == 4 * 2048 / (8 * 6)


def test_the_letters_of_parallel_runs_are_read(tmp_path: Path) -> None:
    bridge = {
        "source": "NVIDIA-NeMo/Megatron-Bridge",
        "mode": "train",
        "model": "LLAMA3.1_405B",
        "gpu": "NVIDIA H100 (DGX-H100)",
        "gpu_count": "1024",
        "parallelism": "TP8 PP8 CP2 VP8",
        "precision": "FP8-CS",
        "micro_batch_per_gpu": "1",
        "global_batch": "1536",
        "sequence_length_in": "8192",
        "metric": "tokens/s/GPU",
    }
    actual = run(tmp_path, {**TRAINING, **bridge})
    workload = actual.workload
    assert load_zoo().graph(actual.key).parameter_count == pytest.approx(405.9e9, rel=1e-3)
    sizes = workload.tensor, workload.context, workload.pipeline, workload.virtual_pipeline, workload.replica_count
    assert sizes == (8, 2, 8, 8, 8)
    assert (workload.accumulate, workload.precision, workload.strategy) == (192, "fp8-mixed", "zero1")
    assert workload.sequence_parallel
    assert actual.units_per_step == 8192 / (8 * 2 * 8)
    torchtitan = {"source": "pytorch/torchtitan", "gpu_count": "4", "parallelism": "FSDP2, CP2"}
    of_two = run(tmp_path, {**TRAINING, **torchtitan}).workload
    assert (of_two.context, of_two.strategy, of_two.sequence_parallel) == (2, "fsdp", False)
    experts = {**bridge, "model": "Qwen3_30B_a3B", "gpu_count": "8", "parallelism": "TP1 PP1 CP1 EP8"}
    experts = {**TRAINING, **experts, "sequence_length_in": "4096"}
    of_experts = run(tmp_path, experts)
    assert (of_experts.workload.expert, of_experts.workload.strategy, of_experts.units_per_step) == (8, "zero1", 4096)
    assert of_experts.group == "language model, training, expert parallelism"
    assert load_zoo().graph(of_experts.key).parameter_count == pytest.approx(30.5e9, rel=1e-2)
    halves = one(tmp_path, {**experts, "parallelism": "TP2 PP1 CP1 EP4"})
    assert isinstance(halves, Left)
    assert halves.reason == "each expert on several GPUs (tensor parallelism)"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "BLOOM design study 181B"}, "no library"),
        ({"precision": "NVFP4"}, "precision"),
        ({"gpu": "NVIDIA GB300 (DGX-GB300)"}, "catalogue"),
        ({"gpu_count": "2", "parallelism": "layer split"}, "layers on several GPUs"),
        ({"metric": "mfu"}, "no time, rate or memory"),
        ({"micro_batch_per_gpu": ""}, "batch size"),
        ({"note": "samples are shorter; runtime includes validation"}, "differ in length"),
        (
            {
                "source": "huggingface/peft",
                "task": "causal-lm finetuning MetaMathQA",
                "method": "lora r=32",
                "architecture_hint": "params=3221924864 trainable=9175040",
                "metric": "memory_gb",
                "value": "6.924",
            },
            "between two steps",
        ),
        ({"source": "Lightning-AI/litgpt", "parallelism": "FSDP", "metric": "memory_gb"}, "while a model was loaded"),
    ],
)
def test_what_cannot_be_predicted_has_a_reason(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    outcome = one(tmp_path, {**TRAINING, **change})
    assert isinstance(outcome, Left)
    assert reason in outcome.reason


@pytest.mark.parametrize(
    ("published", "model"),
    [
        ("meta-llama/Llama-3.2-3B", "llama-3.2-3b"),
        ("Llama 3.1 8B", "llama-3-8b"),
        ("Qwen2.5-72B-Instruct", "qwen2-72b"),
        ("Qwen3-14B", "qwen3-14b"),
        ("qwen-7b-chat", "qwen-7b"),
        ("TinyLlama 1B", "tinyllama-1.1b"),
        ("CodeLlama 34B", "codellama-34b"),
        ("gemma-2-2b", None),
    ],
)
def test_a_publishers_name_is_one_model_or_none(published: str, model: str | None) -> None:
    assert text_model(published) == model


def test_every_model_that_rows_name_is_in_the_zoo_with_the_weights_that_it_has() -> None:
    zoo = load_zoo()
    keys = {key.removeprefix("published:").rpartition("@")[0] for key in zoo if key.startswith("published:")}
    models = {*TEXT_MODELS, *IMAGE_MODELS.values()}
    known = {*models, *(f"{name}-eager" for name in models)}
    assert keys
    assert {key for key in keys if not key.startswith("megatron-")} <= known
    assert zoo.graph("published:builtin:ssd300-resnet50@300x300").parameter_count == pytest.approx(23e6, rel=0.1)
    billions = {"llama-2-7b@2048": 6.738, "qwen2-72b@128": 72.7, "mixtral-8x7b@128": 46.7, "qwen3-0.6b@128": 0.596}
    for key, count in billions.items():
        assert zoo.graph(f"published:{key}").parameter_count == pytest.approx(count * 1e9, rel=1e-3)


def compared(folder: Path, *rows: dict[str, str]) -> list[Compared]:
    images, texts = [one for one in rows if "layout" in one], [one for one in rows if "layout" not in one]
    record = compare(write_published(folder, images or [IMAGES], texts or [TRAINING]), load_zoo())
    assert record.left == []
    return [*record.compared]


def test_a_rate_and_the_time_of_the_same_step_are_as_far_off(tmp_path: Path) -> None:
    """200 images a second of batch 8 are 40 ms; the publisher's unit is kept, and above 1 is too slow in both."""
    latency = {**IMAGES, "metric": "latency_ms", "value": "40"}
    rate, time = (each for each in compared(tmp_path, IMAGES, latency) if each.run.row.source == IMAGES["source"])
    assert rate.ratio == pytest.approx(time.ratio)
    assert rate.ours.value == pytest.approx(8e3 / time.ours.value)
    assert rate.ours.low < rate.ours.value < rate.ours.high
    assert rate.is_inside == time.is_inside


def test_memory_is_counted_as_its_source_counts_it(tmp_path: Path) -> None:
    """nvidia-smi shows the whole process, PyTorch's counter tensors alone; units are the publisher's."""
    memory = {**ANSWERS, "metric": "memory_gb", "value": "14.92"}
    process = {**memory, "source": "QwenLM/Qwen"}
    decimal = {**memory, "source": "Lightning-AI/litgpt", "value": "16.02"}
    actual = {each.run.row.source: each for each in compared(tmp_path, memory, process, decimal)}
    tensors, all_of_it, bytes_of_ten = (
        actual[source] for source in ("QwenLM/Qwen2.5", "QwenLM/Qwen", "Lightning-AI/litgpt")
    )
    assert 14.2 < tensors.ours.value < all_of_it.ours.value
    assert bytes_of_ten.ours.value == pytest.approx(tensors.ours.value * 2**30 / 1e9)


def test_evaluate_prints_the_record_and_why_rows_are_left(tmp_path: Path) -> None:
    data = write_published(tmp_path, [IMAGES], [TRAINING, {**TRAINING, "model": "BLOOM design study 181B"}])
    arguments = ["evaluate", "--data", str(data.folder), "--target", "published"]
    result = CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    tables: dict[str, Any] = {table["title"]: table for table in json.loads(result.stdout)["targets"]["published"]}
    assert tables["The public record"]["rows"][2][1] == 2
    (reason,) = tables["Rows that are not predicted"]["rows"]
    assert reason[1:] == [1, "BLOOM design study 181B (1)"]
    assert {row[0] for row in tables["The public record by source"]["rows"]} == {IMAGES["source"], TRAINING["source"]}
    text = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert "The public record by kinds of rows" in text.stdout


def test_a_summary_has_all_rows_and_those_without_a_star(tmp_path: Path) -> None:
    data = write_published(tmp_path, [IMAGES, {**IMAGES, "precision": "tf32", "gpu": "A100-80GB"}], [TRAINING])
    record = compare(data, load_zoo())
    stars = [bool(each.star) for each in record.compared]
    whole = summaries(record)[0].rows[2]
    assert (whole[1], whole[5]) == (3, stars.count(False))
    assert PublishedRow._fields[0] == "source"


def test_goals_are_met_or_missed_by_what_the_record_has(tmp_path: Path) -> None:
    """A row twice as fast as it was published misses the factor, and is the worst kind of ten rows alike."""
    data = write_published(tmp_path, [IMAGES] * 10, [TRAINING])
    record = compare(data, load_zoo())
    as_published, twice = (
        {line[0:3:2]: line[3:] for line in goals_table([replace(one, ratio=ratio) for one in record.compared]).rows}
        for ratio in (1.0, 0.5)
    )
    assert as_published["all", "median factor"] == ("at most 1.25", 1.0, "met")
    assert twice["all", "median factor"] == ("at most 1.25", 2.0, "**missed**")
    assert twice["all", "worst kind"] == ("at most 1.5", 2.0, "**missed**")
    assert ("generation, eager", "median factor") not in twice  # no such row

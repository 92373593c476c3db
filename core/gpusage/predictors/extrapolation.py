"""Whether the predictors were fitted on workloads of this kind, and if not, what is unfamiliar about this one.

Invariants:

1. The limits are those of the artifact ``step_time``, as its card has them; what a card leaves out is not checked.
2. A model below the least batch, FLOP and parameters is not unfamiliar: there the host decides the step, which the
   interval covers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from gpusage.devices.precisions import HALF, QUANTISED_BYTES, has_narrow_units, missing_units
from gpusage.predictors.artifacts import Card
from gpusage.predictors.times.step_time import engine_of, replays_graph
from gpusage.predictors.work.lowering import Lowering, is_autocast, is_fused, is_fusion_measured, step_flop
from gpusage.predictors.work.operators import convolution_weight, group_count
from gpusage.predictors.work.sequences import FRAMES_RANK, is_language_model, is_speech_model
from gpusage_hooks.types import Gpu, ModelGraph, Precision, Workload

MAXIMUM_NODE_COUNT = 100_000
LEAST_SHARE = 0.1
"""An operator that was never measured makes a model strange where it does this share of the work."""
EQUIVALENT_PRECISIONS = {"bf16": "fp16", "fp16-pure": "fp16", "bf16-pure": "fp16"}
"""Both have two bytes, and the same peaks on every GPU of the catalogue that has both."""
_SHOWN_OPERATORS = 3
COMPILED_WARNING = (
    "A compiler fuses operators: the time follows from rules fitted on compiled image models on three GPUs "
    "(lab/docs/accuracy.md), and is less certain than without a compiler. Memory is that of the model without one."
)
FUSED_TRAINING_WARNING = (
    "A compiler fuses operators: a rule leaves out the memory traffic between them, and no such step was measured. "
    "Memory is that of the model without one."
)
UNFUSED_WARNING = (
    "A compiler fuses operators, but compiled models were measured in half precision only: time and memory are those "
    "of the model without it."
)
GROUPED_WARNING = "Grouped convolutions train up to four times as long as predicted with channels last (torch 1.12)."
ENGINE_WARNING = (
    "An engine's time follows from bytes and FLOP, by rules fitted on published rates (docs/workloads.md), and is "
    "less certain than that of PyTorch."
)
NO_CACHE_NOTE = (
    "If the model writes text, this is one forward pass over its input only, without a cache of keys and values. "
    "For whole answers set their length: generate=512+128, tokens of the prompt and new ones."
)
FROZEN_NOTE = "Frozen weights count with {}. If the model is loaded in {}, write precision={}."


def workload_notes(graph: ModelGraph, workload: Workload) -> tuple[str, ...]:
    """Return one sentence for each thing that *workload* leaves open."""
    if workload.mode == "infer" and workload.generate is None and is_language_model(graph):
        return (NO_CACHE_NOTE,)
    if workload.generate is not None:
        # Of a prompt of sound that has another length than the model was read with.
        frames = [max(shape[1:]) for _, shape in graph.inputs if len(shape) == FRAMES_RANK and min(shape[1:]) > 0]
        if workload.generate.prompt_tokens in frames or not frames or not is_speech_model(graph):
            return ()
        rule = "an encoder like Whisper's takes no other number"
        return (f"The model was read with {frames[0]} frames of sound; {rule}.",)

    if workload.lora:
        of_rank = f"All linear layers but the output's have adapters of rank {workload.lora}"
        adapters = f"{of_rank}; for fewer use trainable=SHARE."
        if workload.precision.endswith("-pure"):
            mixed = f"{workload.precision.removesuffix('-pure')}-mixed"
            return adapters, FROZEN_NOTE.format("2 bytes", "4, under autocast", mixed)
        is_noted = is_autocast(workload) and workload.precision != "fp8-mixed"  # which has no pure form
        note = FROZEN_NOTE.format("4 bytes, as under autocast", 2, f"{workload.precision}-pure")
        return (adapters, note) if is_noted else (adapters,)
    if workload.trainable == 1:
        return ()
    note = (
        f"It is unknown which {100 * workload.trainable:.3g} % of the parameters are trained: memory and time assume "
        "gradients through the whole model."
    )
    return (note,)


def gpu_notes(gpu: Gpu, precision: Precision) -> tuple[str, ...]:
    """Return one sentence where *gpu* does not speed *precision* up, so that a speedup against it says little."""
    if missing := missing_units(gpu, precision):
        return (f"{gpu.name} has no units for {missing}; the prediction uses its fp32 rate.",)
    if precision == "fp8-mixed" and not has_narrow_units(gpu, precision):
        return (f"{gpu.name} is predicted without units for fp8, at its rate for bf16.",)
    return ()


def gpu_warnings(card: Card, gpus: Sequence[Gpu]) -> list[tuple[str, ...]]:
    """Return, for each of *gpus*, one sentence where figures on it are not to be trusted as usual."""
    warnings: list[tuple[str, ...]] = []
    for gpu in gpus:
        first, last = card.ranges.get("launch_year", (gpu.launch_year, gpu.launch_year))
        warning = ""
        if not gpu.is_measured:
            warning = f"The GPU generation {gpu.generation!r} was never measured."
        elif gpu.watts_per_teraflop is None:
            chip = ".".join(map(str, gpu.compute_capability))
            warning = (
                f"The chip of {gpu.name} (compute capability {chip}) is not in the catalogue: its power limit is taken "
                "to be enough for its peak."
            )
        elif not first <= gpu.launch_year <= last:
            measured = f"those that were measured are of {first:.0f} to {last:.0f}"
            warning = f"GPU {gpu.name} is of {gpu.launch_year}; {measured}."
        warnings.append((warning,) if warning else ())
    return warnings


def work_shares(lowering: Lowering, known: Collection[str] = ()) -> dict[str, float]:
    """Return the share of the forward FLOP by ``op_type``, for operators with long sums that are not *known*."""
    kinds, shares = lowering.structure.kinds, defaultdict[str, float](float)
    total = step_flop(lowering)
    for number in (lowering.inner > 1).nonzero()[0].tolist():
        if kinds[number].op_type not in known:
            shares[kinds[number].op_type] += float(lowering.flop[number] * lowering.structure.counts[number]) / total
    return dict(shares)


def extrapolation_warnings(card: Card, graph: ModelGraph, lowering: Lowering, workload: Workload) -> Iterator[str]:
    """Yield one sentence for each reason not to trust the figures of *workload* as usual, whatever the GPU.

    Args:
        card: Of the artifact ``step_time``.
        graph: The model.
        lowering: Of *graph* under *workload*.
        workload: How it is run.
    """
    if graph.unknown_op_types:
        yield f"Operators unknown to the predictors: {_list_reasons(dict(graph.unknown_op_types))}."
    if not graph.nodes:
        yield "The model has no operations."

    # Of sizes, only what is above the fitted rows is strange: below, the host decides, which the interval covers.
    if len(graph.nodes) > MAXIMUM_NODE_COUNT:
        yield f"The model has {len(graph.nodes)} operations, more than any measured model."
    if (most := _upper_limit(card, "parameter_count")) < graph.parameter_count:
        own, largest = (f"{count / 1e6:,.0f} million" for count in (graph.parameter_count, most))
        yield f"The model has {own} parameters; no measured one has more than {largest}."
    yield from _run_warnings(graph, lowering, workload, card)


def _run_warnings(graph: ModelGraph, lowering: Lowering, workload: Workload, card: Card) -> Iterator[str]:
    if (most := _upper_limit(card, "batch_size")) < workload.batch_size:
        yield f"The batch has {workload.batch_size} samples; no measured one has more than {most:.0f}."
    flop = step_flop(lowering)
    if (most := _upper_limit(card, "flop")) < flop:
        yield f"A step takes {flop:.3g} FLOP forward; no measured one takes more than {most:.3g}."

    # An operator that does hardly any of the work changes no figure, measured or not.
    if "operator" in card.known:
        shares = work_shares(lowering, card.known["operator"])
        strange = {name: f"{100 * share:.0f} %" for name, share in shares.items() if share >= LEAST_SHARE}
        if strange:
            yield f"Operators that no measured model has, with their share of the work: {_list_reasons(strange)}."

    if workload.layout == "channels_last" and workload.mode == "train" and workload.precision in HALF:
        convolutions = (node for node in graph.nodes if node.op_type == "Conv" and group_count(node) > 1)
        if any(convolution_weight(node)[1:2] > (1,) for node in convolutions):  # depthwise ones are as predicted
            yield GROUPED_WARNING

    if replays_graph(workload):
        yield ENGINE_WARNING  # its rules are for every precision
    else:
        if engine_of(workload) != "eager":
            of_fused = COMPILED_WARNING if is_fusion_measured(workload) else FUSED_TRAINING_WARNING
            yield of_fused if is_fused(workload) else UNFUSED_WARNING
        known = set(card.known.get("precision", (workload.precision,)))
        if workload.precision in QUANTISED_BYTES:
            others = "; for bitsandbytes' load_in_8bit write precision=bnb-int8" * (workload.precision == "int8")
            counted = "bytes and launches are counted"
            yield f"Kernels for {workload.precision} weights differ between libraries: {counted}{others}."
        elif not {workload.precision, EQUIVALENT_PRECISIONS.get(workload.precision)} & known:
            yield f"No run in {workload.precision} was measured; runs in {', '.join(sorted(known))} were."
    if graph.precision is not None and workload.precision not in QUANTISED_BYTES:
        yield f"The model's weights are quantised, {graph.precision}, but count as floats in {workload.precision}."


def _upper_limit(card: Card, name: str) -> float:
    return float(card.ranges[name][1]) if name in card.ranges else float("inf")


def _list_reasons(reasons: Mapping[str, object]) -> str:
    """Return the first names with their values, and how many more there are."""
    shown = [f"{name} ({what})" for name, what in list(reasons.items())[:_SHOWN_OPERATORS]]
    rest = len(reasons) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")

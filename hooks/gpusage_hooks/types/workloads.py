"""A model's graph, the way in which the model is run, and its user's request."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Literal

Dim = int
"""One size of a tensor: ``n >= 0`` is fixed, ``-k`` stands for k times the batch size."""
Shape = tuple[Dim, ...]
Attribute = int | float | str | tuple[int, ...]
ElementType = Literal["float", "int64", "int32", "int8", "bool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation of a model, named as in the ONNX operator set.

    Nodes carry no edges, so that equal operations are equal values and can be shared.

    Attributes:
        op_type: ONNX operator, for example ``Conv``, ``MatMul``, ``Gemm``, ``Softmax``.
        inputs: Shapes of the activations that it reads, in order, weights left out.
        outputs: Shapes of what it writes.
        parameters: Shapes of the weights that it reads; never depends on the batch.
        attributes: What changes its cost, sorted by name (``group``, ``strides``, ``transB``, ``hidden_size`` ...).
        element_type: Of its first output; ``float`` means that the workload's precision decides.
    """

    op_type: str
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    parameters: tuple[Shape, ...] = ()
    attributes: tuple[tuple[str, Attribute], ...] = ()
    element_type: ElementType = "float"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelGraph:
    """A model's forward computation for any batch size, without its weights.

    Attributes:
        name: For people, for example ``resnet50``.
        source: Where it was read from: a path or a name such as ``timm:resnet50``.
        nodes: In an order in which they can run.
        producers: For each node, for each of its ``inputs``, the index of the node that made it;
            ``-1 - i`` stands for the model's input i.
        inputs: Name and shape of each model input.
        parameter_count: Elements of all weights, those used twice counted once.
        fixed_batch_size: The only batch size that the file was exported for; ``None`` where sizes follow the batch.
        unknown_op_types: Operators that no rule describes, with how often each occurs.
        notes: What a reader should know, one sentence each.
        trainable: The share of the parameters that the model itself marks as trained, above 0 and at most 1.
        precision: ``int8`` or ``int4`` where the published weights are quantised; ``None`` where they are floats.
        derived: What plugins worked out from this graph, each under its own name: no part of the graph's value, and
            kept as long as the graph. Nothing in it should refer to the graph.
    """

    name: str
    source: str
    nodes: tuple[Node, ...]
    # A number with two meanings stays: an object for each made decoding a card 11 % longer, and somebody waits for it.
    producers: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[str, Shape], ...]
    parameter_count: int
    fixed_batch_size: int | None = None
    unknown_op_types: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    trainable: float = 1.0
    precision: Precision | None = None
    derived: MutableMapping[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name}{list(shape)}" for name, shape in self.inputs)
        sizes = f"{len(self.nodes)} nodes, {self.parameter_count} parameters"
        return f"<ModelGraph {self.name!r} from {self.source!r}: {sizes}, inputs {inputs or 'none'}>"


Mode = Literal["train", "infer"]
Quantised = Literal["int8", "int4", "fp8", "nf4", "bnb-int8", "w8a8"]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp16-pure", "bf16-pure", "fp8-mixed", Quantised]
Optimizer = Literal["none", "sgd", "momentum", "adam", "adamw", "adafactor", "adam8bit", "adamw8bit", "muon"]
Layout = Literal["channels_first", "channels_last"]

Strategy = Literal["ddp", "zero1", "zero2", "zero3", "fsdp", "pipeline"]
Engine = Literal["eager", "compile", "vllm", "tensorrt-llm", "tensorrt"]
"""What runs a model in inference: PyTorch operator by operator, its compiler, or a program that serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What an inference job promises: a latency, and the rate at which requests come."""

    latency_s: float
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloRun:
    """What a user says that an earlier run alone on a whole GPU showed.

    Attributes:
        utilization: NVML's GPU utilization, above 0 and at most 1: the share of time with any kernel running.
        step_time_s: Seconds of one step.
        gpu: The GPU, by its name of the catalogue, that the step time is of; ``None`` is each that is asked for.
        batch_size: What the utilization was seen at; ``None`` is the workload's own.
        step_batch_size: The same of the step time.
    """

    utilization: float | None = None
    step_time_s: float | None = None
    gpu: str | None = None
    batch_size: int | None = None
    step_batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How a language model answers: tokens of the prompt that it reads, and tokens that it writes, both at least 1."""

    prompt_tokens: int
    new_tokens: int

    def __str__(self) -> str:
        """Return it as users write it."""
        return f"{self.prompt_tokens}+{self.new_tokens}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How a model is run, and what its user accepts and knows.

    A step is one forward pass of ``batch_size`` samples and, in training, one backward pass; where the model
    generates, one whole answer to each of them.

    Attributes:
        accumulate: Training: steps whose gradients are added up for one update of the weights.
        trainable: Training: the share of the parameters that is trained, above 0 and at most 1; the others are frozen.
        lora: Training: the rank of adapters beside all linear layers, which alone are trained; ``None`` is none.
        checkpointing: Training: whether the activations of repeated blocks are computed once more, not kept.
        generate: Inference: how long a language model's prompts and answers are; ``None`` is one forward pass.
        network_bytes_per_s: Training on several hosts: what the network carries for each GPU, one way; ``None`` is the
            site's, or what hosts with such GPUs commonly have.
        gpus: Training: GPUs that train together. Each computes ``batch_size`` samples of a step unless ``tensor``,
            ``context`` or ``pipeline`` divide them. Generation: GPUs among which each layer is divided (tensor
            parallelism), or the layers with ``pipeline``.
        tensor: Training: GPUs among which each layer of one copy of the model is divided.
        sequence_parallel: Training: whether those GPUs also divide by tokens what stands between linear layers; with
            ``fsdp`` and ``zero3`` they always do.
        context: Training: GPUs among which each sequence is divided; they compute a batch together.
        expert: Training: GPUs among which the experts of a mixture are divided; each has its own samples.
        pipeline: Training: stages, each with some of the layers of one copy of the model.
        virtual_pipeline: Training: pieces of a stage, between which the layers of all other stages lie.
        strategy: Training on several GPUs: what each of them holds of weights, gradients and state. Generation:
            ``pipeline``, some of the layers; with any other, which is then a default, a part of each layer.
        compile: Whether a compiler fuses the model's operators, as `torch.compile` does.
        layout: How images lie in memory: channel after channel, or with the channels of each pixel side by side.
        engine: Inference: what runs the model; ``eager`` beside *compile* means the compiler.
        memory_share: Of the memory that it sees that the engine is told to take; ``None`` for the engine's own default.
        processes: That run the model on a GPU at a time, each with a copy, a CUDA context and steps of its own.
        slowdown: The step time on a share against that on the whole GPU that the user accepts, at least 1; ``None``
            means the site's.
        forbidden_gpus: GPU types that the job must not get, by names of the catalogue or of the site.
        slices: Whether the job may get a slice (MIG) of the GPU type that it names, or, if false, no slice at all;
            ``None`` means as the site says.
        alone: What an earlier run alone on a whole GPU showed; its GPU may still be by any of its names.
    """

    batch_size: int = 1
    mode: Mode = "train"
    precision: Precision = "fp32"
    optimizer: Optimizer = "momentum"
    shape: tuple[tuple[str, tuple[int, ...]], ...] = ()
    steps: int | None = None
    slo: Slo | None = None
    slowdown: float | None = None
    forbidden_gpus: tuple[str, ...] = ()
    slices: bool | None = None
    alone: SoloRun = SoloRun()
    accumulate: int = 1
    trainable: float = 1.0
    lora: int | None = None
    checkpointing: bool = False
    generate: Decoding | None = None
    network_bytes_per_s: float | None = None
    gpus: int = 1
    tensor: int = 1
    sequence_parallel: bool = False
    context: int = 1
    expert: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1
    strategy: Strategy = "ddp"
    compile: bool = False
    layout: Layout = "channels_first"
    engine: Engine = "eager"
    memory_share: float | None = None
    processes: int = 1

    @property
    def gpus_per_replica(self) -> int:
        """Return how many GPUs compute a batch together in training."""
        return self.tensor * self.context * self.pipeline

    @property
    def replica_count(self) -> int:
        """Return how many batches are computed side by side in training."""
        return max(self.gpus // self.gpus_per_replica, 1)

    @property
    def weight_copies(self) -> int:
        """Return how many GPUs train the same weights, and sum their gradients."""
        return self.replica_count * self.context


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What a user wrote about the model: the comment, or the command's options.

    Attributes:
        named: The keys that the user wrote, ``precision`` among them or not.
        assumed: What the user left out and a prediction depends on most, as ``batch=1``, for people.
        first_run: The jobs whose own runs showed all of this, with ``+`` between them; empty if a person wrote it.
    """

    model: str
    workload: Workload = Workload()
    assumed: tuple[str, ...] = ()
    named: tuple[str, ...] = field(default=(), compare=False)
    enabled: bool = True
    first_run: str = ""

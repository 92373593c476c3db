"""What a comment tells us."""

from __future__ import annotations

import re
from functools import partial

import pytest

from gpusage_hooks.comment import MODEL_NAMES, is_model_path, parse_comment, parse_model
from gpusage_hooks.errors import RequestError
from gpusage_hooks.job_values import StepTime, Utilization
from gpusage_hooks.types import ModelRequest, Slo, SoloRun, Workload


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("/data/resnet50.onnx", "/data/resnet50.onnx"),
        ("timm:resnet50", "timm:resnet50"),
        ("model=r.onnx", "r.onnx"),
        ('model="a,b.onnx"', "a,b.onnx"),
        ('model="ada\'s.onnx",batch=64', "ada's.onnx"),
        ("model='6\".onnx',batch=64", '6".onnx'),
        ("/data/lr=0.1/x.onnx", "/data/lr=0.1/x.onnx"),
        ("project=x; gpusage: model=r.onnx,batch=64; y", "r.onnx"),
        ("project=x; Gpusage: model='a;b.onnx',batch=64; y", "a;b.onnx"),
        ("model=r.onnx,batch=64; project=x", "r.onnx"),
        ("r.onnx,batch=64", "r.onnx"),
        ("timm:resnet50, batch=64", "timm:resnet50"),
        ("batch=64,model=r.onnx", "r.onnx"),
    ],
)
def test_a_comment_addressed_to_us_names_its_model(text: str, model: str) -> None:
    request = parse_comment(text)
    assert request is not None
    assert request.model == model


def test_a_plugins_names_of_models_are_known_where_they_are_given() -> None:
    names = (*MODEL_NAMES, "*.acme", "acme:*")
    for text in ("net.acme,batch=8", "acme:net", "/data/lr=0.1/net.acme"):
        request = parse_comment(text, names)
        assert request is not None
        assert request.model == text.partition(",")[0]
        assert parse_comment(text) is None
    assert is_model_path("net.acme", names)
    assert not is_model_path("acme:net", names)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "project=x",
        "mymodel=r.onnx",
        "see gpusage docs",
        "a.onnx and more",
        "a.onnx,b.onnx",
        "mode=debug",
        "models=5",
        "a;b",
        "project=x,model=T",
        "learn=on",
        "Learn=ON",
        "learn=off; project=x",
        "learn=ml101",
        "project=x; gpusage: learn=on; more",
    ],
)
def test_any_other_comment_belongs_to_somebody_else(text: str) -> None:
    assert parse_comment(text) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model=x;batch=8", "must join its keys by ','; got ';' before 'batch=8'. Write 'model=x,batch=8'"),
        ("x.onnx; batch=8", "Write 'x.onnx,batch=8'"),
        ("a=1; gpusage: model=x; batch=8,mode=infer", "Write 'model=x,batch=8,mode=infer'"),
        ("modle=x.onnx,batch=8", "Did you mean 'model'"),
        ("Model=timm:resnet50", "Did you mean 'model'"),
        ("modl=x.onnx", "Did you mean 'model'"),
        ("gpusage model=x.onnx", "must have a ':' after 'gpusage'"),
        ("project=x; gpusage: learn=perhaps", "Key 'learn'"),
    ],
)
def test_what_was_clearly_meant_for_us_is_never_silently_left_out(text: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=re.escape(sentence)):
        parse_comment(text)


@pytest.mark.parametrize(
    ("text", "assumed"),
    [
        ("r.onnx", ("batch=1", "mode=train", "precision=fp32")),
        ("r.onnx,batch=1,precision=fp16", ("mode=train",)),
        ("r.onnx,batch=64,mode=train,precision=fp32", ()),
    ],
)
def test_what_is_assumed_is_known(text: str, assumed: tuple[str, ...]) -> None:
    assert parse_model(text).assumed == assumed


def test_every_key_arrives() -> None:
    request = parse_model(
        "model=r.onnx,batch=64,shape=seq=128,shape=input=3x224x224,mode=infer,precision=bf16,"
        "optimizer=adam,steps=1000,slo=50ms,rate=10"
    )
    assert request == ModelRequest(
        model="r.onnx",
        workload=Workload(
            batch_size=64,
            mode="infer",
            precision="bf16",
            optimizer="adam",
            shape=(("seq", (128,)), ("input", (3, 224, 224))),
            steps=1000,
            slo=Slo(latency_s=0.05, rate_per_s=10.0),
        ),
    )


@pytest.mark.parametrize("text", ["gpusage=off", "gpusage: off", "model=r.onnx,gpusage=off"])
def test_a_job_can_opt_out(text: str) -> None:
    request = parse_comment(text)
    assert request is not None
    assert not request.enabled


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model=x,btch=3", "Did you mean 'batch'"),
        ("model=x,tensor_parallel=2", "Did you mean 'tensor'"),
        ("model=x,TENSOR=2", "Did you mean 'tensor'"),
        ("model=x,virtual=2", "Did you mean 'virtual_pipeline'"),
        ("model=x,batch=0", "whole number"),
        ("model=x,batch=64,batch=32", "given once"),
        ("model=x,batch=9999999999", "10\\^9"),
        ("model=x,mode=trained", "train, infer"),
        ("model=x,slo=50ms", "mode=infer"),
        ("model=x,mode=infer,rate=5", "slo=50ms"),
        ("model=x,mode=infer,slo=0ms", "above 0"),
        ("model='x", "close every quote"),
        ("model=ada's.onnx", "close every quote"),
        ('model="a\'b"c\'d"', "close every quote"),
        ("model=", "must name a model"),
        ("model=x,shape=224", "input=3x224x224"),
    ],
)
def test_a_mistake_gets_a_sentence_that_says_what_to_write(text: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        parse_model(text)


def test_all_of_the_parameters_may_stand_beside_adapters() -> None:
    """As the last of a loop over shares of them does."""
    workload = parse_model("r.onnx,lora=8,trainable=1").workload
    assert (workload.lora, workload.trainable) == (8, 1.0)


def test_what_the_user_accepts_and_knows_of_a_share_is_understood() -> None:
    request = parse_comment("r.onnx,slowdown=1.5,utilization=60,step_time=30ms@a100")
    assert request is not None
    assert request.workload.slowdown == 1.5
    assert request.workload.alone == SoloRun(utilization=0.6, step_time_s=0.03, gpu="a100")
    both = parse_comment("r.onnx,utilization=60@8,step_time=30ms@a100@16").workload.alone
    assert (both.gpu, both.batch_size, both.step_batch_size) == ("a100", 8, 16)
    request = parse_comment("r.onnx,batch=64,utilization=60 @ 32")
    assert request is not None
    assert request.workload.alone == SoloRun(utilization=0.6, batch_size=32)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((StepTime(), text) for text in ("30ms@a100", "30 ms @ a100", "30ms@a100@32", "30ms@a100 @ 32")),
        *((Utilization(), text) for text in ("60", "60 %", "60@32", "60 % @ 32")),
    ],
)
def test_the_schema_takes_spaces_where_the_parser_does(value: StepTime | Utilization, text: str) -> None:
    value.parse("key", text)
    assert re.search(str(value.json_schema["pattern"]), text)


@pytest.mark.parametrize(
    ("text", "percent"), [("60%", 60.0), ("60 %", 60.0), ("0.6%", 0.6), ("1", 1.0), ("1.5", 1.5), ("100", 100.0)]
)
def test_a_utilization_is_percent_with_or_without_its_sign(text: str, percent: float) -> None:
    parse = partial(Utilization().parse, "utilization")
    assert parse(text) == (pytest.approx(percent / 100), None)
    assert parse(f"{text}@32") == (pytest.approx(percent / 100), 32)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("slowdown=0.9", "Key 'slowdown' must be a number from 1 to 100; got '0.9'. Write 'slowdown=1.25'."),
        ("accumulate=0", "Key 'accumulate' must be a whole number from 1 to 10^9; got '0'. Write 'accumulate=8'."),
        ("mode=infer,accumulate=8", "belongs to a training job; got '8'. Remove 'accumulate' or 'mode=infer'."),
        ("precision=nf4", "of quantised weights must stand beside adapters in training; got 'nf4'. Add 'lora=16' or"),
        ("precision=int4,trainable=1", "must stand beside adapters in training; got 'int4'. Add 'lora=16' or"),
        ("precision=fp8", "got 'fp8'. Write 'precision=fp8-mixed', or add 'lora=16' or 'mode=infer'."),
        ("precision=fp8mixed", "got 'fp8mixed'. Write 'precision=fp8-mixed'."),
        ("precision=fp8-e4m3", "got 'fp8-e4m3'. Write 'precision=fp8'."),
        (
            "mode=infer,precision=fp8-mixed",
            "must be fp8-mixed in training alone; got 'fp8-mixed'. Write 'precision=fp8'.",
        ),
        ("lora=16,trainable=0.1", "Key 'lora' must not stand beside 'trainable'; got '16'. Remove one of the two."),
        ("generate=512+128,lora=16", "belongs to a training job; got '16'. Remove 'lora' or 'generate'."),
        ("mode=infer,lora=16", "belongs to a training job; got '16'. Remove 'lora' or 'mode=infer'."),
        ("trainable=2", "must be a share of the parameters, above 0 and at most 1; got '2'. Write 'trainable=0.02'."),
        (
            "mode=infer,generate=512",
            "must be tokens of the prompt and new tokens, up to 9999999 each; got '512'.",
        ),
        ("mode=train,generate=9+9", "belongs to an inference job; got '9+9'. Add 'mode=infer' or remove 'generate'."),
        ("checkpointing=some", "Key 'checkpointing' must be one of on, off; got 'some'. Choose one of them."),
        ("layout=last", "must be one of channels_first, channels_last; got 'last'."),
        ("compile=one", "Key 'compile' must be one of on, off; got 'one'. Write 'compile=on'."),
        (
            "precision=double",
            "fp16-pure, bf16-pure, fp8-mixed, int8, int4, fp8, nf4, bnb-int8, w8a8; got 'double'. Choose one of them.",
        ),
        ("mode=infer,checkpointing=on", "belongs to a training job; got 'on'."),
        ("mode=infer,gpus=4", "Key 'gpus' must stand beside 'generate' in inference; got '4'. Add 'generate=512+128'."),
        ("network=200", "must stand beside 'gpus'; got '200'. Add 'gpus=4' or remove 'network'."),
        ("gpus=16,network=fast", "must be a number of Gb/s above 0; got 'fast'. Write 'network=200'."),
        ("strategy=fsdp", "must stand beside 'gpus'; got 'fsdp'. Add 'gpus=4' or remove 'strategy'."),
        ("pipeline=4,tensor=2", "Key 'pipeline' must stand beside 'gpus'; got '4'. Add 'gpus=8' or remove 'pipeline'."),
        ("gpus=4,strategy=zero", "must be one of ddp, zero1, zero2, zero3, fsdp, pipeline; got 'zero'. Write"),
        (
            "gpus=4,strategy=pipeline",
            "must not be pipeline in training, where 'pipeline' counts the stages; got 'pipeline'. Write",
        ),
        ("gpus=4,generate=8+8,strategy=fsdp", "must be pipeline in inference; got 'fsdp'. Remove 'strategy' or write"),
        ("gpus=0", "Key 'gpus' must be a whole number from 1 to 10^9; got '0'."),
        ("mode=infer,trainable=0.1", "belongs to a training job; got '0.1'. Remove 'trainable' or 'mode=infer'."),
        ("slowdown=101", "must be a number from 1 to 100"),
        ("slowdown=nan", "must be a number from 1 to 100"),
        ("utilization=0", "Key 'utilization' must be percent above 0, at most 100; got '0'. Write 'utilization=60'."),
        ("utilization=101", "at most 100"),
        ("utilization=101%", "at most 100"),
        ("utilization=0.6@32", "must be percent, and have a '%' where it could be a share of 1; got '0.6@32'. Write"),
        ("utilization=0.6@32", "Write 'utilization=60', or '0.6%' if that is meant."),
        ("utilization=1.0", "Write 'utilization=100', or '1.0%' if that is meant."),
        ("utilization=60@", "must have a batch size after '@'; got '60@'. Write 'utilization=60@32'."),
        ("utilization=60@a100", "must have a batch size after '@'; got '60@a100'."),
        ("utilization=60@0", "must have a batch size after '@'"),
        ("step_time=30ms", "must name the GPU that it was measured on; got '30ms'. Write 'step_time=30ms@a100'."),
        ("step_time=30ms@a100@x", "must have a batch size after its GPU's '@'"),
        ("step_time=30@a100", "must be a time above 0 in us, ms or s; got '30'. Write 'step_time=30ms@a100'."),
        ("step_time=٣ms@a100", "must be a time above 0"),
        (f"step_time={'9' * 400}s@a100", "must be a time above 0"),  # infinite, as a number
    ],
)
def test_what_cannot_be_of_a_share_gets_a_sentence(words: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=re.escape(sentence)):
        parse_comment(f"r.onnx,{words}")


def test_gpus_that_hold_a_copy_of_the_model_divide_all_gpus() -> None:
    request = parse_comment("r.onnx,gpus=24,tensor=4,pipeline=2,accumulate=8")
    assert request is not None
    assert (request.workload.tensor, request.workload.pipeline, request.workload.replica_count) == (4, 2, 3)
    sentence = "must be a multiple of tensor x context x pipeline, 8; got '12'. Write 'gpus=8' or a multiple of it."
    with pytest.raises(RequestError, match=re.escape(sentence)):
        parse_comment("r.onnx,gpus=12,tensor=4,pipeline=2")
    parts = parse_comment("r.onnx,gpus=24,tensor=2,context=4")
    assert parts is not None
    assert (parts.workload.replica_count, parts.workload.weight_copies) == (3, 12)
    rule = "must divide the number of GPUs that train the same weights, gpus / (tensor x pipeline) = 4"
    for expert, cure in ((8, "expert=4"), (3, "expert=2")):
        sentence = f"{rule}; got '{expert}'. Write '{cure}' or remove 'expert'."
        with pytest.raises(RequestError, match=re.escape(sentence)):
            parse_comment(f"r.onnx,gpus=8,pipeline=2,expert={expert}")
    for key in ("tensor", "expert"):  # experts have no adapters, so each GPU has those of all other layers
        rule = f"'lora' must not stand beside '{key}', which divides no adapters; got"
        with pytest.raises(RequestError, match=rule):
            parse_comment(f"r.onnx,gpus=2,{key}=2,lora=8")
    by_tokens = parse_comment("r.onnx,gpus=8,tensor=4,sequence_parallel=on")
    assert by_tokens is not None
    assert by_tokens.workload.sequence_parallel
    for words in (
        "tensor=2",
        "pipeline=2",
        "gpus=2,tensor=2,generate=512+128",
        "gpus=2,sequence_parallel=on",
        "gpus=2,virtual_pipeline=2",
    ):
        with pytest.raises(RequestError, match=r"must stand beside '(gpus|tensor|pipeline)'|belongs to a training job"):
            parse_comment(f"r.onnx,{words}")


def test_several_processes_run_on_one_gpu() -> None:
    request = parse_comment("r.onnx,processes=4,gpus=1")
    assert request is not None
    assert request.workload.processes == 4
    with pytest.raises(RequestError, match="'processes' must not stand beside 'gpus', of which each runs one; got '4'"):
        parse_comment("r.onnx,processes=4,gpus=2")


def test_several_gpus_and_how_they_divide_a_model_are_understood() -> None:
    for words, expected in (
        ("gpus=4,strategy=fsdp", (4, "fsdp")),
        ("gpus=1,strategy=fsdp", (1, "fsdp")),
        ("gpus=2", (2, "ddp")),
        ("gpus=2,generate=512+128,strategy=pipeline", (2, "pipeline")),
        ("batch=8", (1, "ddp")),
    ):
        request = parse_comment(f"r.onnx,{words}")
        assert request is not None
        assert (request.workload.gpus, request.workload.strategy) == expected


@pytest.mark.parametrize(
    ("words", "precision", "optimizer"),
    [
        ("precision=amp", "fp16", "momentum"),
        ("precision=bf16-mixed,optimizer=lion", "bf16", "momentum"),
        ("precision=16,optimizer=sgdm", "fp16", "momentum"),
        ("precision=32,optimizer=adam", "fp32", "adam"),
        ("precision=bfloat16-mixed,optimizer=adam", "bf16", "adam"),
        ("precision=mixed_float16,optimizer=adam", "fp16", "adam"),
        ("precision=bf16_with_fp8_mixed,optimizer=adam", "fp8-mixed", "adam"),
        ("precision=16-true,optimizer=adamw_torch", "fp16-pure", "adamw"),
        ("optimizer=paged_adamw_8bit", "fp32", "adamw8bit"),
        ("lora=8,precision=bnb.nf4,optimizer=paged_adamw_32bit", "nf4", "adamw"),
        ("lora=8,precision=load_in_8bit,optimizer=adam", "bnb-int8", "adam"),
        ("lora=8,precision=LLM.int8,optimizer=adam", "bnb-int8", "adam"),
        ("lora=8,precision=int8-wo,optimizer=adam", "int8", "adam"),
        ("lora=8,precision=SmoothQuant,optimizer=adam", "w8a8", "adam"),
        ("mode=infer,precision=GPTQ", "int4", "momentum"),
    ],
)
def test_words_of_other_tools_are_understood(words: str, precision: str, optimizer: str) -> None:
    request = parse_comment(f"r.onnx,{words}")
    assert request is not None
    assert (request.workload.precision, request.workload.optimizer) == (precision, optimizer)


def test_cudnns_words_for_layouts_are_understood() -> None:
    for word, layout in (("NHWC", "channels_last"), ("nchw", "channels_first"), ("channels-last", "channels_last")):
        request = parse_comment(f"r.onnx,layout={word}")
        assert request is not None
        assert request.workload.layout == layout


def test_a_model_that_generates_is_in_inference() -> None:
    request = parse_comment("r.onnx,generate=512+128")
    assert request is not None
    assert request.workload.mode == "infer"
    assert "mode=infer" in request.assumed


@pytest.mark.parametrize(
    ("written", "precision", "assumed"),
    [
        ("bf16", "bf16-pure", ("mode=train", "precision=bf16-pure")),
        ("half", "fp16-pure", ("mode=train", "precision=fp16-pure")),
        ("bf16-mixed", "bf16", ("mode=train",)),
        ("16-Mixed", "fp16", ("mode=train",)),
        ("bf16-pure", "bf16-pure", ("mode=train",)),
    ],
)
def test_frozen_weights_have_two_bytes_unless_the_precision_is_written_as_mixed(
    written: str, precision: str, assumed: tuple[str, ...]
) -> None:
    request = parse_model(f"r.onnx,batch=2,lora=8,precision={written}")
    assert (request.workload.precision, request.assumed) == (precision, assumed)

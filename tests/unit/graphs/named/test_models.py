"""Models by name and by Hugging Face configuration: built without weights, without a network, without foreign code."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import gpusage
from gpusage.decisions.prediction import request_with_model_settings
from gpusage.graphs.card.text import to_document
from gpusage.graphs.named import diffusion
from gpusage.graphs.named.huggingface import build_name
from gpusage.graphs.named.image_libraries import build
from gpusage.graphs.reader import read_model
from gpusage.graphs.torch.module import graph_from_module
from gpusage.predictors.work.lowering import forward_flop
from gpusage_hooks.comment import parse_model
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a library opens a connection."""

    def refuse(*_: object) -> None:
        pytest.fail("a model by name must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def read(source: str, **shape: tuple[int, ...]) -> ModelGraph:
    graph = read_model(source, shape)
    assert graph is not None
    return graph


def folder(path: Path, **configuration: object) -> str:
    (path / "config.json").write_text(json.dumps(configuration))
    return str(path)


@pytest.mark.parametrize(
    ("source", "parameters", "gmac"),
    [
        # parameters and multiply-adds a sample as the models' papers and libraries publish them
        ("timm:resnet50", 25_557_032, 4.09),
        ("timm:resnet50.a1_in1k", 25_557_032, 4.09),
        ("torchvision:mobilenet_v3_small", 2_542_856, 0.06),
        ("torchvision:regnet_y_400mf", 4_344_144, 0.40),  # its sizes are computed with tensors
        ("torchvision:r3d_18", 33_371_472, 40.70),
        ("hf:distilgpt2", 81_912_576, 10.53),  # 128 tokens x 81.9 million, and attention
        ("hf:google/vit-base-patch16-224", 86_567_656 - 768_000 - 1000 + 768 * 2 + 2, 17.56),  # two classes
    ],
)
def test_a_model_by_name_has_its_published_figures(source: str, parameters: int, gmac: float) -> None:
    graph = read(source)
    assert graph.parameter_count == parameters
    assert forward_flop(graph) / 2e9 == pytest.approx(gmac, rel=0.12 if gmac < 1 else 0.03)
    assert graph.source == source
    assert graph.fixed_batch_size is None
    assert graph.unknown_op_types == ()


@pytest.mark.parametrize(
    ("source", "option", "expected"),
    [
        ("timm:resnet18", {"input": (3, 288, 288)}, (-1, 3, 288, 288)),
        ("timm:vit_tiny_patch16_224", {"size": (384,)}, (-1, 3, 384, 384)),
        ("torchvision:resnet18", {"x": (3, 64, 96)}, (-1, 3, 64, 96)),
        ("hf:distilgpt2", {"seq": (32,)}, (-1, 32)),
        ("hf:distilgpt2", {"input_ids": (48,)}, (-1, 48)),
    ],
)
def test_the_shape_is_as_the_option_says(source: str, option: dict[str, tuple[int, ...]], expected: object) -> None:
    assert read(source, **option).inputs[0][1] == expected


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("openai/whisper-large-v3", "whisper-large-v3"),
    ],
)
def test_the_hubs_spelling_of_a_known_model_is_understood(name: str, known: str) -> None:
    graph, own = read(f"hf:{name}"), read(f"hf:{known}")
    assert graph.parameter_count == own.parameter_count
    assert graph.name == name


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("meta-llama/Llama-2-13b-hf", 13_015_864_320),
        ("meta-llama/Llama-2-70b-hf", 68_976_648_192),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
        ("google/gemma-3-1b-it", 999_885_952),
        ("openai/gpt-oss-20b", 20_914_757_184),
        ("microsoft/phi-4", 14_659_507_200),
        ("deepseek-ai/DeepSeek-V3-0324", 671_026_419_200 - 58 * 256),  # the biases of its experts' choice are buffers
        ("sentence-transformers/all-MiniLM-L6-v2", 22_713_216),
        ("stabilityai/stable-diffusion-xl-base-1.0", 2_567_463_684),
        ("stabilityai/stable-diffusion-3-medium-diffusers", 2_028_328_000),
        ("black-forest-labs/FLUX.1-dev", 11_901_408_320),
    ],
)
def test_a_language_model_has_as_many_parameters_as_the_hub_counts(name: str, parameters: int) -> None:
    assert read(f"hf:{name}").parameter_count == parameters


@pytest.mark.parametrize(
    ("name", "precision"), [("gpt-oss-20b", "int4"), ("deepseek-v3", "fp8"), ("kimi-k2", "fp8"), ("phi-4", None)]
)
def test_a_model_that_is_published_quantised_says_so(name: str, precision: str | None) -> None:
    assert read(f"hf:{name}").precision == precision


def test_the_decoder_is_as_long_as_the_encoder_unless_it_is_given() -> None:
    assert dict(read("hf:t5-small", seq=(16,)).inputs) == {"input_ids": (-1, 16), "decoder_input_ids": (-1, 16)}
    graph = read("hf:t5-small", seq=(16,), decoder_seq=(4,))
    assert dict(graph.inputs) == {"input_ids": (-1, 16), "decoder_input_ids": (-1, 4)}


@pytest.mark.parametrize(
    ("source", "option", "rule"),
    [
        ("timm:resnt50", {}, "must be one that timm defines; got an unknown name. Did you mean timm:resnet50"),
        ("timm:hf-hub:someone/model", {}, "must be one that timm defines"),
        ("timm:vit_base_patch16_224.augreg", {}, "Did you mean vit_base_patch16_224.augreg_in1k"),
        ("torchvision:resnet5", {}, "Did you mean torchvision:resnet50"),
        ("hf:bert-base-uncase", {}, "Did you mean hf:bert-base-uncased"),
        ("hf:someone/secret", {}, "Give the model's folder or its config.json instead"),
        ("hf:../../etc", {}, "Give the model's folder or its config.json instead"),
        ("timm:resnet18", {"seq": (4,)}, "must name 'input' or 'size'; got 'seq'"),
        ("timm:resnet18", {"input": (3, 288)}, "must have 3 positive sizes, batch left out; got 3x288"),
        ("timm:resnet18", {"input": (3, 10**9, 10**9)}, "must have at most 2^48 elements"),
        ("timm:resnet18", {"size": (0,)}, "must have 3 positive sizes"),
        ("hf:distilgpt2", {"image": (4,)}, "must give an input of the model, as in input_ids=128; got image=4"),
        ("torchvision:raft_small", {}, "missing 1 required positional argument"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(source: str, option: dict[str, tuple[int, ...]], rule: str) -> None:
    with pytest.raises(GraphError) as caught:
        read_model(source, option)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["timm:resnet18", "torchvision:mobilenet_v3_small", "hf:distilgpt2"])
def test_a_card_of_ours_is_what_the_library_gives(source: str) -> None:
    library, _, name = source.partition(":")
    built = build_name(name, {}) if library == "hf" else build(library, name, {})
    notes = tuple(note for note in read(source).notes if "default length" not in note)  # said of either, when asked
    assert to_document(replace(read(source), notes=notes)) == to_document(built)


@pytest.mark.parametrize("library", ["timm", "torchvision", "torch"])
def test_a_library_that_is_missing_is_named_with_the_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        GraphError, match=rf"Library {library} must be there .* Install gpusage with its extra \[torch\]"
    ):
        read_model("torchvision:resnet18" if library != "timm" else "timm:resnet18", {"size": (40,)})


def test_a_folder_and_its_configuration_are_the_same_model(tmp_path: Path) -> None:
    source = folder(tmp_path, model_type="bert", num_hidden_layers=2, architectures=["BertForMaskedLM"])
    one, other = read(source), read(f"{source}/config.json")
    assert one.nodes == other.nodes
    assert one.name == tmp_path.name
    # 30522 words, 512 positions, 2 types of 768, a LayerNorm; 2 layers of 7,087,872; the head 590,592 + 1,536 + 30,522
    assert one.parameter_count == (30522 + 512 + 2) * 768 + 1536 + 2 * 7_087_872 + 590_592 + 1536 + 30522


def test_code_beside_a_configuration_never_runs(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nModel = None\n")
    source = folder(tmp_path, model_type="bert", num_hidden_layers=1, auto_map={"AutoModel": "evil.Model"})
    assert read(source).nodes
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ("[]", "must name its model_type"),
        ('{"model_type": 3}', "must name its model_type"),
        ('{"_class_name": "UNet3DModel"}', "must be of a class that diffusers"),
        ('{"_class_name": "logging"}', "Run its program under 'gpusage capture', or export it to ONNX"),
        ('{"_class_name": "QwenImageTransformer2DModel", "num_layers": 1}', "as a UNet, SD3 or Flux does"),
        ('{"_class_name": "UNet2DConditionModel", "layers_per_block": 1000000}', "'layers_per_block' of at most 512"),
        ('{"model_type": "brt"}', "Did you mean bert?"),
        ('{"model_type": "bert", "num_hidden_layers": 1000000}', "must have 'num_hidden_layers' of at most 512"),
        ('{"model_type": "bert", "hidden_size": 1000000000000}', "must have 'hidden_size' of at most"),
        ('{"model_type": "bert", "hidden_size": -4}', "must be one that its library can build"),
        ('{"model_type": "bert", "hidden_size": "x"}', "must be one that its library can build"),
        ('{"model_type": "vit", "image_size": -12, "patch_size": 16}', "must give input 'pixel_values' sizes that are"),
        (" " * (1024 * 1024 + 1), "must be at most 1048576 bytes"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(GraphError) as caught:
        read_model(str(tmp_path), {})
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_configuration_of_an_earlier_download_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    snapshot = tmp_path / "hub" / "models--someone--secret" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    folder(snapshot, model_type="distilbert", n_layers=1)
    assert read("hf:someone/secret").name == "someone/secret"


@pytest.mark.parametrize("source", ["other:resnet50", "/nowhere/at/all", "/tmp"])
def test_what_is_no_name_is_left_to_other_readers(source: str) -> None:
    assert read_model(source, {}) is None


@pytest.mark.parametrize(
    ("source", "shape", "notes"),
    [
        ("hf:bert-base-uncased", {}, ["seq=128"]),
        ("hf:bert-base-uncased", {"seq": (64,)}, []),
        ("hf:t5-small", {}, ["seq=128", "decoder_seq=128"]),
        ("hf:t5-small", {"seq": (64,)}, []),  # the decoder's follows
        ("hf:vit-base-patch16-224", {}, []),
    ],
)
def test_a_length_that_nobody_gave_is_said_to_be_a_default(
    source: str, shape: dict[str, tuple[int, ...]], notes: list[str]
) -> None:
    output = [note for note in read(source, **shape).notes if "default length" in note]
    assert [note.split(", ")[1].split(";")[0] for note in output] == notes


def test_the_length_of_a_text_beside_an_image_is_a_default_too(tmp_path: Path) -> None:
    source = folder(tmp_path, model_type="clip")
    assert any("default length, seq=77; set yours by shape=seq=N" in note for note in read(source).notes)
    assert not any("default length" in note for note in read(source, seq=(64,)).notes)


def test_a_newer_model_of_images_and_text_is_its_text_model_with_a_note(tmp_path: Path) -> None:
    text = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "vocab_size": 99,
    }
    graph = read(folder(tmp_path, model_type="acme_vl", text_config={**text, "num_attention_heads": 4}))
    assert "transformers does not define acme_vl: LlamaForCausalLM is predicted in its place." in graph.notes
    assert graph.parameter_count == pytest.approx(2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 2 * 99 * 64 + 64)


def test_a_type_that_transformers_does_not_define_is_built_as_the_class_that_it_names(tmp_path: Path) -> None:
    """kimi_k2 is a DeepseekV3ForCausalLM of other sizes."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "n_routed_experts": 8, "n_group": 1}
    other = {"intermediate_size": 128, "moe_intermediate_size": 32, "vocab_size": 99, "topk_group": 1}
    kimi = folder(tmp_path, model_type="kimi_k2", architectures=["DeepseekV3ForCausalLM"], **sizes, **other)
    graph = read(kimi)
    assert "transformers does not define kimi_k2: DeepseekV3ForCausalLM is predicted in its place." in graph.notes
    same = read(folder(tmp_path, model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"], **sizes, **other))
    assert graph.nodes == same.nodes


TEXT = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 300, "head_dim": 16}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("kind", "architecture", "text", "words"),
    [
        ("gemma3", "Gemma3ForConditionalGeneration", {"num_attention_heads": 4}, "Text alone is predicted"),
        (
            "llama4",
            "Llama4ForConditionalGeneration",
            {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size_mlp": 128, "num_local_experts": 2},
            "Text alone is predicted",
        ),
    ],
)
def test_images_that_go_in_by_their_values_leave_a_pass_over_text(
    tmp_path: Path, kind: str, architecture: str, text: dict[str, int], words: str
) -> None:
    parts = {"text_config": {"model_type": f"{kind}_text", **TEXT, **text}, "vision_config": VISION}
    graph = read(folder(tmp_path, model_type=kind, architectures=[architecture], **parts), seq=(16,))
    assert dict(graph.inputs) == {"input_ids": (-1, 16)}
    assert any(note.startswith(words) for note in graph.notes)


UNET = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 16,
    "block_out_channels": [32, 640],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "layers_per_block": 1,
    "cross_attention_dim": 48,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 80,
}
SD3 = {
    "_class_name": "SD3Transformer2DModel",
    "sample_size": 16,
    "num_layers": 1,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "joint_attention_dim": 24,
    "caption_projection_dim": 16,
    "pooled_projection_dim": 20,
}
FLUX = {
    "_class_name": "FluxTransformer2DModel",
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 24,
    "pooled_projection_dim": 20,
    "in_channels": 12,
    "guidance_embeds": True,
    "axes_dims_rope": [4, 6, 6],
}


@pytest.mark.parametrize(
    ("configuration", "shape", "inputs"),
    [
        (UNET, {}, [(-1, 4, 16, 16), (-1,), (-1, 77, 48), (-1, 32), (-1, 6)]),
        (UNET, {"sample": (4, 32, 8)}, [(-1, 4, 32, 8), (-1,), (-1, 77, 48), (-1, 32), (-1, 6)]),
        (SD3, {}, [(-1, 16, 16, 16), (-1, 333, 24), (-1, 20), (-1,)]),
        (
            FLUX,
            {"hidden_states": (256, 12)},
            [(-1, 256, 12), (-1, 512, 24), (-1, 20), (-1,), (-1,), (256, 3), (512, 3)],
        ),
    ],
)
def test_a_denoiser_of_diffusers_is_read_from_its_configuration(
    tmp_path: Path, configuration: dict[str, object], shape: dict[str, tuple[int, ...]], inputs: list[tuple[int, ...]]
) -> None:
    graph = read(folder(tmp_path, **configuration), **shape)
    assert [sizes for _, sizes in graph.inputs] == inputs
    assert graph.fixed_batch_size is None
    assert graph.unknown_op_types == ()
    assert [note for note in graph.notes if "default length" in note or "One pass of the denoiser" in note] == [
        diffusion.DENOISER_NOTE
    ]


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("fasterrcnn_resnet50_fpn", (800, 1066)),
        ("maskrcnn_resnet50_fpn", (800, 1066)),
        ("keypointrcnn_resnet50_fpn", (800, 1066)),
        ("ssdlite320_mobilenet_v3_large", (320, 320)),
    ],
)
def test_a_detector_has_the_size_that_it_resizes_its_pictures_to(name: str, side: tuple[int, int]) -> None:
    """Its boxes are compared all at once: by class, torchvision asks for values."""
    graph = read(f"torchvision:{name}")
    assert graph.inputs[0][1][1:] == (3, *side)
    assert any(note.startswith("How much it selects depends on values") for note in graph.notes)


@pytest.mark.parametrize(("kind", "drawn"), [("MaskRCNN", 1), ("KeypointRCNN", 17)])
def test_a_detector_has_the_layers_of_masks_and_keypoints_and_draws_none(kind: str, drawn: int) -> None:
    """How large a box is depends on values. Of three boxes in each of two pictures the last layer makes 28 x 28."""
    import torch
    from torchvision.models import detection
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    backbone = torch.nn.Conv2d(3, 8, 3, stride=8)
    backbone.out_channels = 8
    sizes = {"min_size": 64, "max_size": 64, "box_detections_per_img": 3}
    anchors = AnchorGenerator(((32,),), ((1.0,),))
    model = getattr(detection, kind)(backbone, 2, rpn_anchor_generator=anchors, **sizes)
    heads, transform = detection.roi_heads, detection.transform
    usual = heads.heatmaps_to_keypoints, transform.paste_masks_in_image
    graph = graph_from_module(model, (torch.zeros(2, 3, 64, 64),))
    channels = 256 if drawn == 1 else drawn
    (last,) = (node for node in graph.nodes if node.op_type == "ConvTranspose")
    assert last.outputs == ((2 * 3, channels, 28, 28),)
    assert (heads.heatmaps_to_keypoints, transform.paste_masks_in_image) == usual


def test_a_model_of_one_batch_size_runs_at_it_unless_its_user_names_another() -> None:
    assert gpusage.predict("torchvision:maskrcnn_resnet50_fpn", gpu="v100").throughput_samples_per_s.value > 0
    with pytest.raises(GraphError, match="be run at its only batch size, 2; got batch=1"):
        gpusage.predict("torchvision:maskrcnn_resnet50_fpn", gpu="v100", batch_size=1)
    request = parse_model("torchvision:maskrcnn_resnet50_fpn")
    settled = request_with_model_settings(request, read("torchvision:maskrcnn_resnet50_fpn"))
    assert settled.workload.batch_size == 2
    assert settled.assumed == ("batch=2", "mode=train", "precision=fp32")


@pytest.mark.parametrize(
    ("name", "published_s"),
    [("fasterrcnn_resnet50_fpn", 0.2288), ("maskrcnn_resnet50_fpn", 0.2728), ("keypointrcnn_resnet50_fpn", 0.3789)],
)
def test_a_detector_trains_as_fast_as_torchvision_says(name: str, published_s: float) -> None:
    """On eight V100, two pictures each: torchvision 0.3, "Runtime characteristics"."""
    need = gpusage.predict(f"torchvision:{name}", gpu="v100", gpus=8)
    assert need.step_time_s.value == pytest.approx(published_s, rel=0.2)
    assert need.fits

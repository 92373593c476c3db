"""Graphs of the nine training jobs of MLPerf 0.5 that Takayama et al. ran, without their weights.

ResNet-50 is in the zoo already (``gavel:resnet50@224``); the others are of torch's and torchvision's layers. A graph
stands for one step's forward pass; of Mask R-CNN's data-dependent part it has the heads over the number of regions that
training samples, not the choice of regions.

Source:
    mlcommons/training (MLPerf's reference code): the sizes alone; the models are those of the papers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpusage.graphs.torch.libraries import build_on_meta, import_library
from gpusage.graphs.torch.module import graph_from_module
from gpusage_hooks.types import ModelGraph
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.networks import layers

Recipe = Callable[[], ModelGraph]
Module = Any
"""A torch.nn.Module; torch is imported only where a graph is made."""

SENTENCE_LENGTH = 32
"""Words of a sentence with its padding; sentences of like length share a batch."""
REVIEW_LENGTH = 256
"""Words of a film review, the mean."""
FRAMES = 1200
"""Hundredths of a second of an utterance of LibriSpeech, the mean."""
TRANSFORMER_TOKENS, GNMT_TOKENS, REVIEW_TOKENS, CHARACTERS = 33_945, 32_317, 5_149, 29
ML20M_USERS, ML20M_ITEMS = 138_493, 26_744
REGIONS, MASKS = 512, 128
"""Of an image, that Mask R-CNN's heads look at in training: a quarter of the regions shows an object."""
BOARD, PLANES = 9, 17


def mlperf_models(_: DataFolder) -> dict[str, Recipe]:
    """Return the eight models that no other source has."""
    words, floats, names = "int64", "float32", ("mlperf:ssd", "mlperf:mask_rcnn", "mlperf:ncf", "mlperf:seq2cnn")
    pair = (SENTENCE_LENGTH,)
    return {
        "mlperf:ssd@300": partial(_traced, names[0], single_shot_detector, [(3, 300, 300)], floats),
        "mlperf:mask_rcnn@800": partial(_traced, names[1], mask_rcnn, [(3, 800, 1216)], floats),
        "mlperf:ncf@1": partial(_traced, names[2], collaborative_filter, [(), ()], words),
        "mlperf:seq2cnn@256": partial(_traced, names[3], review_network, [(REVIEW_LENGTH,)], words),
        "mlperf:gnmt@32": partial(_traced, "mlperf:gnmt", recurrent_translator, [pair, pair], words),
        "mlperf:transformer@32": partial(_traced, "mlperf:transformer", _transformer, [pair, pair], words),
        "mlperf:deepspeech2@1200": partial(_traced, "mlperf:deepspeech2", speech_network, [(1, 161, FRAMES)], floats),
        "mlperf:minigo@9": partial(_traced, "mlperf:minigo", go_network, [(PLANES, BOARD, BOARD)], floats),
    }


def single_shot_detector() -> Module:
    """Return SSD300 on ResNet-34, whose third stage keeps the 38 x 38 cells and whose fourth is left out."""
    whole = import_library("torchvision").models.resnet34(weights=None)
    return detector_on(whole, (whole.layer3[0].conv1, whole.layer3[0].downsample[0]), 256, is_normalized=False)


def detector_on(whole: Module, strided: tuple[Module, ...], width: int, *, is_normalized: bool) -> Module:
    """Return SSD300 on a ResNet up to its third stage.

    Args:
        whole: The ResNet.
        strided: The layers whose stride becomes 1, so that the third stage keeps the 38 x 38 cells.
        width: Channels of that stage.
        is_normalized: Whether each added convolution has a normalization.
    """
    torch = import_library("torch")
    nn = torch.nn
    for layer in strided:
        layer.stride = (1, 1)
    trunk = nn.Sequential(*list(whole.children())[:7])
    channels, boxes, classes = (width, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4), 81
    middle, steps = (256, 256, 128, 128, 128), ((2, 1), (2, 1), (2, 1), (1, 0), (1, 0))

    def convolution(before: int, after: int, *sizes: int) -> list[Module]:
        normalization = [nn.BatchNorm2d(after)] if is_normalized else []
        return [nn.Conv2d(before, after, *sizes, bias=not is_normalized), *normalization, nn.ReLU()]

    extra = nn.ModuleList(
        nn.Sequential(*convolution(before, narrow, 1), *convolution(narrow, after, 3, *step))
        for before, narrow, after, step in zip(channels[:-1], middle, channels[1:], steps, strict=True)
    )

    def heads(outputs: int) -> Module:
        pairs = zip(channels, boxes, strict=True)
        return nn.ModuleList(nn.Conv2d(width, count * outputs, 3, padding=1) for width, count in pairs)

    def forward(self: Module, images: Module) -> tuple[Module, ...]:
        maps = [self.trunk(images)]
        for block in self.extra:
            maps.append(block(maps[-1]))
        places = [head(features).flatten(1) for head, features in zip(self.places, maps, strict=True)]
        kinds = [head(features).flatten(1) for head, features in zip(self.kinds, maps, strict=True)]
        return torch.cat(places, dim=1), torch.cat(kinds, dim=1)

    return layers.Steps.of(forward, trunk=trunk, extra=extra, places=heads(4), kinds=heads(classes))


def mask_rcnn() -> Module:
    """Return Mask R-CNN on ResNet-50 with a feature pyramid: trunk, proposals, and the heads over sampled regions."""
    torch, detection = import_library("torch"), import_library("torchvision.models.detection")
    backbone = import_library("torchvision.models.detection.backbone_utils").resnet_fpn_backbone(
        backbone_name="resnet50", weights=None
    )
    regions = import_library("torchvision.models.detection.rpn")
    boxes, masks = detection.faster_rcnn, detection.mask_rcnn
    classes, width = 81, 256

    def forward(self: Module, images: Module) -> tuple[Module, ...]:
        maps = list(self.backbone(images).values())
        scores, moved = self.proposals(maps)
        pooled = images.new_zeros((images.shape[0] * REGIONS, width, 7, 7))
        closer = images.new_zeros((images.shape[0] * MASKS, width, 14, 14))
        kinds, places = self.boxes(self.regions(pooled))
        proposed = torch.cat([value.flatten(1) for value in (*scores, *moved)], dim=1)
        return proposed, kinds, places, self.outlines(self.masks(closer))

    return layers.Steps.of(
        forward,
        backbone=backbone,
        proposals=regions.RPNHead(width, 3),
        regions=boxes.TwoMLPHead(width * 49, 1024),
        boxes=boxes.FastRCNNPredictor(1024, classes),
        masks=masks.MaskRCNNHeads(width, (width,) * 4, 1),
        outlines=masks.MaskRCNNPredictor(width, width, classes),
    )


def collaborative_filter() -> Module:
    """Return NeuMF with 64 factors over ML-20M."""
    return layers.neural_factors(users=ML20M_USERS, items=ML20M_ITEMS, factors=64, widths=(256, 256, 128))


def review_network() -> Module:
    """Return the bag-of-words network: convolutions of three and of four words, their maxima, a linear layer."""
    torch = import_library("torch")
    nn, width = torch.nn, 1024

    def forward(self: Module, words: Module) -> Module:
        embedded = self.words(words).transpose(1, 2)
        return self.verdict(
            torch.cat([self.elu(convolutions(embedded)).amax(dim=2) for convolutions in (self.three, self.four)], dim=1)
        )

    return layers.Steps.of(
        forward,
        words=nn.Embedding(REVIEW_TOKENS, width),
        three=nn.Conv1d(width, width, 3, padding=1),
        four=nn.Conv1d(width, width, 4, padding=2),
        elu=nn.ELU(),
        verdict=nn.Linear(2 * width, 2),
    )


def recurrent_translator() -> Module:
    """Return GNMT: four LSTM layers on either side, the first one both ways, and additive attention."""
    torch = import_library("torch")
    nn, width = torch.nn, 1024

    def forward(self: Module, source: Module, target: Module) -> Module:
        state, _ = self.both_ways(self.words(source))
        state, _ = self.second(self.dropout(state))
        for layer in self.encoder:
            state = layer(self.dropout(state))[0] + state
        answer, _ = self.first(self.words(target))
        mixed = self.energy((self.query(answer)[:, :, None] + self.key(state)[:, None]).tanh())
        context = mixed.squeeze(-1).softmax(dim=-1) @ state
        for layer in self.decoder:
            answer = layer(torch.cat((self.dropout(answer), context), dim=-1))[0] + answer
        return self.classes(answer)

    def lstm(inputs: int) -> Module:
        return nn.LSTM(inputs, width, batch_first=True)

    return layers.Steps.of(
        forward,
        words=nn.Embedding(GNMT_TOKENS, width),
        dropout=nn.Dropout(0.2),
        both_ways=nn.LSTM(width, width, batch_first=True, bidirectional=True),
        second=lstm(2 * width),
        encoder=nn.ModuleList(lstm(width) for _ in range(2)),
        first=lstm(width),
        query=nn.Linear(width, width, bias=False),
        key=nn.Linear(width, width, bias=False),
        energy=nn.Linear(width, 1, bias=False),
        decoder=nn.ModuleList(lstm(2 * width) for _ in range(3)),
        classes=nn.Linear(width, GNMT_TOKENS),
    )


def speech_network() -> Module:
    """Return Deep Speech 2: two convolutions over the spectrogram and three GRU layers of 2,560, both ways, summed."""
    nn, width = import_library("torch").nn, 2560

    def forward(self: Module, sound: Module) -> Module:
        state = self.convolutions(sound).flatten(1, 2).transpose(1, 2)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            there, back = layer(norm(state.transpose(1, 2)).transpose(1, 2))[0].chunk(2, dim=-1)
            state = there + back
        return self.letters(state)

    convolutions = [nn.Conv2d(1, 32, (41, 11), stride=(2, 2)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20)]
    convolutions += [nn.Conv2d(32, 32, (21, 11), stride=(2, 1)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20)]
    widths = (32 * 21, *(width,) * 2)
    return layers.Steps.of(
        forward,
        convolutions=nn.Sequential(*convolutions),
        layers=nn.ModuleList(nn.GRU(before, width, batch_first=True, bidirectional=True) for before in widths),
        norms=nn.ModuleList(nn.BatchNorm1d(before) for before in widths),
        letters=nn.Linear(width, CHARACTERS),
    )


def go_network() -> Module:
    """Return Minigo's network for a board of 9 x 9: nine residual blocks of 32 channels, a policy and a value."""
    nn, width = import_library("torch").nn, 32

    def convolution(before: int, after: int, kernel: int) -> Module:
        return nn.Sequential(nn.Conv2d(before, after, kernel, padding=kernel // 2), nn.BatchNorm2d(after))

    def forward(self: Module, board: Module) -> tuple[Module, Module]:
        state = self.first(board).relu()
        for one, two in zip(self.ones, self.twos, strict=True):
            state = (two(one(state).relu()) + state).relu()
        return self.policy(state), self.value(state)

    def blocks() -> Module:
        return nn.ModuleList(convolution(width, width, 3) for _ in range(BOARD))

    policy = nn.Sequential(convolution(width, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * BOARD**2, BOARD**2 + 1))
    value = nn.Sequential(
        convolution(width, 1, 1), nn.ReLU(), nn.Flatten(), layers.perceptron((BOARD**2, 2 * width, 1)), nn.Tanh()
    )
    first = convolution(PLANES, width, 3)
    return layers.Steps.of(forward, first=first, ones=blocks(), twos=blocks(), policy=policy, value=value)


def _transformer() -> Module:
    tokens = TRANSFORMER_TOKENS
    return layers.sequence_to_sequence(tokens, tokens, width=1024, heads=16, inner=4096, layers=6)


def _traced(name: str, build: Callable[[], Module], shapes: list[tuple[int, ...]], kind: str) -> ModelGraph:
    torch = import_library("torch")
    inputs = tuple(torch.empty((2, *shape), dtype=getattr(torch, kind), device="meta") for shape in shapes)
    return graph_from_module(build_on_meta(build, name), inputs, name=name.partition(":")[2], origin=name)

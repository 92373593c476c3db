"""Three models that no library of the extra ``[torch]`` defines: an LSTM language model, a U-Net, a recommender."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class LanguageModel(nn.Module):
    """Two LSTM layers of 1500 between an embedding and a projection, the size of the classic large word model."""

    def __init__(self, vocabulary: int = 10_000, width: int = 1500) -> None:
        """Make the layers."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.projection = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next word at each position."""
        hidden, _ = self.lstm(self.embedding(tokens))
        scores: Tensor = self.projection(hidden)
        return scores


def twice(channels_in: int, channels_out: int) -> nn.Sequential:
    """Return two 3x3 convolutions with batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """The U-shaped segmenter: four steps down, four up, with the skipped features beside."""

    def __init__(self, classes: int = 2, width: int = 64) -> None:
        """Make the layers; *width* is the number of channels at full resolution."""
        super().__init__()
        widths = [width << level for level in range(5)]
        self.down = nn.ModuleList(twice(before, after) for before, after in zip([3, *widths], widths, strict=False))
        self.pool = nn.MaxPool2d(2)
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * after, after, 2, stride=2) for after in widths[-2::-1])
        self.up = nn.ModuleList(twice(2 * after, after) for after in widths[-2::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each class at each pixel."""
        skipped: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else self.pool(x))
            skipped.append(x)
        skipped.pop()
        for widen, block in zip(self.widen, self.up, strict=True):
            x = block(torch.cat([skipped.pop(), widen(x)], dim=1))
        scores: Tensor = self.head(x)
        return scores


def perceptron(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths, each with a ReLU behind it."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """A recommender: embeddings of categories, a perceptron of numbers, and all their pairwise products."""

    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 64) -> None:
        """Make *tables* embeddings of *rows* by *width*."""
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = perceptron(13, 512, 256, width)
        features = tables + 1
        self.top = nn.Sequential(perceptron(features * features + width, 512, 256), nn.Linear(256, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """Return the chance of a click."""
        bottom = self.bottom(dense)
        looked_up = [table(categories[:, index]) for index, table in enumerate(self.tables)]
        features = torch.stack([bottom, *looked_up], dim=1)
        products = torch.matmul(features, features.transpose(1, 2)).flatten(1)
        chance: Tensor = torch.sigmoid(self.top(torch.cat([bottom, products], dim=1)))
        return chance

"""Kinds of network that timm, torchvision and transformers lack: U-Net, graph convolutions, a click model."""

from __future__ import annotations

from typing import Any

from gpusage.graphs.torch.libraries import import_library
from gpusage_lab.networks.layers import Steps

Module = Any
"""A torch.nn.Module."""
ROWS_OF_A_TABLE = 100_000


def tiny_convolutions() -> Module:
    """Return two convolutions and a linear layer, for tests."""
    nn = import_library("torch").nn
    layers = (nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 4 * 4, 10))


def u_net(width: int = 64, depth: int = 4) -> Module:
    """Return the network of Ronneberger et al., with padding and batch normalisation."""
    torch = import_library("torch")
    nn = torch.nn

    def block(before: int, after: int) -> Module:
        twice = ((before, after), (after, after))
        return nn.Sequential(
            *(
                layer
                for first, last in twice
                for layer in (nn.Conv2d(first, last, 3, padding=1), nn.BatchNorm2d(last), nn.ReLU())
            )
        )

    def forward(self: Module, image: Module) -> Module:
        skipped = []
        for step in self.down:
            image = step(image)
            skipped.append(image)
            image = nn.functional.max_pool2d(image, 2)
        image = self.bottom(image)
        for up, step, skip in zip(self.up, self.join, reversed(skipped), strict=True):
            image = step(torch.cat([up(image), skip], dim=1))
        return self.last(image)

    widths = [width * 2**level for level in range(depth + 1)]
    return Steps.of(
        forward,
        down=nn.ModuleList(block(before, after) for before, after in zip([3, *widths], widths[:-1], strict=False)),
        bottom=block(widths[-2], widths[-1]),
        up=nn.ModuleList(nn.ConvTranspose2d(2 * size, size, 2, stride=2) for size in reversed(widths[:-1])),
        join=nn.ModuleList(block(2 * size, size) for size in reversed(widths[:-1])),
        last=nn.Conv2d(width, 2, 1),
    )


def graph_convolutions(nodes: int = 512, neighbours: int = 8) -> Module:
    """Return three graph convolutions over the same random graph for each sample, as gather and scatter."""
    torch = import_library("torch")
    nn = torch.nn

    def forward(self: Module, state: Module) -> Module:
        for place, layer in enumerate(self.layers):
            sent = layer(state)[:, self.edges[0]]
            state = torch.zeros_like(sent[:, :nodes]).index_add(1, self.edges[1], sent)
            state = state.relu() if place < len(self.layers) - 1 else state
        return state.mean(dim=1)

    network = Steps.of(
        forward, layers=nn.ModuleList(nn.Linear(before, after) for before, after in ((128, 256), (256, 256), (256, 40)))
    )
    network.register_buffer("edges", torch.randint(0, nodes, (2, nodes * neighbours)))
    return network


def click_model(tables: int = 26, width: int = 64) -> Module:
    """Return a DLRM: an embedding a category, their products with the dense features, and a perceptron on top."""
    torch = import_library("torch")
    nn = torch.nn

    def forward(self: Module, dense: Module, categories: Module) -> Module:
        looked_up = [table(categories[:, place]) for place, table in enumerate(self.tables)]
        features = torch.stack([self.bottom(dense), *looked_up], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        return self.top(products)

    return Steps.of(
        forward,
        tables=nn.ModuleList(nn.Embedding(ROWS_OF_A_TABLE, width) for _ in range(tables)),
        bottom=nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width)),
        top=nn.Sequential(
            nn.Linear((tables + 1) ** 2, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 2)
        ),
    )

"""Models that no library of the zoo has, from torch's own layers; each function returns a module without data.

torch is imported inside the functions: only making the zoo needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from gpusage.graphs.torch.libraries import import_library

Module = Any


class Steps:
    """Makes a module out of its parts and of what one forward pass does with them."""

    @staticmethod
    def of(forward: Any, **parts: Any) -> Module:  # a function of the parts and the inputs
        """Return a module that calls ``forward(module, *inputs)``."""
        torch = import_library("torch")
        module = type("Steps", (torch.nn.Module,), {"forward": forward})()
        for name, part in parts.items():
            setattr(module, name, part)
        return module


def perceptron(widths: Sequence[int]) -> Module:
    """Return linear layers of these widths, with ReLU between them."""
    nn = import_library("torch").nn
    layers: list[Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def recurrent_language_model(tokens: int, *, width: int, layers: int) -> Module:
    """Return embedding, LSTM and a linear layer over all words."""
    nn = import_library("torch").nn

    def forward(self: Module, words: Module) -> Module:
        hidden, _ = self.recurrent(self.dropout(self.embedding(words)))
        return self.decoder(self.dropout(hidden))

    return Steps.of(
        forward,
        embedding=nn.Embedding(tokens, width),
        dropout=nn.Dropout(0.2),
        recurrent=nn.LSTM(width, width, layers, batch_first=True, dropout=0.2),
        decoder=nn.Linear(width, tokens),
    )


def sequence_to_sequence(source: int, target: int, *, width: int, heads: int, inner: int, layers: int) -> Module:
    """Return an encoder and a decoder of *layers* layers each, attention written out as in 2019's code."""
    nn = import_library("torch").nn

    def forward(self: Module, words: Module, answer: Module) -> Module:
        memory = self.source(words)
        for attend, feed in zip(self.encoder_attention, self.encoder_feed, strict=True):
            memory = feed(attend(memory, memory))
        state = self.target(answer)
        for attend, attend_memory, feed in zip(
            self.decoder_attention, self.decoder_cross_attention, self.decoder_feed, strict=True
        ):
            state = feed(attend_memory(attend(state, state), memory))
        return self.words(state)

    def several(make: Any) -> Module:  # a function that makes a module
        return nn.ModuleList(make() for _ in range(layers))

    return Steps.of(
        forward,
        source=nn.Embedding(source, width),
        target=nn.Embedding(target, width),
        encoder_attention=several(lambda: _attention(width, heads)),
        encoder_feed=several(lambda: _feed(width, inner)),
        decoder_attention=several(lambda: _attention(width, heads)),
        decoder_cross_attention=several(lambda: _attention(width, heads)),
        decoder_feed=several(lambda: _feed(width, inner)),
        words=nn.Linear(width, target, bias=False),
    )


def _attention(width: int, heads: int) -> Module:
    nn = import_library("torch").nn

    def forward(self: Module, state: Module, memory: Module) -> Module:
        def split(value: Module) -> Module:
            return value.unflatten(-1, (heads, width // heads)).transpose(1, 2)

        query, key, value = split(self.query(state)), split(self.key(memory)), split(self.value(memory))
        scores = (query @ key.transpose(-2, -1)) / (width // heads) ** 0.5
        mixed = self.dropout(scores.softmax(dim=-1)) @ value
        return self.norm(self.dropout(self.output(mixed.transpose(1, 2).flatten(2))) + state)

    names = ("query", "key", "value", "output")
    parts = {name: nn.Linear(width, width) for name in names}
    return Steps.of(forward, dropout=nn.Dropout(0.1), norm=nn.LayerNorm(width), **parts)


def _feed(width: int, inner: int) -> Module:
    nn = import_library("torch").nn

    def forward(self: Module, state: Module) -> Module:
        return self.norm(self.layers(state) + state)

    layers = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width), nn.Dropout(0.1))
    return Steps.of(forward, layers=layers, norm=nn.LayerNorm(width))


def actor_critic(frames: int) -> Module:
    """Return four convolutions, an LSTM cell and two heads, over frames one after the other."""
    torch = import_library("torch")
    nn = torch.nn

    def forward(self: Module, images: Module) -> Module:
        hidden = cell = images.new_zeros((images.shape[0], 512))
        heads = []
        for frame in range(frames):
            hidden, cell = self.memory(self.see(images[:, frame]), (hidden, cell))
            heads += [self.actor(hidden), self.critic(hidden)]
        return torch.cat(heads, dim=1)

    layers: list[Module] = []
    for before, after, kernel, padding in ((1, 32, 5, 2), (32, 32, 5, 1), (32, 64, 4, 1), (64, 64, 3, 1)):
        layers += [nn.Conv2d(before, after, kernel, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
    return Steps.of(
        forward,
        see=nn.Sequential(*layers, nn.Flatten()),
        memory=nn.LSTMCell(1024, 512),
        actor=nn.Linear(512, 6),
        critic=nn.Linear(512, 1),
    )


def cyclegan_step() -> Module:
    """Return what one CycleGAN step computes: six images made, and both discriminators' three looks."""

    def forward(self: Module, first: Module, second: Module) -> tuple[Module, ...]:
        to_second, to_first = self.to_second(first), self.to_first(second)
        images = (self.to_first(first), self.to_second(second), self.to_first(to_second), self.to_second(to_first))
        verdicts = [self.first_discriminator(image) for image in (to_first, first, to_first)]
        verdicts += [self.second_discriminator(image) for image in (to_second, second, to_second)]
        return (*images, *verdicts)

    return Steps.of(
        forward,
        to_first=_image_generator(9),
        to_second=_image_generator(9),
        first_discriminator=_patch_discriminator(),
        second_discriminator=_patch_discriminator(),
    )


def _image_generator(blocks: int) -> Module:
    nn = import_library("torch").nn

    def convolution(before: int, after: int, kernel: int, stride: int = 1) -> list[Module]:
        normalised = [nn.InstanceNorm2d(after), nn.ReLU()]
        return [nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2), *normalised]

    layers = [*convolution(3, 64, 7), *convolution(64, 128, 3, 2), *convolution(128, 256, 3, 2)]
    layers += [
        _residual(nn.Sequential(*convolution(256, 256, 3), *convolution(256, 256, 3)[:2])) for _ in range(blocks)
    ]
    for before, after in ((256, 128), (128, 64)):
        layers += [nn.Upsample(scale_factor=2), *convolution(before, after, 3)]
    return nn.Sequential(*layers, nn.Conv2d(64, 3, 7, padding=3), nn.Tanh())


def _residual(layers: Module) -> Module:
    def forward(self: Module, image: Module) -> Module:
        return image + self.layers(image)

    return Steps.of(forward, layers=layers)


def _patch_discriminator() -> Module:
    nn = import_library("torch").nn
    layers: list[Module] = [nn.Conv2d(3, 64, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
    for before, after in ((64, 128), (128, 256), (256, 512)):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.InstanceNorm2d(after), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, padding=1))


def dcgan_step() -> Module:
    """Return one generated image and the discriminator's three looks."""
    nn = import_library("torch").nn

    def forward(self: Module, real: Module) -> tuple[Module, ...]:
        image = self.make(real.new_zeros((real.shape[0], 100, 1, 1)))
        return self.discriminator(real), self.discriminator(image), self.discriminator(image)

    discriminator: list[Module] = [nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for before, after in ((64, 128), (128, 256), (256, 512)):
        discriminator += [nn.Conv2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]
    make: list[Module] = [nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU()]
    for before, after in ((512, 256), (256, 128), (128, 64)):
        make += [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return Steps.of(
        forward,
        discriminator=nn.Sequential(*discriminator, nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Sigmoid()),
        make=nn.Sequential(*make, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh()),
    )


def collaborative_filter() -> Module:
    """Return NeuMF with 32 factors over ML-1M."""
    return neural_factors(users=6_040, items=3_706, factors=32, widths=(256, 128, 64))


def neural_factors(*, users: int, items: int, factors: int, widths: tuple[int, ...]) -> Module:
    """Return NeuMF: a product and a perceptron of two embeddings each.

    Args:
        users: How many there are.
        items: Likewise.
        factors: The width of the product.
        widths: Of the perceptron's layers; the first are the two embeddings side by side.
    """
    torch = import_library("torch")
    nn, deep = torch.nn, widths[0] // 2

    def forward(self: Module, user: Module, item: Module) -> Module:
        product = self.user_factors(user) * self.item_factors(item)
        hidden = self.layers(torch.cat((self.user_deep(user), self.item_deep(item)), dim=-1))
        return self.rating(torch.cat((product, hidden), dim=-1))

    return Steps.of(
        forward,
        user_factors=nn.Embedding(users, factors),
        item_factors=nn.Embedding(items, factors),
        user_deep=nn.Embedding(users, deep),
        item_deep=nn.Embedding(items, deep),
        layers=nn.Sequential(perceptron((*widths, factors)), nn.ReLU()),
        rating=nn.Linear(2 * factors, 1),
    )


def point_network() -> Module:
    """Return PointNet's classifier with its first transformation."""
    nn = import_library("torch").nn

    def shared(widths: Sequence[int]) -> Module:
        layers: list[Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self: Module, points: Module) -> Module:
        turn = self.turn(self.attend_memory(points).amax(dim=2)).unflatten(-1, (3, 3))
        turned = (points.transpose(1, 2) @ turn).transpose(1, 2)
        return self.classes(self.features(turned).amax(dim=2))

    return Steps.of(
        forward,
        attend_memory=shared((3, 64, 128, 1024)),
        turn=perceptron((1024, 512, 256, 9)),
        features=shared((3, 64, 128, 1024)),
        classes=perceptron((1024, 512, 256, 16)),
    )

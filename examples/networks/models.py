"""Networks as they stand in people's own code, each as a function that `--model` can name, with data to train it on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import seepage as sp
from seepage.data import load

PADDING = 0
LENGTH, VOCABULARY, TOPICS = 16, 156, 3  # of the sentences that Seepage makes up
VITALS, HOURS = 6, 12


class BasicBlock(nn.Module):
    """As in torchvision, names included."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """A residual step."""
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A narrow ResNet of torchvision's kind, with two blocks."""

    def __init__(self, classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(self.avgpool(self.layer2(self.layer1(x))).flatten(1))


class ViT(nn.Module):
    """Patches of 7 × 7, a class token and torch's own encoder."""

    def __init__(self, classes: int = 10, width: int = 64, patch: int = 7) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (28 // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1) + self.positions
        return self.head(self.encoder(tokens)[:, 0])


class TextClassifier(nn.Module):
    """Token and place embeddings, torch's own encoder, and a linear layer on the first token."""

    def __init__(self, dropout: float = 0.0, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width, padding_idx=PADDING)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, TOPICS)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        z = self.tokens(x) + self.places(torch.arange(x.shape[-1]))
        return self.head(self.encoder(z, src_key_padding_mask=x == PADDING)[:, 0])


class TextLSTM(nn.Module):
    """An LSTM over embedded tokens, read at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 32, padding_idx=PADDING)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, TOPICS)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.head(self.lstm(self.tokens(x))[0][:, -1])


class SeriesLSTM(nn.Module):
    """An LSTM over vital signs, hour by hour."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(VITALS, 32, batch_first=True)
        self.head = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.head(self.lstm(x)[0][:, -1])


IMAGES, TEXTS = load("fashion-mnist").spec, load("sentences").spec
SERIES = sp.DataSpec((HOURS, VITALS), classes=2, low=-4.0, high=4.0)
ROWS = sp.DataSpec((VITALS,), classes=2, low=-4.0, high=4.0)


def seeded(make: Callable[[], nn.Module], spec: sp.DataSpec) -> sp.Task:
    """The global model: the same whenever it is asked for."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return sp.Task(make(), spec)


def resnet() -> sp.Task:
    """Train-mode BatchNorm, as torchvision's models have it."""
    return seeded(ResNet, IMAGES)


def vit() -> sp.Task:
    """A vision transformer."""
    return seeded(ViT, IMAGES)


def text() -> sp.Task:
    """A transformer for text."""
    return seeded(TextClassifier, TEXTS)


def text_dropout() -> sp.Task:
    """The same with the dropout that torch's layers have unless told otherwise."""
    return seeded(lambda: TextClassifier(dropout=0.1), TEXTS)


def text_lstm() -> sp.Task:
    """An LSTM for text."""
    return seeded(TextLSTM, TEXTS)


def series_lstm() -> sp.Task:
    """An LSTM for series of numbers."""
    return seeded(SeriesLSTM, SERIES)


def tabular() -> sp.Task:
    """A perceptron for rows of a table."""
    return seeded(lambda: nn.Sequential(nn.Linear(VITALS, 64), nn.ReLU(), nn.Linear(64, 2)), ROWS)


def batch(spec: sp.DataSpec, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """What a client has: bundled images, sentences, or vital signs that are made up."""
    if spec.is_text or spec.is_image:
        held = load("sentences" if spec.is_text else "fashion-mnist").train[count * seed : count * (seed + 1)]
        return held.x, held.y
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *spec.shape, generator=rng)
    return (x.cumsum(1) / 2 if len(spec.shape) == 2 else x), torch.randint(2, (count,), generator=rng)

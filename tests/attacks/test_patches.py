"""Images from the gradients of a patch embedding and of the positions: exact, or refused with a reason."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from common.nets import images, numbers, seeded
from seepage.attacks import Patches
from seepage.capture import Capture, Exchange
from seepage.finding import NotApplicable
from seepage.local import local_update
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Setting, View, observe

SPEC = DataSpec((2, 6, 6), classes=3)


class Transformer(nn.Module):
    """Nine patches, with the class token in front, behind, or none."""

    def __init__(self, token: str = "front", width: int = 12, normalised: bool = False) -> None:
        super().__init__()
        self.embed = nn.Conv2d(2, width, 2, 2)
        self.cls = None if token == "none" else nn.Parameter(numbers(1, 1, width))
        self.front = token == "front"
        self.positions = nn.Parameter(numbers(9 + (token != "none"), width, seed=1))
        self.norm = nn.LayerNorm(width) if normalised else nn.Identity()
        self.block = nn.TransformerEncoderLayer(width, 2, 8, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.embed(x).flatten(2).transpose(1, 2))
        if self.cls is not None:
            token = self.cls.expand(len(x), -1, -1)
            z = torch.cat([token, z] if self.front else [z, token], 1)
        return self.head(self.block(z + self.positions).mean(1))


def seen(task: Task, held: Examples, recipe: Recipe) -> View:
    with torch.no_grad():
        update = local_update(task, task.params, recipe.schedule(held.x, held.y), recipe)
    exchange = Exchange(0, dict(task.params), update, recipe.sends, dict(task.buffers), None, len(held))
    return observe([(Capture("a", (exchange,)), None)], Setting(task, recipe), THREATS["honest-server"])


@pytest.mark.parametrize("token", ["front", "behind", "none"])
@pytest.mark.parametrize("recipe", [Recipe(sends="gradient"), Recipe(SGD(0.1, momentum=0.5), epochs=3)], ids=str)
def test_a_single_image_is_exact_whatever_follows_and_after_many_steps(token: str, recipe: Recipe) -> None:
    task, held = Task(seeded(lambda: Transformer(token)), SPEC), images(1, seed=3, shape=SPEC.shape)
    found = Patches()(seen(task, held, recipe), Stream.from_seed(0))
    assert found.inputs is not None
    assert found.labels is not None
    assert found.objective is not None
    torch.testing.assert_close(found.inputs[0], held.x, rtol=1e-6, atol=1e-6)
    assert found.labels[0].equal(held.y)
    assert float(found.objective[0]) < 1e-9


@pytest.mark.parametrize(
    ("make", "count", "why"),
    [
        (Transformer, 2, "a single image, got 2"),
        (lambda: Transformer(width=8), 1, "at least as wide as there are patches, 9, got 8"),
        (lambda: Transformer(normalised=True), 1, "that is added to what it makes of them, got none"),
        (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3)), 1, "expected a vision transformer"),
    ],
)
def test_what_cannot_be_solved_is_refused(make, count: int, why: str) -> None:
    task, held = Task(seeded(make), SPEC), images(count, shape=SPEC.shape)
    with pytest.raises(NotApplicable, match=why):
        Patches()(seen(task, held, Recipe(sends="gradient")), Stream.from_seed(0))

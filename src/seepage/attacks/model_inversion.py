"""What each class looks like to a model: one input per class, which the model is surest of.

Fredrikson, Jha and Ristenpart, 2015, "Model inversion attacks that exploit confidence information and basic
countermeasures" (https://doi.org/10.1145/2810103.2813677), as Driouich, Xu, Neglia, Giroire and Thomas, 2023
(https://arxiv.org/abs/2210.16205) write it in eq. (5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from seepage.attacks.base import check_needs
from seepage.attacks.lmra import Guess, guessed_model
from seepage.engine.minimise import Solution, minimise
from seepage.engine.optimisers import sgd
from seepage.finding import Finding, NotApplicable
from seepage.pieces.boxes import boxed
from seepage.streams import Stream
from seepage.task import Params, Task
from seepage.threat import Fact, View

__all__ = ["ModelInversion", "class_images"]

STEPS, LR = 500, 1.0


@dataclass(frozen=True)
class ModelInversion:
    """For each class, the input to which a model gives it the largest probability, inside the range of pixels.

    Begins with the mean of the data everywhere, as normalised inputs of zeros are, and descends along the gradient of
    the logarithm of the probability, which has the same maximum and does not vanish far from it.

    Args:
        model: which model stands for the client's own.
        steps: of gradient descent; the paper does not say how many.
        lr: its learning rate; the paper has 1e-3 for LMRA and 1e-4 for others, for the probability itself.
    """

    name: ClassVar[str] = "model-inversion"
    needs: ClassVar[frozenset[Fact]] = frozenset()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    model: Guess = "last-answer"
    steps: int = STEPS
    lr: float = LR

    def __post_init__(self) -> None:
        if self.steps < 1 or self.lr <= 0:
            raise ValueError(f"expected `steps` of at least 1 and `lr` above 0, got {self.steps} and {self.lr}")

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        if view.task.spec.classes is None:
            raise NotApplicable("expected a model that tells classes apart, got a regression: no class to look for")
        models = guessed_model(view, self.model, rng / "model")
        like = {name: p.to(view.params[name].dtype) for name, p in models.items()}
        train = view.assumed_recipe.train
        found = class_images(view.task, like, dict(view.buffers), steps=self.steps, lr=self.lr, train=train)
        return Finding(
            class_inputs=found.x[:, 0],
            objective=found.value[:, 0],
            first_objective=found.first_value[:, 0],
            status=found.status[:, 0],
        )


def class_images(
    task: Task, params: Params, buffers: Params, *, steps: int = STEPS, lr: float = LR, train: bool = False
) -> Solution:
    """Eq. (5) for every class and every client's model at once; its `x` is (clients, 1, classes, …).

    Args:
        task: a classification.
        params: (clients, …).
        buffers: (clients, …).
        steps: of gradient descent.
        lr: its learning rate.
        train: mode of the module; in train mode BatchNorm takes its statistics from the inputs of all classes.
    """
    classes, like = task.spec.classes, next(iter(params.values()))
    assert classes is not None

    def objective(x: Tensor, params: Params, buffers: Params) -> Tensor:
        out, _ = task.forward(params, x, buffers=buffers, train=train)
        return cross_entropy(out, torch.arange(classes, device=x.device), reduction="sum")

    start = like.new_zeros(len(like), 1, classes, *task.spec.shape)
    given = (params, buffers)
    return minimise(objective, start, given, optimiser=sgd(lr), steps=steps, project=boxed(task.spec, start))

"""Local model reconstruction for networks, and the models that stand in for it without any attack.

Driouich, Xu, Neglia, Giroire and Thomas, 2023, "Local Model Reconstruction Attacks in Federated Learning and their
Uses" (https://arxiv.org/abs/2210.16205), Algorithm 2 and its baselines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch

from seepage.attacks.attribute_inversion import AttributeInversion
from seepage.attacks.base import check_needs
from seepage.attacks.local_model import LocalModel
from seepage.finding import Finding, NotApplicable
from seepage.pieces.lone_training import train_alone
from seepage.pieces.update_map import UpdateMap
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["LMRA", "Guess", "StandIn", "guessed_model"]

Guess: TypeAlias = Literal["global", "last-answer", "exact", "lmra", "ignoring", "recovered"]
"""Which model is taken for a client's own: the last global one, the one that it returned last, that of Proposition 1
for least squares, that of Algorithm 2, one trained on the public columns with the mean of all values in the sensitive
one, or one trained on the column that `attribute-inversion` recovers."""


@dataclass(frozen=True)
class LMRA:
    """Learn how a client answers models, and look for the model that it would leave as it is.

    The paper names the sizes and learning rates that it used per client, chosen on results; here all clients have the
    same. It does not say how inputs and outputs are scaled (here to 1), how long eq. (7) is trained (here until it
    explains the rounds), and where eq. (8) begins (here, at the model returned last).

    Args:
        hidden: units of each of the two hidden layers.
        fit_epochs: of eq. (7), by Adam.
        fit_lr: its learning rate.
        epochs: of eq. (8), by gradient descent.
        lr: its learning rate, for the mean square of the answer's coordinates; the paper's for most clients of Adult.
    """

    name: ClassVar[str] = "lmra"
    needs: ClassVar[frozenset[Fact]] = frozenset()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    hidden: int = 32
    fit_epochs: int = 1000
    fit_lr: float = 1e-3
    epochs: int = 1000
    lr: float = 0.1

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view, one after another."""
        check_needs(self, view)
        if view.kind == "gradient":
            raise NotApplicable("expected clients that return models or updates, got gradients: no model comes back")
        if len(view.rounds) < 2:
            raise NotApplicable("expected at least two observed rounds to learn a client's answers from, got one")
        found, left = [], []
        for i, client in enumerate(view.clients):
            models = torch.stack([_flat(seen.params, i) for seen in view.rounds])
            updates = torch.stack([_flat(seen.update, i) for seen in view.rounds])
            how = UpdateMap(models, -updates, self.hidden, rng / "client" / client)
            left.append(how.fit(self.fit_epochs, self.fit_lr))
            found.append(how.still_point(models[-1] - updates[-1], self.epochs, self.lr))
            if not found[-1].isfinite().all():
                raise NotApplicable(f"eq. (8) ran into numbers that are not finite with lr = {self.lr:g}; lower it")
        like = {name: p[0] for name, p in view.params.items()}
        parts = torch.stack(found).split([p.numel() for p in like.values()], 1)
        params = {n: part.reshape(-1, *p.shape) for (n, p), part in zip(like.items(), parts, strict=True)}
        return Finding(params=params, objective=torch.tensor(left))


@dataclass(frozen=True)
class StandIn:
    """Answer a model that stands in for the client's own.

    Args:
        model: which one.
    """

    name: ClassVar[str] = "stand-in"
    needs: ClassVar[frozenset[Fact]] = frozenset()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    model: Guess = "last-answer"

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view."""
        check_needs(self, view)
        return Finding(params=guessed_model(view, self.model, rng))


def guessed_model(view: View, which: Guess, rng: Stream) -> Params:
    """A model for each client, (clients, …).

    Raises:
        NotKnown: for `"ignoring"` and `"recovered"`, where the threat model hides the public columns.
        NotApplicable: for `"last-answer"`, where clients send gradients, and for `"exact"`, where it is no least
            squares or rounds are too few.
    """
    return _GUESSES[which](view, rng)


def _global(view: View, rng: Stream) -> Params:
    return dict(view.params)


def _last_answer(view: View, rng: Stream) -> Params:
    if view.kind == "gradient":
        raise NotApplicable("expected clients that return models or updates, got gradients: no model comes back")
    return {name: p - view.update[name] for name, p in view.params.items()}


def _exact(view: View, rng: Stream) -> Params:
    params = LocalModel()(view, rng).params
    assert params is not None
    return params


def _lmra(view: View, rng: Stream) -> Params:
    params = LMRA()(view, rng).params
    assert params is not None
    return params


def _ignoring(view: View, rng: Stream) -> Params:
    records = view.records
    mean = records.sensitive.values.mean(0)
    return _trained(view, [records.filled(i, mean) for i in range(len(view.clients))])


def _recovered(view: View, rng: Stream) -> Params:
    records = view.records
    column = AttributeInversion()(view, rng).attributes
    assert column is not None
    return _trained(view, [records.filled(i, records.sensitive.write(c)) for i, c in enumerate(column)])


def _trained(view: View, tables: list[torch.Tensor]) -> Params:
    first = view.rounds[0]
    found = [
        train_alone(
            view.task,
            {name: p[i] for name, p in first.params.items()},
            x,
            view.records.y[i],
            buffers={name: b[i] for name, b in first.buffers.items()},
            train=view.assumed_recipe.train,
        )
        for i, x in enumerate(tables)
    ]
    return {name: torch.stack([one[name] for one in found]) for name in first.params}


_GUESSES: dict[Guess, Callable[[View, Stream], Params]] = {
    "global": _global,
    "last-answer": _last_answer,
    "exact": _exact,
    "lmra": _lmra,
    "ignoring": _ignoring,
    "recovered": _recovered,
}


def _flat(params: Params, client: int) -> torch.Tensor:
    return torch.cat([p[client].flatten() for p in params.values()])

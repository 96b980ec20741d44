"""DP-SGD with an accountant.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar and Zhang, 2016, "Deep learning with differential privacy"
(https://arxiv.org/abs/1607.00133), algorithm 1, as Opacus does it (https://arxiv.org/abs/2109.12298).
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from seepage.defences.base import Defence
from seepage.defences.clip import clip_scales, clipped
from seepage.defences.mechanism import Mechanism
from seepage.recipe import Recipe
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.task import Params, Task

__all__ = ["AccountantMissing", "DpSgd"]


class AccountantMissing(ImportError):
    """Opacus, whose accountants are used, is not installed."""


@dataclass(frozen=True)
class DpSgd(Defence):
    """At every local step, clip each example's gradient and add Gaussian noise to their sum.

    Args:
        norm: C in the paper, the largest norm of an example's gradient.
        noise: σ in the paper; the sum over a batch gets noise of deviation σC, and is divided by the size of the batch.
        accountant: of Opacus, for `promised_epsilon`: Rényi (`"rdp"`), the privacy loss distribution (`"prv"`), or
            Gaussian (`"gdp"`).
        batch: examples per step; the client knows when it trains, whatever is said here.

    Note:
        Accountants take it that every step draws each example into its batch by chance. A client that shuffles and
        cuts, as here and in most code, is accounted for as if it did so, as Opacus does too. With the full batch in
        every step there is no chance in it, and the number is exact. The mechanism is Seepage's own, so that an
        attacker can simulate it; tests hold it to Opacus.

    Example:
        >>> DpSgd(norm=1.0, noise=1.0).expected
        DpSgd(norm=1.0, noise=0.0, accountant='rdp', batch=None)
    """

    name: ClassVar[str] = "dp-sgd"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    per_example: ClassVar[bool] = True
    per_step: ClassVar[bool] = True

    norm: float = 1.0
    noise: float = 1.0
    accountant: Literal["rdp", "prv", "gdp"] = "rdp"
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.norm <= 0:
            raise ValueError(f"expected `norm` above 0, got {self.norm}")
        if self.noise < 0:
            raise ValueError(f"expected `noise` of at least 0, got {self.noise}; 0 is clipping alone")

    @property
    def expected(self) -> Defence:
        """The clipping alone."""
        return replace(self, noise=0.0)

    def at_client(
        self, task: Task, recipe: Recipe, params: Params, buffers: Params, examples: Examples, rng: Stream
    ) -> Defence:
        """With the size of a batch, the smallest of an epoch: a mean over fewer examples needs more noise."""
        batch = _batch(recipe, len(examples))
        return replace(self, batch=len(examples) % batch or batch)

    @property
    def example_norm(self) -> float:
        """All that is done to an example's gradient is to clip it."""
        return self.norm

    def example_scales(self, squares: Params) -> Params:
        """One for all tensors of a gradient."""
        return clip_scales(squares, self.norm)

    def on_example_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """G · min(1, C / ‖g‖)."""
        return clipped(gradient, self.norm)

    def on_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """With noise of deviation σC / batch in every entry of the mean."""
        if rng is None or not self.noise:
            return gradient
        deviation = self.noise * self.norm / (self.batch or 1)
        draw = (rng / "noise").normal(*gradient.shape, dtype=gradient.dtype, device=gradient.device)
        return gradient + deviation * draw

    def promised_epsilon(self, recipe: Recipe, examples: int, delta: float = 1e-5, rounds: int = 1) -> float:
        """The ε of (ε, δ)-differential privacy that a client's examples have after its rounds, by Opacus.

        Args:
            recipe: how the client trains.
            examples: how many it has.
            delta: δ.
            rounds: in how many it took part.

        Raises:
            AccountantMissing: without Opacus.
        """
        try:
            create = importlib.import_module("opacus.accountants").create_accountant
        except ImportError as error:
            raise AccountantMissing(
                "the accountant of 'dp-sgd' is that of Opacus: expected it to be installed, got none; "
                "run `pip install 'seepage[dp]'`"
            ) from error
        if not self.noise:
            return float("inf")
        accountant, steps = create(self.accountant), rounds * recipe.steps(examples)
        accountant.history = [(self.noise, _batch(recipe, examples) / examples, steps)]
        with warnings.catch_warnings():  # that a longer list of Rényi orders would give a smaller ε, which still holds
            warnings.filterwarnings("ignore", "Optimal order", UserWarning)
            return float(accountant.get_epsilon(delta))

    def mechanism(self, recipe: Recipe, examples: int, rounds: int = 1) -> Mechanism | None:
        """An example moves the sum over a batch by C at most."""
        if not self.noise:
            return None
        return Mechanism(self.noise, _batch(recipe, examples) / examples, rounds * recipe.steps(examples))


def _batch(recipe: Recipe, examples: int) -> int:
    return min(recipe.batch_size or examples, examples)

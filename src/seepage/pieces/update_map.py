"""Algorithm 2 of driouich2023: learn a client's answer as a function of the model sent, then find where it is zero.

Driouich, Xu, Neglia, Giroire and Thomas, 2023, "Local Model Reconstruction Attacks in Federated Learning and their
Uses" (https://arxiv.org/abs/2210.16205), section 3.2.

The function is a small network. Of 10⁵ parameters and more it sees and answers coordinates alone: those of the models
sent in the space that they span, and those of the updates in theirs. In all other directions the observed rounds say
nothing, and no matrix with as many rows as parameters is held beside the messages themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from seepage.streams import Stream

__all__ = ["Coordinates", "UpdateMap"]


@dataclass(frozen=True, eq=False)
class Coordinates:
    """A few vectors as numbers: mean + basis · coordinates · scale.

    Args:
        mean: of the vectors, (d,).
        basis: orthonormal, (d, r).
        scale: root mean square of the coordinates, so that those of the vectors are around 1.
    """

    mean: Tensor
    basis: Tensor
    scale: Tensor

    @classmethod
    def of(cls, vectors: Tensor, centred: bool) -> Coordinates:
        """The space that vectors (r, d) span around their mean, or around zero."""
        mean = vectors.mean(0) if centred else torch.zeros_like(vectors[0])
        apart = vectors - mean
        # Through products of the vectors with each other, which are few: a QR of d rows costs many times as much.
        squares, turn = torch.linalg.eigh((apart @ apart.T).double())
        kept = squares > 1e-6 * squares.max()
        turn, squares = turn[:, kept].to(vectors), squares[kept].to(vectors)
        basis = apart.T @ (turn / squares.sqrt())
        scale = ((apart @ basis) ** 2).mean().sqrt().clamp_min(1e-30)
        return cls(mean, basis, scale)

    def down(self, vectors: Tensor) -> Tensor:
        """Vectors (…, d) to coordinates (…, r)."""
        return ((vectors - self.mean) @ self.basis) / self.scale

    def up(self, coordinates: Tensor) -> Tensor:
        """The inverse on the spanned space."""
        return self.mean + (coordinates * self.scale) @ self.basis.T


class UpdateMap:
    """The network G of eq. (7): two hidden layers with ReLU between coordinates."""

    def __init__(self, models: Tensor, answers: Tensor, hidden: int, rng: Stream) -> None:
        """Lay out G for models sent (rounds, d) and what they changed by, θ_c − θ (rounds, d)."""
        self.models, self.answers = Coordinates.of(models, True), Coordinates.of(answers, False)
        self._given, self._wanted = self.models.down(models), self.answers.down(answers)
        sizes = (self._given.shape[1], hidden, hidden, self._wanted.shape[1])
        self._layers = []
        for i, (inside, outside) in enumerate(pairwise(sizes)):
            draw = (rng / "layer" / i).normal(outside, inside, dtype=models.dtype, device=models.device)
            zeros = torch.zeros(outside, dtype=models.dtype, device=models.device)
            self._layers += [(draw * (2 / inside) ** 0.5).requires_grad_(), zeros.requires_grad_()]

    def __call__(self, coordinates: Tensor) -> Tensor:
        """Predicted answers, as coordinates, for models as coordinates."""
        out = coordinates
        for i in range(0, len(self._layers), 2):
            out = functional.linear(out, self._layers[i], self._layers[i + 1])
            out = out.relu() if i + 2 < len(self._layers) else out
        return out

    def fit(self, epochs: int, lr: float) -> float:
        """Eq. (7); returns the share of the answers that is left unexplained."""
        optimiser = torch.optim.Adam(self._layers, lr)
        with torch.enable_grad():
            for _ in range(epochs):
                optimiser.zero_grad()
                loss = ((self(self._given) - self._wanted) ** 2).mean()
                loss.backward()
                optimiser.step()
        for layer in self._layers:
            layer.requires_grad_(False)
        return float(((self(self._given) - self._wanted) ** 2).sum() / (self._wanted**2).sum())

    def still_point(self, start: Tensor, epochs: int, lr: float) -> Tensor:
        """Eq. (8): from the model `start`, (d,), towards one that the client would leave as it is."""
        at = self.models.down(start).requires_grad_()
        rest = start - self.models.up(at.detach())  # what no observed model has, and no gradient touches
        optimiser = torch.optim.SGD([at], lr)
        with torch.enable_grad():
            for _ in range(epochs):
                optimiser.zero_grad()
                (self(at) ** 2).mean().backward()
                optimiser.step()
        return rest + self.models.up(at.detach())

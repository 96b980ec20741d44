"""SPEAR: whole batches, exactly, from a linear layer followed by ReLU.

Dimitrov, Baader, Müller and Vechev, 2024, "SPEAR: Exact Gradient Inversion of Batches in Federated Learning"
(https://arxiv.org/abs/2403.03945).

For b examples the gradient of the layer's weight is G = Δ·Xᵀ, a matrix of rank b, with Δ = ∂L/∂Z of shape (units, b).
Any factorisation G = L·R is that one up to a square matrix Q: Δ = L·Q, Xᵀ = Q⁻¹·R. ReLU makes about half of each
column of Δ exactly zero. A column of Q is therefore orthogonal to many rows of L, and b − 1 rows drawn at random, if
all are among these, give it away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.finding import Finding, NotApplicable
from seepage.pieces.analytic import Entered, answer, deltas_by_label, of_client
from seepage.pieces.gradients import mean_gradient
from seepage.pieces.linear import Passed, find_layers, places_of_inputs, rearranged, works_alone
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["Factors", "Spear", "disaggregate", "factorise", "sparse_directions"]

CANDIDATES = 64  # of the directions drawn at once, how many are looked at closely, the sparsest first
ROUNDINGS = 10  # a sum over a batch is rounded about once per example
CONTRADICTIONS = 0.02  # share of units at which rounding, or a unit dead further up, may speak against an example


@dataclass(frozen=True)
class Spear:
    """Recover a batch from the sparsity that ReLU leaves in the gradient of the first linear layer.

    The answer is `inputs` where that layer is fed by the raw input, and `features` elsewhere. An example that ReLU
    contradicts, or whose direction was not found, is not answered: its place holds NaN, and the label −1. `objective`
    is the relative mismatch of the gradient that the answer would have, with the labels that fit best; for features and
    for regression the share of units whose derivative is there, or not, against what the answer says about ReLU.

    Args:
        samples: most sets of rows drawn for one client; the chance of a good one falls as 2^−b.
        surplus: zeros that a column must have beyond those that the drawn rows force, lest it be a chance find.
        draws: sets of rows in one batch of linear systems.

    Note:
        The paper keeps all directions with a share τ of zeros and searches among them by how well the signs of Z match.
        Here each is fitted to all of its zeros at once and dropped if these leave more than one direction, which no
        mixture of two examples passes; half of the rows are drawn near directions that were found before, which the
        paper does not do; and drawing goes on until b independent directions are there that ReLU does not contradict.
    """

    name: ClassVar[str] = "spear"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    samples: int = 400_000
    surplus: int = 4
    draws: int = 4096

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view, one after another."""
        check_needs(self, view)
        params, buffers = of_client(view.params, 0), of_client(view.buffers, 0)
        train = view.assumed_recipe.train
        x, layers = find_layers(view.task, params, rng / "probe", buffers=buffers, train=train)
        layer = _sparse_layer(layers)
        places = places_of_inputs(x, layer.x)
        simulate = places is not None and view.task.spec.classes is not None
        simulate = simulate and works_alone(view.task, params, rng / "alone", buffers=buffers, train=train)
        gradient = mean_gradient(view)
        found = [
            self._client(view, i, of_client(gradient, i), layer, places if simulate else None, rng / client / "rows")
            for i, client in enumerate(view.clients)
        ]
        return answer(view, layer, places, found)

    def _client(
        self, view: View, client: int, gradient: Params, layer: Passed, places: Tensor | None, rng: Stream
    ) -> Entered:
        params = of_client(view.params, client)
        weight, bias = gradient[layer.weight], gradient[str(layer.bias)]
        rounding = torch.finfo(weight.dtype).eps * weight.double().norm(dim=1)
        if view.kind != "gradient":  # the difference of two rounded weights
            moved = view.update[layer.weight][client].norm() / weight.norm()  # what one gradient is multiplied by
            rounding += torch.finfo(weight.dtype).eps * params[layer.weight].double().norm(dim=1) / moved
        factors = factorise(weight, view.count, rounding)
        value, shift = params[layer.weight].double(), params[str(layer.bias)].double()

        def contradictions(q: Tensor) -> Tensor:
            """The share of units that ReLU switches on without a derivative, or off with one, of each example."""
            z = disaggregate(factors, q, bias)[0] @ value.T + shift
            return ((z <= 0) != factors.zeros(q).T).double().mean(1)

        directions = sparse_directions(
            factors,
            rng.generator(),
            samples=self.samples,
            surplus=self.surplus,
            draws=self.draws,
            explains=lambda q: bool((contradictions(q) <= CONTRADICTIONS).all()),
        )
        nothing = Entered(weight.new_zeros(0, weight.shape[1]), torch.zeros(0, dtype=torch.long))
        if directions is None:
            return nothing
        x, delta = disaggregate(factors, directions, bias)
        wrong = contradictions(directions)
        right = wrong <= CONTRADICTIONS
        if not right.any():
            return nothing
        x, delta = x[right], delta[right]
        if places is None:
            return Entered(x, None, float(wrong.mean()))
        inputs = rearranged(x.to(weight), places, view.task.spec.shape)
        buffers, train = of_client(view.buffers, client), view.assumed_recipe.train
        by_label = deltas_by_label(view.task, params, inputs, layer.weight, buffers=buffers, train=train) / view.count
        labels = (by_label.double() - delta[:, None]).norm(dim=2).argmin(1)
        again = view.task.gradient(params, inputs, labels, buffers=buffers, train=train)
        share = len(x) / view.count  # an example without a derivative at the layer is not there to be found
        missed = torch.stack([(share * again[name] - seen).norm() for name, seen in gradient.items()]).norm()
        whole = torch.stack([seen.norm() for seen in gradient.values()]).norm()
        return Entered(x, labels, float(missed / whole))


def _sparse_layer(layers: list[Passed]) -> Passed:
    """The first linear layer, if ReLU or the like switches some of its units off."""
    if not layers or layers[0].bias is None or not layers[0].sparse:
        got = "no linear layer that sees one row per example"
        if layers:
            got = f"layer {layers[0].path!r} without " + ("a bias" if layers[0].bias is None else "exact zeros")
        raise NotApplicable(f"expected a first linear layer with a bias that ReLU or the like follows, got {got}")
    return layers[0]


@dataclass(frozen=True, eq=False)
class Factors:
    """G = L·R with orthonormal columns in L, and how far the gradient's own rounding reaches.

    Args:
        left: L, (units, rank).
        right: R, (rank, width).
        sizes: singular values, the lengths of the rows of R, (rank,).
        noise: rounding of each row of G, (units,).
    """

    left: Tensor
    right: Tensor
    sizes: Tensor
    noise: Tensor

    def zeros(self, q: Tensor, kindness: float = 1.0) -> Tensor:
        """Which entries of L·q are zero up to rounding, for every column of `q`, (units, columns).

        L·q is G times a vector of length ‖q / sizes‖, which makes the rounding of G's rows larger by as much.
        """
        reach = (q / self.sizes[:, None]).norm(dim=0)
        zeros: Tensor = (self.left @ q).abs() <= kindness * self.noise[:, None] * reach
        return zeros


def factorise(weight: Tensor, most: int, rounding: Tensor) -> Factors:
    """The factorisation of the smallest rank that leaves no more than rounding.

    Args:
        weight: gradient G of a weight, (units, width).
        most: largest rank, the number of examples.
        rounding: length of the error that one rounding makes in each row, (units,).

    Returns:
        Factors in double precision; rows of units that nobody switches on stay in, as zeros.

    Example:
        >>> found = factorise(torch.ones(4, 3), 2, torch.full((4,), 1e-7))
        >>> found.left.shape, bool((found.left @ found.right - 1).abs().max() < 1e-12)
        (torch.Size([4, 1]), True)
    """
    u, s, v = torch.linalg.svd(weight.double(), full_matrices=False)
    noise = ROUNDINGS * rounding.double()
    lengths = weight.double().norm(dim=1)
    rank = min(most, int((s > noise.norm()).sum()))
    left = torch.where((lengths > noise)[:, None], u[:, :rank], 0.0)
    return Factors(left, s[:rank, None] * v[:rank], s[:rank], noise)


def sparse_directions(
    factors: Factors,
    rng: torch.Generator,
    *,
    samples: int,
    surplus: int,
    draws: int,
    explains: Callable[[Tensor], bool] = lambda q: True,
) -> Tensor | None:
    """As many independent q as L has columns, for which L·q has more zeros than chance gives.

    Args:
        factors: of the gradient.
        rng: for the rows.
        samples: most sets of rank − 1 rows to try.
        surplus: least number of zeros beyond the rank − 1 that any set of rows can force.
        draws: sets tried at once.
        explains: whether a full set of directions is the right one; if not, the search for sparser ones goes on.

    Returns:
        Unit columns (rank, rank), the sparsest that were found; `None` for fewer when the samples ran out.

    Example:
        >>> columns = torch.tensor([[1.0, 0, 2, 0, 3, 0, 1, 2], [0, 1.0, 0, 3, 1, 2, 0, 0]]).double()
        >>> x = torch.tensor([[1.0, 2.0, 0.0], [1.0, 0.0, 1.0]]).double()
        >>> factors = factorise(columns.T @ x, 2, torch.full((8,), 1e-16))
        >>> q = sparse_directions(factors, torch.Generator().manual_seed(0), samples=64, surplus=1, draws=32)
        >>> factors.zeros(q).sum(0).tolist()
        [4, 3]
    """
    rank = factors.left.shape[1]
    live = factors.left.any(1).nonzero().flatten()  # rows of zeros are orthogonal to everything, and tell nothing
    if rank == 0 or len(live) < rank:
        return None
    if rank == 1:
        return factors.left.new_ones(1, 1)
    factors = replace(factors, left=factors.left[live], noise=factors.noise[live])
    kept = factors.left.new_zeros(rank, 0)
    for _ in range(-(-samples // draws)):
        drawn = _kernels(factors.left[_rows(factors, kept, draws, rng)], rng)
        # A few rows give a direction up to their condition number, so that the first look is a kind one.
        zeros = factors.zeros(drawn, 30).sum(0)
        drawn = drawn[:, zeros.argsort(descending=True)[: int((zeros >= rank - 1 + surplus).sum())]]
        before = kept
        for _ in range(CANDIDATES):
            drawn = drawn[:, ((drawn.T @ kept).abs() < 1 - 1e-4).all(1)]  # the others were found before
            if drawn.shape[1] == 0:
                break
            sparsest, drawn = drawn[:, 0], drawn[:, ((drawn.T @ drawn[:, 0]).abs() < 1 - 1e-4)]
            fitted = _fitted(factors, sparsest, surplus)
            if fitted is not None:
                candidates = torch.cat([kept, fitted[:, None]], 1)
                sparse = factors.zeros(candidates).sum(0)
                kept = _independent(candidates[:, sparse.argsort(descending=True, stable=True)])
        if kept.shape[1] == rank and kept is not before and explains(kept):
            return kept
    return kept if kept.shape[1] == rank else None


def _rows(factors: Factors, kept: Tensor, draws: int, rng: torch.Generator) -> Tensor:
    """Sets of rank − 1 rows: half at random, half sharing all but one with the zeros of a direction found before.

    A mixture of few examples is zero where none of them is on; one row more, at which a single one of them is off, is
    all that is missing.
    """
    units, rank = factors.left.shape
    score = torch.rand(draws, units, generator=rng)
    if kept.shape[1]:
        parents = torch.randint(kept.shape[1], (draws // 2,), generator=rng)
        score[: draws // 2] += factors.zeros(kept).T.to(score)[parents]
        # The row more: ahead of all others, wherever it is.
        score[torch.arange(draws // 2), torch.randint(units, (draws // 2,), generator=rng)] += 2
    return score.topk(rank - 1, dim=1).indices.to(factors.left.device)


def _kernels(rows: Tensor, rng: torch.Generator) -> Tensor:
    """The unit vector orthogonal to each set of rank − 1 rows, (rank, sets)."""
    sets, _, rank = rows.shape
    rows = rows / rows.norm(dim=2, keepdim=True)
    extra = torch.randn(rank, generator=rng, dtype=torch.float64).to(rows)
    square = torch.cat([rows, extra.expand(sets, 1, rank)], 1)
    last = torch.zeros(rank, 1, dtype=rows.dtype, device=rows.device)
    last[-1] = 1
    q = torch.linalg.solve_ex(square, last.expand(sets, rank, 1))[0][..., 0].T
    unit: Tensor = q / q.norm(dim=0)
    return unit[:, unit.isfinite().all(0)]


def _fitted(factors: Factors, q: Tensor, surplus: int) -> Tensor | None:
    """The direction orthogonal to all rows at which L·q is zero; `None` where these are few, or leave several.

    Several directions are left where the rows are zero for more than one example: then all mixtures of these fit.
    """
    for kindness in (30, 10, 3, 1):
        rows = factors.left[factors.zeros(q[:, None], kindness)[:, 0]]
        if len(rows) < len(q) - 1 + surplus:
            return None
        lengths, directions = torch.linalg.eigh(rows.T @ rows)
        if float(lengths[1]) <= 1e-10 or float(lengths[1]) <= 100 * float(lengths[0]):
            return None
        q = directions[:, 0]
    return q


def _independent(columns: Tensor) -> Tensor:
    """The first of the columns that no earlier ones span; each is a unit vector."""
    kept, basis = [], columns[:, :0]
    for column in columns.T:
        rest = column - basis @ (basis.T @ column)
        rest = rest - basis @ (basis.T @ rest)
        if float(rest.norm()) > 1e-3:
            kept.append(column)
            basis = torch.cat([basis, (rest / rest.norm())[:, None]], 1)
    return torch.stack(kept, 1) if kept else basis


def disaggregate(factors: Factors, directions: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and derivatives of single examples from the columns of Q up to scale; the bias gradient Δ·1 scales them.

    Args:
        factors: of the gradient.
        directions: columns of Q up to scale, (rank, rank).
        bias: gradient of the bias, (units,).

    Returns:
        X, (rank, width), and Δᵀ, (rank, units).

    Example:
        >>> delta, x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]]).double(), torch.eye(2).double() + 1
        >>> factors = factorise(delta @ x, 2, torch.full((3,), 1e-16))
        >>> found, _ = disaggregate(factors, factors.left.T @ delta, delta.sum(1))
        >>> found.round(decimals=6)
        tensor([[2., 1.],
                [1., 2.]], dtype=torch.float64)
    """
    scales = torch.linalg.lstsq(factors.left @ directions, bias.double()[:, None]).solution[:, 0]
    q = directions * scales
    return torch.linalg.solve(q, factors.right), (factors.left @ q).T

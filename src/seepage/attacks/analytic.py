"""Analytic recovery: inputs computed from a gradient, without optimisation.

Geiping, Bauermeister, Dröge and Moeller, 2020, "Inverting Gradients: How easy is it to break privacy in federated
learning?" (https://arxiv.org/abs/2003.14053), Proposition 3.1, after Phong, Aono, Hayashi, Wang and Moriai, 2018,
"Privacy-Preserving Deep Learning via Additively Homomorphic Encryption" (https://doi.org/10.1109/TIFS.2017.2787987).

One example: the input of a chain of linear layers is recovered exactly if any of them has a bias. Several: those that
some ReLU unit of the first layer has to itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.finding import Finding, NotApplicable
from seepage.pieces.analytic import (
    Entered,
    agreeing_rows,
    answer,
    deltas_by_label,
    input_of_layer,
    inputs_of_softmax,
    of_client,
    unexplained,
    walk_down,
)
from seepage.pieces.gradients import mean_gradient
from seepage.pieces.labels import LabelsHidden, recover_labels
from seepage.pieces.linear import Passed, find_layers, places_of_inputs, rearranged, works_alone
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, NotKnown, View

__all__ = ["Analytic"]

CONSISTENT = 0.1  # of several possible scales, those that the layers below contradict by more are left out


@dataclass(frozen=True)
class Analytic:
    """Compute what entered the first linear layer from its gradient.

    The answer is `inputs` where that layer is fed by the raw input, laid flat or rearranged, and `features` elsewhere.
    What could not be recovered is NaN, with the label −1: no guess was made. `objective` is the share of the gradient
    that the answer leaves unexplained, 1 where there is none.

    Args:
        agreement: relative distance below which two units point to the same example of a batch.
        mismatch: largest relative difference between the observed derivatives of the units that point to an example
            and those that the example itself would have with its best label; what differs more is a mixture.

    Note:
        Several local steps on one example leave the answer of a biased first layer exact, since all of them have the
        same input; that of a chain which begins without a bias they do not.
        The paper speaks of layers with a bias. Without any, the scale of the input is found here from softmax and
        cross-entropy, where that has a single solution.
    """

    name: ClassVar[str] = "analytic"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    agreement: float = 1e-3
    mismatch: float = 1e-3

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view, one after another."""
        check_needs(self, view)
        params, buffers = of_client(view.params, 0), of_client(view.buffers, 0)
        train = view.assumed_recipe.train
        x, layers = find_layers(view.task, params, rng / "probe", buffers=buffers, train=train)
        if not layers:
            raise NotApplicable(
                "expected a linear layer that is used once and sees one row of numbers per example, got none"
            )
        if view.count == 1:
            chain = _reach(layers)
            if chain[-1].bias is None:
                _check_scale_can_be_found(view, x, chain[-1])
            labels = _labels(view, rng / "labels")
            found = [_one_example(view, i, chain, label) for i, label in enumerate(labels)]
            return answer(view, chain[0], places_of_inputs(x, chain[0].x), found)
        places = places_of_inputs(x, layers[0].x)
        _check_examples_can_be_told_apart(view, layers[0], places, rng)
        assert places is not None
        batches = [self._batch(view, i, layers[0], places) for i in range(len(view.clients))]
        return answer(view, layers[0], places, batches)

    def _batch(self, view: View, client: int, layer: Passed, places: Tensor) -> Entered:
        """The examples that some units of the layer have to themselves, those with the most units first."""
        gradient = of_client(_gradient(view), client)
        weight, bias = gradient[layer.weight], gradient[str(layer.bias)]
        groups = agreeing_rows(weight, bias, self.agreement)
        nothing = Entered(weight.new_zeros(0, weight.shape[1]), torch.zeros(0, dtype=torch.long))
        if not groups:
            return nothing
        entered = torch.stack([x for _, x in groups]).to(weight)
        inside = _in_the_box(view, rearranged(entered, places, view.task.spec.shape))
        groups, entered = [group for group, kept in zip(groups, inside, strict=True) if kept], entered[inside]
        if not groups:
            return nothing
        deltas = deltas_by_label(
            view.task,
            of_client(view.params, client),
            rearranged(entered, places, view.task.spec.shape),
            layer.weight,
            buffers=of_client(view.buffers, client),
            train=view.assumed_recipe.train,
        )
        found = []
        for i, ((units, _), delta) in enumerate(zip(groups, deltas, strict=True)):
            # All that a unit of its own has is the example's own derivative, by its share in the mean.
            errors = (delta[:, units] / view.count - bias[units]).norm(dim=1) / bias[units].norm()
            if float(errors.min()) <= self.mismatch:
                found.append((-len(units), float(errors.min()), i, int(errors.argmin())))
        found = sorted(found)[: view.count]
        kept = entered[[i for *_, i, _ in found]]
        return Entered(kept, torch.tensor([label for *_, label in found], dtype=torch.long), unexplained(weight, kept))


def _in_the_box(view: View, x: Tensor) -> Tensor:
    """Which inputs have values in the range of the data, (n,); a table's features seldom share one, and all may be."""
    if not view.task.spec.is_image:
        return torch.ones(len(x), dtype=torch.bool, device=x.device)
    low, high = view.task.spec.box(x)
    slack = 1e-2 * (high - low)
    return ((x >= low - slack) & (x <= high + slack)).flatten(1).all(1)


def _gradient(view: View) -> Params:
    """The mean gradient; an update of unknown scale as it is, since with a bias the scale does not matter."""
    return mean_gradient(view) if _scale_known(view) else view.update


def _scale_known(view: View) -> bool:
    return view.kind == "gradient" or view.knows(Fact.STEPS)


def _reach(layers: Sequence[Passed]) -> Sequence[Passed]:
    """From the earliest layer whose input can be computed to the one where that begins.

    It begins at the first layer with a bias, or at the last of all if there is none.
    """
    for first in range(len(layers)):
        last = first
        while layers[last].bias is None and layers[last].slope is not None:
            last += 1
        if layers[last].bias is not None or last == len(layers) - 1:
            break
    return layers[first : last + 1]


def _check_scale_can_be_found(view: View, x: Tensor, last: Passed) -> None:
    """Refuse modules without a bias whose ending leaves the scale of the input open."""
    if not _scale_known(view):
        raise NotKnown(view.threat, Fact.STEPS)
    task = view.task
    if task.spec.classes is None or task.loss not in ("auto", "cross_entropy"):
        raise NotApplicable(
            "expected a linear layer with a bias, or softmax and cross-entropy at the end, got neither: the gradient "
            "of an unbiased layer is its input times an unknown derivative, and the scale of either is lost"
        )
    params, buffers = of_client(view.params, 0), of_client(view.buffers, 0)
    with torch.no_grad():
        out = task.forward(params, x, buffers=buffers, train=view.assumed_recipe.train)[0]
    if out.shape != last.z.shape or not torch.allclose(out, last.z, rtol=1e-3):
        raise NotApplicable(
            f"expected a linear layer with a bias, or class scores that are the output of one, got {last.path!r}, "
            "which has no bias and is not the last operation"
        )


def _check_examples_can_be_told_apart(view: View, layer: Passed, places: Tensor | None, rng: Stream) -> None:
    """Refuse batches whose first linear layer gives no unit to a single example, or nothing to tell one by."""
    if not _scale_known(view):
        raise NotKnown(view.threat, Fact.STEPS)
    params, buffers = of_client(view.params, 0), of_client(view.buffers, 0)
    train = view.assumed_recipe.train
    problem = None
    if layer.bias is None:
        problem = "it has no bias"
    elif not layer.sparse:
        problem = "no example switches off any of its units, as ReLU would, so that every unit sees all examples"
    elif places is None:
        problem = "it is not fed by the input itself, without which single examples are not told from mixtures"
    elif view.task.spec.classes is None:
        problem = "the targets are not classes, without which single examples are not told from mixtures"
    elif not works_alone(view.task, params, rng / "alone", buffers=buffers, train=train):
        problem = "examples of a batch influence each other, as in train-mode BatchNorm"
    if problem is not None:
        raise NotApplicable(
            f"expected single examples, or a first linear layer whose units see some of {view.count} examples each, "
            f"got layer {layer.path!r}: {problem}"
        )


def _one_example(view: View, client: int, chain: Sequence[Passed], label: Tensor | None) -> Entered:
    """Proposition 3.1 for one client."""
    gradient, params = of_client(_gradient(view), client), of_client(view.params, client)
    last = chain[-1]
    weight = gradient[last.weight]
    if last.bias is not None:
        delta = gradient[last.bias]
        x = input_of_layer(weight, delta)
        starts = [] if x is None else [(x, delta)]
        worst = math.inf
    else:
        shift = view.buffers.get(f"{last.path}.bias")  # one that is not trained
        rounding = max(1e-6, 1e4 * torch.finfo(weight.dtype).eps)  # of the client's softmax, and of an update's weights
        starts = inputs_of_softmax(weight, params[last.weight], None if shift is None else shift[client], rounding)
        worst = CONSISTENT
    ends = [(walk_down(chain, gradient, params, x, delta), delta) for x, delta in starts]
    possible = [(end, delta) for end, delta in ends if end is not None and end[1] <= worst]
    if len(possible) != 1:  # no derivative reaches the layer, or two scales explain the gradient equally well
        return Entered(torch.zeros(0, gradient[chain[0].weight].shape[1]), label)
    (((x, missed), delta),) = possible
    return Entered(x[None], label if last.bias is not None else delta.argmin()[None], missed)


def _labels(view: View, rng: Stream) -> list[Tensor] | list[None]:
    try:
        return list(recover_labels(view, rng))
    except LabelsHidden:
        return [None] * len(view.clients)

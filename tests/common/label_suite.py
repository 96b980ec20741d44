"""What every attack that answers labels alone must hold to; a new one enters the list in `tests/attacks`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from common.attack_suite import GRADIENT, RNG, STEPS, clients, granting, pictures, with_update
from common.federation import view_of
from common.nets import CLASSES, flat, image_task, mlp
from common.walk import reachable
from seepage.attacks import Attack, CountLabels
from seepage.defences import Clip, GaussianNoise, chain
from seepage.finding import Finding
from seepage.recipe import Recipe
from seepage.streams import Stream
from seepage.threat import THREATS, Fact, NotKnown, ThreatModel

LABELS_ALONE: set[type[Attack]] = {CountLabels}  # attacks that reconstruct no inputs


def labels_of(finding: Finding, clients: int, n: int) -> Tensor:
    """The labels, after a look at everything beside them."""
    assert finding.inputs is None
    assert finding.objective is None
    assert finding.labels is not None
    assert finding.labels.shape == (clients, n)
    assert finding.labels.dtype == torch.long
    assert finding.labels.equal(finding.labels.sort(1).values)
    assert 0 <= int(finding.labels.min()) <= int(finding.labels.max()) < CLASSES
    assert finding.confidence is not None
    assert finding.confidence.shape == (clients,)
    assert 0 <= float(finding.confidence.min()) <= float(finding.confidence.max()) <= 1
    return finding.labels


class LabelAttackSuite:
    """One body per property; the fixture `attack` runs through the list."""

    @pytest.mark.parametrize("recipe", [GRADIENT, STEPS], ids=lambda recipe: recipe.sends)
    def test_it_beats_the_most_frequent_label(self, attack: Attack, recipe: Recipe) -> None:
        secret = clients(6, 6)
        found = labels_of(attack(view_of(image_task(mlp), secret, recipe), RNG), 6, 6)
        right = blind = 0
        for guess, examples in zip(found, secret.values(), strict=True):
            have, real = (torch.bincount(y, minlength=CLASSES) for y in (guess, examples.y))
            right += int(torch.minimum(have, real).sum())
            blind += int(real.max())
        assert right > blind

    @pytest.mark.parametrize("recipe", [GRADIENT, STEPS], ids=lambda recipe: recipe.sends)
    def test_together_equals_one_by_one(self, attack: Attack, recipe: Recipe) -> None:
        task, secret = image_task(mlp), clients(3, 2)
        together = attack(view_of(task, secret, recipe), RNG)
        for i, name in enumerate(secret):
            alone = attack(view_of(task, {name: secret[name]}, recipe), RNG)
            assert labels_of(together, 3, 2)[i].equal(labels_of(alone, 1, 2)[0])
            assert together.confidence[i].equal(alone.confidence[0])

    def test_a_seed_repeats_it_and_the_global_generator_is_left_alone(self, attack: Attack) -> None:
        view = view_of(image_task(mlp), clients(2, 3), STEPS)
        state = torch.get_rng_state()
        one, again = (attack(view, Stream.from_seed(5)) for _ in range(2))
        assert one.labels.equal(again.labels)
        assert one.confidence.equal(again.confidence)
        assert state.equal(torch.get_rng_state())

    def test_what_it_needs_is_asked_for_by_name_and_enough(self, attack: Attack) -> None:
        for fact in attack.needs:
            threat = granting(frozenset(Fact) - {fact})
            with pytest.raises(NotKnown) as refusal:
                attack(view_of(image_task(mlp), clients(1, 2), GRADIENT, threat=threat), RNG)
            assert refusal.value.fact is fact
        view = view_of(image_task(mlp), clients(1, 2), GRADIENT, threat=granting(attack.needs))
        labels_of(attack(view, RNG), 1, 2)

    @pytest.mark.parametrize("threat", THREATS.values(), ids=lambda threat: threat.name)
    def test_every_threat_model_is_answered_or_refused_by_name(self, attack: Attack, threat: ThreatModel) -> None:
        defence = chain(Clip(0.5), GaussianNoise(1e-4))
        view = view_of(image_task(mlp), clients(2, 2), STEPS, threat=threat, defence=defence, public=pictures(4, 99))
        missing = None
        try:
            labels_of(attack(view, RNG), 2, 2)
        except NotKnown as refusal:
            missing = refusal.fact
        if missing is None:  # without the steps the scale of an update means nothing
            assert {Fact.COUNT, Fact.STEPS} <= threat.known
        else:  # some methods simulate them, for which they must know how they are cut
            assert missing in {Fact.COUNT, Fact.STEPS, Fact.RECIPE} - threat.known

    @pytest.mark.parametrize("scale", [0.0, 1e-8, 1e8])
    @pytest.mark.parametrize("recipe", [GRADIENT, STEPS], ids=lambda recipe: recipe.sends)
    def test_an_update_of_odd_size_is_survived(self, attack: Attack, recipe: Recipe, scale: float) -> None:
        finding = attack(with_update(image_task(mlp), lambda p: scale * torch.ones_like(p), recipe), RNG)
        labels_of(finding, 1, 1)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_type_and_device_are_those_of_the_update(self, attack: Attack, dtype: torch.dtype) -> None:
        task = image_task(mlp).to("cpu", dtype)
        secret = {name: examples.to("cpu", dtype) for name, examples in clients(1, 2).items()}
        finding = attack(view_of(task, secret, STEPS), RNG)
        assert labels_of(finding, 1, 2).device == next(iter(task.params.values())).device
        assert finding.confidence.dtype == dtype

    def test_the_view_is_left_as_it_was(self, attack: Attack) -> None:
        threat = THREATS["informed-server"]
        view = view_of(image_task(mlp), clients(2, 2), STEPS, threat=threat, public=pictures(2, 99))
        tensors = [thing for thing in reachable((view.rounds, view._granted)) if isinstance(thing, Tensor)]
        before = [tensor.clone() for tensor in tensors]
        params = flat(view.task.params).clone()
        attack(view, RNG)
        assert all(one.equal(other) for one, other in zip(before, tensors, strict=True))
        assert params.equal(flat(view.task.params))

    def test_it_is_a_value(self, attack: Attack) -> None:
        assert hash(attack) == hash(replace(attack))  # type: ignore[type-var]
        assert attack == replace(attack)  # type: ignore[type-var]
        assert type(attack).__name__ in str(attack)

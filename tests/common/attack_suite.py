"""What every attack must hold to; a new one enters the list in `tests/attacks/test_attacks.py` by one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from common.federation import HONEST, view_of
from common.nets import CLASSES, IMAGE, Recurrent, flat, image_task, mlp, seeded, whole_numbers
from common.walk import reachable
from seepage.attacks import (
    LAMP,
    LMRA,
    ROGS,
    TAG,
    Analytic,
    Attack,
    AttributeGradient,
    AttributeInversion,
    AttributeModel,
    Dager,
    LocalModel,
    ModelInversion,
    Patches,
    SourceInference,
    SourceInversion,
    Spear,
    StandIn,
    TokenBag,
)
from seepage.capture import Capture, Exchange
from seepage.defences import Clip, GaussianNoise, chain
from seepage.engine.minimise import Status
from seepage.finding import Finding
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Fact, NotKnown, Setting, ThreatModel, View, observe

RNG = Stream.from_seed(3)
GRADIENT = Recipe(sends="gradient")
STEPS = Recipe(SGD(0.1), epochs=2, batch_size=1, shuffle=False)
LARGE_STEPS, SMALL_STEPS = (Recipe(SGD(lr), epochs=3) for lr in (0.1, 0.01))

# Attacks that compute instead of searching, and refuse what cannot be computed: `tests/attacks/test_analytic.py`.
COMPUTED: frozenset[type[Attack]] = frozenset({Analytic, Patches, Spear})
# Those that read tokens: `tests/attacks/test_tokens.py` and `test_text_matching.py`.
TOKENS: frozenset[type[Attack]] = frozenset({LAMP, TAG, Dager, TokenBag})
# Those that answer a client's own model and nothing else: `tests/attacks/test_local_model.py`.
MODELS_ALONE: frozenset[type[Attack]] = frozenset({LocalModel, LMRA, StandIn})
# Those about one column of known records, or about whose they are: `test_attributes.py` and `test_sources.py`.
RECORDS_KNOWN: frozenset[type[Attack]] = frozenset(
    {AttributeGradient, AttributeInversion, AttributeModel, SourceInference, SourceInversion}
)
# Those that say what classes look like, and nothing of single examples: `test_model_inversion.py`.
CLASSES_ALONE: frozenset[type[Attack]] = frozenset({ModelInversion})
# Those that need files of weights: `test_rogs.py`.
GENERATED: frozenset[type[Attack]] = frozenset({ROGS})


@dataclass(frozen=True)
class AttackCase:
    """An attack that is good enough for one small image, and the same cut short, for properties of single steps.

    With `local` is said what clients do whose updates the attack explains: those that take an update for one gradient
    cannot explain many large steps.
    """

    attack: Attack
    short: Attack
    local: Recipe = LARGE_STEPS

    def __str__(self) -> str:
        return str(self.attack)


def pictures(n: int, seed: int = 0, shape: tuple[int, ...] = IMAGE) -> Examples:
    """Smooth images with values in [0, 1], the range that the data are said to have."""
    coarse = torch.rand(n, 1, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    fine = nn.functional.interpolate(coarse, size=(6, 6), mode="bilinear")
    return Examples(fine.reshape(n, -1)[:, : torch.Size(shape).numel()].reshape(n, *shape), whole_numbers(n, seed=seed))


def clients(count: int, n: int = 1, shape: tuple[int, ...] = IMAGE) -> dict[str, Examples]:
    return {f"client {i}": pictures(n, 10 + i, shape) for i in range(count)}


def granting(facts: frozenset[Fact]) -> ThreatModel:
    return ThreatModel("made for the test", facts)


def hiding(fact: Fact) -> ThreatModel:
    """All facts but this one, and but those that it would follow from."""
    threat = granting(frozenset(Fact) - {fact})
    return threat if fact not in threat.known else granting(threat.facts - {Fact.RECIPE})


def inputs_of(finding: Finding) -> Tensor:
    assert finding.inputs is not None
    return finding.inputs


def with_update(view_task: Task, change: Callable[[Tensor], Tensor], recipe: Recipe) -> View:
    """What is seen of a client that sends something else."""
    answer = {name: change(p) for name, p in view_task.params.items()}
    exchange = Exchange(0, view_task.params, answer, recipe.sends, view_task.buffers, None, 1)
    return observe([(Capture("ada", (exchange,)), None)], Setting(view_task, recipe), HONEST)


class AttackSuite:
    """One body per property; the fixture `case` runs through the list."""

    @pytest.mark.parametrize("sends", ["gradient", "update"])
    def test_it_beats_the_best_constant_guess(self, case: AttackCase, sends: str) -> None:
        secret, recipe = clients(2), GRADIENT if sends == "gradient" else case.local
        finding = case.attack(view_of(image_task(mlp), secret, recipe), RNG)
        for guess, examples in zip(inputs_of(finding), secret.values(), strict=True):
            error = float(((guess - examples.x) ** 2).mean())
            constant = float(((examples.x.mean() - examples.x) ** 2).mean())
            assert error < constant / 2
        assert finding.labels is not None
        assert finding.labels.flatten().tolist() == [int(examples.y) for examples in secret.values()]

    @pytest.mark.parametrize("n", [1, 3])
    def test_it_answers_for_every_client_in_shape(self, case: AttackCase, n: int) -> None:
        finding = case.short(view_of(image_task(mlp), clients(2, n), STEPS), RNG)
        assert inputs_of(finding).shape == (2, n, *IMAGE)
        assert inputs_of(finding).isfinite().all()
        assert finding.labels is not None
        assert finding.labels.shape == (2, n)
        assert finding.labels.dtype == torch.long
        assert 0 <= int(finding.labels.min()) <= int(finding.labels.max()) < CLASSES
        assert finding.objective is not None
        assert finding.objective.shape == (2,)
        assert finding.status is not None
        assert {Status(int(code)) for code in finding.status} <= {Status.REDUCED, Status.NOT_REDUCED}

    @pytest.mark.parametrize("recipe", [GRADIENT, STEPS], ids=lambda recipe: recipe.sends)
    def test_together_equals_one_by_one(self, case: AttackCase, recipe: Recipe) -> None:
        task, secret = image_task(mlp), clients(3, 2)
        together = case.short(view_of(task, secret, recipe), RNG)
        for i, name in enumerate(secret):
            alone = case.short(view_of(task, {name: secret[name]}, recipe), RNG)
            torch.testing.assert_close(inputs_of(together)[i], inputs_of(alone)[0], rtol=1e-7, atol=1e-9)
            torch.testing.assert_close(together.objective[i], alone.objective[0], rtol=1e-7, atol=1e-9)
            assert together.labels[i].equal(alone.labels[0])

    @pytest.mark.parametrize("recipe", [GRADIENT, STEPS], ids=lambda recipe: recipe.sends)
    def test_a_loop_over_clients_gives_the_same_numbers(self, case: AttackCase, recipe: Recipe) -> None:
        batched, looped = image_task(mlp), image_task(mlp)
        object.__setattr__(looped, "batched", False)
        one, other = (case.short(view_of(task, clients(2, 2), recipe), RNG) for task in (batched, looped))
        torch.testing.assert_close(inputs_of(one), inputs_of(other), rtol=1e-7, atol=1e-9)

    @pytest.mark.parametrize("recipe", [GRADIENT, STEPS], ids=lambda recipe: recipe.sends)
    def test_a_module_that_does_not_batch_is_attacked_in_a_loop(self, case: AttackCase, recipe: Recipe) -> None:
        task = Task(seeded(lambda: Recurrent(nn.GRU)), DataSpec((3, 4), classes=CLASSES))
        assert not task.batched
        finding = case.short(view_of(task, clients(2, 2, (3, 4)), recipe), RNG)
        assert inputs_of(finding).shape == (2, 2, 3, 4)
        assert inputs_of(finding).isfinite().all()
        assert finding.objective.isfinite().all()

    def test_a_seed_repeats_it_and_another_does_not(self, case: AttackCase) -> None:
        view = view_of(image_task(mlp), clients(2), GRADIENT)
        state = torch.get_rng_state()
        one, again = (inputs_of(case.short(view, Stream.from_seed(5))) for _ in range(2))
        assert one.equal(again)
        assert not one.equal(inputs_of(case.short(view, Stream.from_seed(6))))
        assert state.equal(torch.get_rng_state())

    def test_what_it_needs_is_asked_for_by_name(self, case: AttackCase) -> None:
        for fact in case.attack.needs:
            threat = hiding(fact)
            with pytest.raises(NotKnown) as refusal:
                case.short(view_of(image_task(mlp), clients(1), GRADIENT, threat=threat), RNG)
            assert refusal.value.fact is fact
            assert threat.name in str(refusal.value)

    def test_what_it_needs_is_enough(self, case: AttackCase) -> None:
        view = view_of(image_task(mlp), clients(1), GRADIENT, threat=granting(case.attack.needs))
        assert inputs_of(case.short(view, RNG)).isfinite().all()

    @pytest.mark.parametrize("threat", THREATS.values(), ids=lambda threat: threat.name)
    def test_every_threat_model_is_answered_or_refused_by_name(self, case: AttackCase, threat: ThreatModel) -> None:
        defence = chain(Clip(0.5), GaussianNoise(1e-4))
        view = view_of(image_task(mlp), clients(2), STEPS, threat=threat, defence=defence, public=pictures(4, 99))
        answer, missing = None, None
        try:
            answer = inputs_of(case.short(view, RNG))
        except NotKnown as refusal:  # some needs depend on what clients send, so that `needs` cannot list them
            missing = refusal.fact
        if answer is None:
            assert missing not in threat.known
        else:
            assert case.attack.needs <= threat.known
            assert (len(answer), *answer.shape[2:]) == (2, *IMAGE)
            assert answer.shape[1] == 1 or Fact.COUNT not in threat.facts

    @pytest.mark.parametrize("recipe", [GRADIENT, STEPS], ids=lambda recipe: recipe.sends)
    def test_a_zero_update_is_survived(self, case: AttackCase, recipe: Recipe) -> None:
        finding = case.short(with_update(image_task(mlp), torch.zeros_like, recipe), RNG)
        assert inputs_of(finding).isfinite().all()
        assert finding.objective.isfinite().all()

    @pytest.mark.parametrize("scale", [1e-8, 1e8])
    def test_an_update_of_odd_size_is_survived(self, case: AttackCase, scale: float) -> None:
        view = with_update(image_task(mlp), lambda p: scale * torch.ones_like(p), GRADIENT)
        assert inputs_of(case.short(view, RNG)).isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_type_and_device_are_those_of_the_update(self, case: AttackCase, dtype: torch.dtype) -> None:
        task = image_task(mlp).to("cpu", dtype)
        secret = {name: examples.to("cpu", dtype) for name, examples in clients(1).items()}
        finding = case.short(view_of(task, secret, STEPS), RNG)
        assert inputs_of(finding).dtype == dtype
        assert inputs_of(finding).device == next(iter(task.params.values())).device
        assert not inputs_of(finding).requires_grad

    def test_the_view_is_left_as_it_was(self, case: AttackCase) -> None:
        view = view_of(image_task(mlp), clients(2), STEPS, threat=THREATS["all-knowing-server"], public=pictures(2, 99))
        tensors = [thing for thing in reachable((view.rounds, view._granted)) if isinstance(thing, Tensor)]
        before = [tensor.clone() for tensor in tensors]
        params = flat(view.task.params).clone()
        case.short(view, RNG)
        assert all(one.equal(other) for one, other in zip(before, tensors, strict=True))
        assert params.equal(flat(view.task.params))

    def test_it_is_a_value(self, case: AttackCase) -> None:
        assert hash(case.attack) == hash(replace(case.attack))  # type: ignore[type-var]
        assert case.attack == replace(case.attack)  # type: ignore[type-var]
        assert type(case.attack).__name__ in str(case.attack)
        assert case.attack.needs <= set(Fact)

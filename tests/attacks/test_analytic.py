"""Attacks that compute inputs rather than search for them: exact where they answer, and silent elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from common.attack_suite import (
    COMPUTED,
    GRADIENT,
    RNG,
    STEPS,
    AttackCase,
    AttackSuite,
    clients,
    granting,
    inputs_of,
    with_update,
)
from common.federation import view_of
from common.nets import CLASSES, IMAGE, Recurrent, cnn, image_task, mlp, numbers, relative_error, seeded, whole_numbers
from seepage.attacks import ATTACKS, Analytic, Attack, Spear
from seepage.attacks.spear import disaggregate, factorise, sparse_directions
from seepage.engine.minimise import Status
from seepage.finding import Finding, NotApplicable
from seepage.pieces.linear import pass_through
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Fact, NotKnown

CASE = AttackCase(Analytic(), short=Analytic())
ONE_STEP = Recipe(SGD(0.1))
CHANNELS = (3, 8, 8)


def wide(units: int = 200, dtype: torch.dtype = torch.float64, targets: int | None = None) -> Task:
    """A network whose first layer is followed by ReLU."""

    def build() -> nn.Module:
        hidden = nn.Linear(192, units), nn.ReLU(), nn.Linear(units, 50), nn.ReLU()
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(50, targets or CLASSES))

    spec = DataSpec(CHANNELS, classes=CLASSES, mean=(0.5,)) if targets is None else DataSpec(CHANNELS, targets=targets)
    return Task(seeded(build).to(dtype), spec)


def batch(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Examples:
    """Noise in the range of the data."""
    x = torch.rand(n, *CHANNELS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5
    return Examples(x.to(dtype), whole_numbers(n, seed=seed))


def answered(guess: Tensor) -> Tensor:
    """Those of (n, …) that are there, and none that is there by half."""
    holes = guess.flatten(1).isnan()
    assert (holes.all(1) == holes.any(1)).all()
    return guess[~holes.any(1)]


def errors(guess: Tensor, truth: Tensor) -> Tensor:
    """Each guess's relative distance to the nearest truth, and that no two have the same, (guesses,)."""
    one, other = guess.flatten(1).double(), truth.flatten(1).double()
    distance = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist") / other.norm(dim=1)
    nearest = distance.min(1)
    assert len(nearest.indices.unique()) == len(guess)
    return nearest.values


def test_both_can_be_named() -> None:
    assert {ATTACKS["analytic"], ATTACKS["spear"]} == {Analytic, Spear} <= COMPUTED


# One example: the common suite, but for what an attack without any search has to say in its own way.


@pytest.fixture
def case() -> AttackCase:
    return CASE


class TestAnalyticInTheCommonSuite(AttackSuite):
    test_it_answers_for_every_client_in_shape = None  # several examples: below
    test_together_equals_one_by_one = None
    test_a_loop_over_clients_gives_the_same_numbers = None  # there is nothing but the loop
    test_a_module_that_does_not_batch_is_attacked_in_a_loop = None  # features: below
    test_a_seed_repeats_it_and_another_does_not = None  # any seed repeats it: below
    test_a_zero_update_is_survived = None  # nothing is said: below


@pytest.mark.parametrize("recipe", [GRADIENT, ONE_STEP, STEPS, Recipe(SGD(0.1), epochs=20)], ids=str)
def test_one_example_is_exact_from_any_number_of_steps(recipe: Recipe) -> None:
    secret = clients(3)
    finding = Analytic()(view_of(image_task(mlp), secret, recipe), RNG)
    for guess, label, examples in zip(inputs_of(finding), finding.labels, secret.values(), strict=True):
        assert relative_error(guess, examples.x) < 1e-10
        assert label.equal(examples.y)
    assert finding.status.tolist() == [Status.REDUCED] * 3


def test_an_unknown_scale_does_not_matter_with_a_bias_and_does_without() -> None:
    def unbiased() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 8, bias=False), nn.Tanh(), nn.Linear(8, CLASSES, bias=False))

    eavesdropper = granting(frozenset({Fact.COUNT}))
    secret = clients(1)
    view = view_of(image_task(mlp), secret, ONE_STEP, threat=eavesdropper)
    assert relative_error(inputs_of(Analytic()(view, RNG))[0], secret["client 0"].x) < 1e-10
    with pytest.raises(NotKnown, match="recipe"):
        Analytic()(view_of(image_task(unbiased), secret, ONE_STEP, threat=eavesdropper), RNG)
    told = view_of(image_task(unbiased), secret, ONE_STEP)
    assert relative_error(inputs_of(Analytic()(told, RNG))[0], secret["client 0"].x) < 1e-7


class Head(nn.Module):
    """Convolutions, and two linear layers of which the first has no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Softplus(), nn.Flatten())
        self.neck, self.head = nn.Linear(32, 7, bias=False), nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.neck(self.body(x))))


FEATURES: list[tuple[Callable[[], nn.Module], str, tuple[int, ...]]] = [
    (cnn, "6", IMAGE),
    (Head, "neck", IMAGE),
    (lambda: Recurrent(nn.GRU), "head", (3, 4)),
]


@pytest.mark.parametrize(("build", "layer", "shape"), FEATURES, ids=["cnn", "unbiased neck", "gru"])
def test_other_modules_give_what_enters_their_first_linear_layer(
    build: Callable[[], nn.Module], layer: str, shape: tuple[int, ...]
) -> None:
    task = Task(seeded(build), DataSpec(shape, classes=CLASSES))
    secret = clients(2, 1, shape)
    finding = Analytic()(view_of(task, secret, GRADIENT), RNG)
    assert finding.inputs is None
    assert finding.layer == layer
    for i, examples in enumerate(secret.values()):
        (entered,) = (p.x for p in pass_through(task, task.params, examples.x, examples.y) if p.path == layer)
        assert relative_error(finding.features[i], entered) < 1e-10


def test_squared_error_without_bias_is_refused_with_a_reason() -> None:
    task = Task(seeded(lambda: nn.Linear(4, 2, bias=False)), DataSpec((4,), targets=2))
    secret = {"ada": Examples(numbers(1, 4), numbers(1, 2, seed=1))}
    with pytest.raises(NotApplicable, match="scale of either is lost"):
        Analytic()(view_of(task, secret, GRADIENT), RNG)
    biased = Task(seeded(lambda: nn.Linear(4, 2)), DataSpec((4,), targets=2))
    finding = Analytic()(view_of(biased, secret, GRADIENT), RNG)
    assert relative_error(inputs_of(finding)[0], secret["ada"].x) < 1e-12
    assert finding.labels is None


def test_a_module_without_linear_layers_is_refused() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, CLASSES, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    for attack in (Analytic(), Spear()):
        with pytest.raises(NotApplicable, match="linear layer"):
            attack(view_of(image_task(build), clients(1), GRADIENT), RNG)


@pytest.mark.parametrize("attack", [Analytic(), Spear()], ids=str)
def test_a_zero_update_says_nothing_and_no_number_goes_astray(attack: Attack) -> None:
    finding = attack(with_update(wide(), torch.zeros_like, GRADIENT), RNG)
    assert inputs_of(finding).isnan().all()
    assert float(finding.objective) == 1
    assert finding.status.tolist() == [Status.NOT_REDUCED]


# Batches.


def found_by(attack: Attack, task: Task, secret: dict[str, Examples], recipe: Recipe = GRADIENT) -> Finding:
    return attack(view_of(task, secret, recipe), RNG)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_units_that_see_one_example_give_it_away(dtype: torch.dtype) -> None:
    examples = batch(6, dtype=dtype)
    finding = found_by(Analytic(), wide(400, dtype), {"ada": examples})
    guesses = answered(inputs_of(finding)[0])
    assert len(guesses) >= 3
    assert float(errors(guesses, examples.x).max()) < 1e-3
    assert float(errors(guesses, examples.x).median()) < (1e-5 if dtype == torch.float32 else 1e-12)
    assert (finding.labels[0, len(guesses) :] == -1).all()


def test_a_mixture_is_not_taken_for_an_example() -> None:
    """Two outputs make all units that see the same examples agree, on a mixture of them."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 60), nn.ReLU(), nn.Linear(60, 2))

    task = Task(seeded(build), DataSpec(IMAGE, classes=2, mean=(0.5,)))
    for seed in range(5):
        x = numbers(3, *IMAGE, seed=seed).sigmoid() - 0.5
        examples = Examples(x, whole_numbers(3, 2, seed=seed))
        guesses = answered(inputs_of(found_by(Analytic(), task, {"ada": examples}))[0])
        if len(guesses):
            assert float(errors(guesses, x).max()) < 1e-3


REFUSED: list[tuple[Attack, Callable[[], nn.Module], str]] = [
    (Analytic(), mlp, "switches off"),
    (Analytic(), cnn, "switches off"),
    (Spear(), mlp, "exact zeros"),
    (Analytic(), lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 9, bias=False), nn.ReLU(), nn.Linear(9, 3)), "bias"),
    (Spear(), lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 9, bias=False), nn.ReLU(), nn.Linear(9, 3)), "bias"),
    (
        Analytic(),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.ReLU(), nn.BatchNorm1d(9), nn.Linear(9, 3)),
        "influence each other",
    ),
]


@pytest.mark.parametrize(("attack", "build", "why"), REFUSED)
def test_batches_that_cannot_be_told_apart_are_refused(
    attack: Attack, build: Callable[[], nn.Module], why: str
) -> None:
    with pytest.raises(NotApplicable, match=why):
        attack(view_of(image_task(build), clients(1, 3), GRADIENT), RNG)


@pytest.mark.parametrize(("n", "units"), [(1, 200), (2, 200), (4, 200), (8, 200), (12, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_spear_recovers_whole_batches(n: int, units: int, dtype: torch.dtype) -> None:
    examples = batch(n, seed=n, dtype=dtype)
    finding = found_by(Spear(), wide(units, dtype), {"ada": examples})
    guesses = answered(inputs_of(finding)[0])
    assert len(guesses) == n
    assert float(errors(guesses, examples.x).max()) < (1e-3 if dtype == torch.float32 else 1e-6)
    assert finding.labels[0].sort().values.equal(examples.y.sort().values)
    assert float(finding.objective) < (1e-3 if dtype == torch.float32 else 1e-6)


def test_spear_recovers_images_of_one_sign() -> None:
    """All examples then switch on much the same units, and mixtures are sparse too."""
    examples = batch(6)
    examples = Examples(examples.x + 0.5, examples.y)
    guesses = answered(inputs_of(found_by(Spear(), wide(), {"ada": examples}))[0])
    assert len(guesses) == 6
    assert float(errors(guesses, examples.x).max()) < 1e-9


def test_spear_recovers_regression_and_features_without_labels() -> None:
    examples = Examples(batch(4).x, numbers(4, 3))
    finding = found_by(Spear(), wide(targets=3), {"ada": examples})
    assert float(errors(answered(inputs_of(finding)[0]), examples.x).max()) < 1e-9
    assert finding.labels is None

    def build() -> nn.Module:
        body = nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Flatten()
        return nn.Sequential(*body, nn.Linear(216, 200), nn.ReLU(), nn.Linear(200, CLASSES))

    task, secret = Task(seeded(build), DataSpec(CHANNELS, classes=CLASSES)), batch(4)
    finding = found_by(Spear(), task, {"ada": secret})
    assert finding.inputs is None
    assert finding.layer == "3"
    entered = pass_through(task, task.params, secret.x, secret.y)[0].x
    assert float(errors(answered(finding.features[0]), entered).max()) < 1e-9


def test_spear_says_nothing_when_its_draws_run_out() -> None:
    finding = found_by(Spear(samples=1, draws=1), wide(), {"ada": batch(12)})
    assert inputs_of(finding).isnan().all()
    assert finding.status.tolist() == [Status.NOT_REDUCED]


def test_factors_and_directions_are_undone_by_the_bias() -> None:
    """G = Δ·X with a sparse Δ made by hand, without any network."""
    delta = numbers(60, 5) * (numbers(60, 5, seed=1) > 0)
    x = numbers(5, 30, seed=2)
    factors = factorise(delta @ x, 9, 1e-15 * torch.ones(60))
    assert factors.left.shape == (60, 5)
    torch.testing.assert_close(factors.left @ factors.right, delta @ x)
    q = sparse_directions(factors, torch.Generator().manual_seed(0), samples=10_000, surplus=4, draws=1000)
    assert q is not None
    found, derivatives = disaggregate(factors, q, delta.sum(1))
    assert float(errors(found, x).max()) < 1e-9
    assert float(errors(derivatives, delta.T).max()) < 1e-9


# Both.


@pytest.mark.parametrize(("attack", "n"), [(Analytic(), 1), (Analytic(), 4), (Spear(), 4)], ids=str)
def test_together_equals_one_by_one(attack: Attack, n: int) -> None:
    task, secret = wide(), {f"client {i}": batch(n, seed=i) for i in range(3)}
    together = found_by(attack, task, secret)
    assert inputs_of(together).shape == (3, n, *CHANNELS)
    for i, name in enumerate(secret):
        alone = found_by(attack, task, {name: secret[name]})
        torch.testing.assert_close(inputs_of(together)[i], inputs_of(alone)[0], equal_nan=True)
        torch.testing.assert_close(together.objective[i], alone.objective[0], rtol=1e-7, atol=1e-9)
        assert together.labels[i].equal(alone.labels[0])


@pytest.mark.parametrize("attack", [Analytic(), Spear()], ids=str)
def test_a_seed_changes_nothing_but_the_order_of_search(attack: Attack) -> None:
    view, state = view_of(wide(), {"ada": batch(4)}, GRADIENT), torch.get_rng_state()
    one, again, other = (inputs_of(attack(view, Stream.from_seed(seed))) for seed in (5, 5, 6))
    torch.testing.assert_close(one, again, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert len(answered(one[0])) == len(answered(other[0]))
    assert float(errors(answered(other[0]), batch(4).x).max()) < 1e-3
    assert state.equal(torch.get_rng_state())


def test_spear_asks_for_what_it_needs() -> None:
    with pytest.raises(NotKnown, match="count"):
        Spear()(view_of(wide(), {"ada": batch(2)}, GRADIENT, threat=granting(frozenset())), RNG)
    with pytest.raises(NotKnown, match="recipe"):
        Spear()(view_of(wide(), {"ada": batch(2)}, ONE_STEP, threat=granting(frozenset({Fact.COUNT}))), RNG)
    one_step = found_by(Spear(), wide(), {"ada": batch(2)}, ONE_STEP)
    assert float(errors(answered(inputs_of(one_step)[0]), batch(2).x).max()) < 1e-6
    assert Spear.needs <= THREATS["eavesdropper"].facts
    assert hash(Spear()) == hash(Spear())

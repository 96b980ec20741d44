"""ROG: what it gains by a small representation, by knowing the defence, and by an enhancer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from common.federation import view_of
from common.nets import CLASSES, seeded
from seepage.attacks import ROG
from seepage.attacks.rog import mean_of
from seepage.audit.footage import footage
from seepage.defences import Defence, NoDefence, Precode, Sign, Soteria, TopK, UniformQuantise
from seepage.engine.film import Film, filming
from seepage.enhance import Enhancer, save_enhancer
from seepage.pieces.autoencoder import Autoencoder, save_autoencoder
from seepage.pieces.filters import as_photographs
from seepage.pieces.representations import Bicubic
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec, Examples
from seepage.stored import WeightsNotFound
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import Fact, ThreatModel

RNG = Stream.from_seed(1)
SIDE = 16
GRADIENT = Recipe(sends="gradient")
KNOWN = frozenset({Fact.COUNT, Fact.RECIPE, Fact.LABELS})
UNAWARE = ThreatModel("knows the labels", KNOWN)
AWARE = ThreatModel("knows the labels and the defence", KNOWN | {Fact.DEFENCE})


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Softplus(), nn.Flatten(), nn.Linear(8 * SIDE**2, 12), nn.Softplus(),
        nn.Linear(12, CLASSES),
    )  # fmt: skip


def task(mean: float = 0.0, std: float = 1.0) -> Task:
    return Task(seeded(net).float(), DataSpec((1, SIDE, SIDE), classes=CLASSES, mean=(mean,), std=(std,)))


def smooth(spec: DataSpec) -> Examples:
    """Two images that a representation of a quarter of their size holds exactly."""
    small = 0.2 + 0.6 * torch.rand(2, 1, SIDE // 4, SIDE // 4, generator=torch.Generator().manual_seed(0))
    pixels = functional.interpolate(small, (SIDE, SIDE), mode="bicubic", align_corners=False)
    return Examples(spec.normalise(pixels), torch.tensor([0, 2]))


def error(attack: ROG, defence: Defence | None = None, threat: ThreatModel = AWARE, recipe: Recipe = GRADIENT) -> float:
    """Root mean square over pixels."""
    victim = task()
    examples = smooth(victim.spec)
    finding = attack(view_of(victim, {"ada": examples}, recipe, threat=threat, defence=defence), RNG)
    return float((finding.inputs[0] - examples.x).square().mean().sqrt())


def test_fewer_unknowns_find_images_sooner() -> None:
    assert error(ROG(4, steps=100)) < 0.05
    assert error(ROG(4, steps=25)) < 0.8 * error(ROG(1, steps=25))


def test_local_steps_are_simulated() -> None:
    assert error(ROG(4, steps=100), recipe=Recipe(SGD(0.05), epochs=5)) < 0.06


def test_of_sparse_updates_only_what_was_kept_is_compared() -> None:
    sparse = TopK(0.05, per_tensor=True)
    assert error(ROG(4), sparse, AWARE) < error(ROG(4), sparse, UNAWARE) / 2


def test_rounding_is_simulated() -> None:
    rounded = UniformQuantise(3)
    assert error(ROG(4), rounded, AWARE) < 0.5 * error(ROG(4), rounded, UNAWARE)


def test_of_pruned_columns_nothing_is_asked() -> None:
    assert error(ROG(4), Soteria(0.8), AWARE) < error(ROG(4), Soteria(0.8), UNAWARE) / 2


def test_signs_are_matched_through_a_tanh_of_the_guess_alone() -> None:
    assert error(ROG(4), Sign(), AWARE) < error(ROG(4), Sign(), UNAWARE) / 2


def test_steps_are_in_units_of_the_range_of_a_pixel() -> None:
    def moved(victim: Task) -> float:
        view = view_of(victim, {"ada": smooth(victim.spec)}, GRADIENT, threat=AWARE)
        first, last = (victim.spec.pixels(ROG(4, steps=steps)(view, RNG).inputs) for steps in (0, 1))
        small = Bicubic(4)
        return float((small.encode(last) - small.encode(first)).abs().mean())

    for victim in (task(), task(mean=0.5, std=0.25)):
        assert moved(victim) == pytest.approx(0.05, rel=0.01)  # the first step of Adam is the learning rate


def test_answers_have_a_representation() -> None:
    victim = task()
    finding = ROG(4, steps=5)(view_of(victim, {"ada": smooth(victim.spec)}, GRADIENT, threat=AWARE), RNG)
    x, small = finding.inputs[0].double(), Bicubic(4)
    torch.testing.assert_close(small.decode(small.encode(x), (SIDE, SIDE)), x, atol=1e-4, rtol=0)


def test_total_variation_makes_them_smoother() -> None:
    def roughness(tv: float) -> Tensor:
        victim = task()
        view = view_of(victim, {"ada": smooth(victim.spec)}, GRADIENT, threat=AWARE)
        return (ROG(4, steps=30, tv=tv)(view, RNG).inputs.diff(dim=-1)).abs().mean()

    assert roughness(10.0) < roughness(0.0) / 2


def test_the_histogram_is_equalised_on_request() -> None:
    victim = task()
    view = view_of(victim, {"ada": smooth(victim.spec)}, GRADIENT, threat=AWARE)
    pixels = ROG(4, steps=2, equalise=True)(view, RNG).inputs.flatten(2).sort(-1).values
    even = (torch.arange(SIDE**2) + 0.5) / SIDE**2
    torch.testing.assert_close(pixels, even.expand_as(pixels), atol=1e-3, rtol=0)


def test_images_of_a_client_are_brought_to_the_contrast_of_photographs_together() -> None:
    victim = task()
    view = view_of(victim, {"ada": smooth(victim.spec)}, GRADIENT, threat=AWARE)
    found, shown = (ROG(4, steps=2, as_photographs=flag)(view, RNG).inputs for flag in (False, True))
    torch.testing.assert_close(shown[0], as_photographs(found[0]))


def test_an_enhancer_is_put_behind_it(tmp_path: Path) -> None:
    brighter = Enhancer()
    with torch.no_grad():
        brighter.last.bias.fill_(0.1)
    file = tmp_path / "brighter.safetensors"
    save_enhancer(brighter, file, {})
    victim = task(mean=0.5, std=0.5)
    view = view_of(victim, {"ada": smooth(victim.spec)}, GRADIENT, threat=AWARE)
    attack = ROG(4, steps=20)
    plain, enhanced = (a(view, RNG).inputs for a in (attack, replace(attack, enhancer=str(file))))
    pixels = [victim.spec.pixels(x) for x in (plain.clamp(-1, 1), enhanced)]
    torch.testing.assert_close(pixels[1], (pixels[0] + 0.1).clamp(0, 1), atol=2e-3, rtol=0)


def test_an_enhancer_that_is_not_there_is_refused_before_any_work() -> None:
    with pytest.raises(WeightsNotFound, match="got 'unheard-of'"):
        ROG(enhancer="unheard-of")
    victim = task()
    view = view_of(victim, {"ada": smooth(victim.spec)}, GRADIENT, threat=AWARE)
    with pytest.raises(WeightsNotFound, match=r"nowhere\.safetensors"):
        ROG(steps=10**9, enhancer="nowhere.safetensors")(view, RNG)


def test_the_mean_of_searches_pairs_images_of_one_label_by_what_they_show() -> None:
    shown = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    swapped = shown[[1, 0, 2]] + 0.02
    torch.testing.assert_close(mean_of(torch.stack([shown, swapped]), torch.tensor([5, 5, 7])), shown + 0.01)


def test_the_mean_of_searches_is_better_than_one_where_updates_are_coarse() -> None:
    rounded = UniformQuantise(2)
    assert error(ROG(4, starts=6, mean=True), rounded) < 0.95 * error(ROG(4, starts=6), rounded)


@pytest.fixture
def codes(tmp_path: Path) -> str:
    """An autoencoder whose images are sums of its codes: each of them is the brightness of a square."""
    made = Autoencoder("L")
    with torch.no_grad():
        for parameter in made.plain.parameters():
            parameter.zero_()
        made.plain[0].weight[:, 0] = 0.25  # ½ + ¼ · 4 · (code − ½) is the code
    file = tmp_path / "squares.safetensors"
    save_autoencoder(made, file, {})
    return str(file)


def test_codes_of_an_autoencoder_are_searched_in_the_place_of_small_images(codes: str) -> None:
    victim = task()
    squares = 0.2 + 0.6 * torch.rand(2, 1, SIDE // 4, SIDE // 4, generator=torch.Generator().manual_seed(0))
    pixels = squares.repeat_interleave(4, -1).repeat_interleave(4, -2)
    secret = Examples(victim.spec.normalise(pixels), torch.tensor([0, 2]))
    view = view_of(victim, {"ada": secret}, GRADIENT, threat=AWARE)
    learnt, bicubic = (ROG(autoencoder=name, steps=150)(view, RNG) for name in (codes, "none"))
    errors = [float((found.inputs[0] - secret.x).square().mean().sqrt()) for found in (learnt, bicubic)]
    assert errors[0] < 0.02 < errors[1]


def test_codes_of_many_clients_are_searched_as_those_of_one(codes: str) -> None:
    victim = task()
    clients = {name: smooth(victim.spec) for name in ("ada", "bob")}
    short = ROG(autoencoder=codes, steps=4, starts=2)
    together = short(view_of(victim, clients, GRADIENT, threat=AWARE), RNG)
    for i, name in enumerate(clients):
        alone = short(view_of(victim, {name: clients[name]}, GRADIENT, threat=AWARE), RNG)
        torch.testing.assert_close(together.inputs[i], alone.inputs[0], rtol=1e-4, atol=1e-5)


def test_an_autoencoder_that_is_not_there_or_beside_total_variation_is_refused(codes: str) -> None:
    with pytest.raises(WeightsNotFound, match="got 'unheard-of'"):
        ROG(autoencoder="unheard-of")
    with pytest.raises(ValueError, match="`tv` of 0"):
        ROG(autoencoder=codes, tv=0.1)


def test_a_factor_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="`factor` of at least 1, got 0"):
        ROG(factor=0)


def test_no_defence_is_no_different_for_who_knows_of_it() -> None:
    assert error(ROG(4, steps=10), NoDefence(), AWARE) == error(ROG(4, steps=10), NoDefence(), UNAWARE)


@pytest.mark.parametrize("recipe", [GRADIENT, Recipe(SGD(0.05), epochs=3)])
def test_what_a_variational_block_draws_is_found_beside_the_images(recipe: Recipe) -> None:
    defence = Precode(size=16, beta=1e-3)
    victim = Task(defence.on_module(seeded(net).float(), RNG), DataSpec((1, SIDE, SIDE), classes=CLASSES))
    examples = smooth(victim.spec)

    def error_of(threat: ThreatModel) -> float:
        view = view_of(victim, {"ada": examples}, recipe, threat=threat, defence=defence)
        return float((ROG(4, steps=120)(view, RNG).inputs[0] - examples.x).square().mean().sqrt())

    assert error_of(AWARE) < 0.1 < error_of(UNAWARE) / 2


def test_small_images_are_filmed_as_what_they_are_enlarged_to() -> None:
    victim = task(mean=0.3, std=0.4)
    film = Film(victim.spec)
    with filming(film):
        found = ROG(factor=4, steps=30)(view_of(victim, {"ada": smooth(victim.spec)}, GRADIENT, threat=UNAWARE), RNG)
    shown = footage(film, victim.spec, 0, victim.spec.pixels(found.inputs[0]), np.array([30.0, 20.0]))
    assert shown is not None
    assert shown.way.shape[2:] == (SIDE, SIDE, 1)
    end = torch.from_numpy(shown.way[:, -1]).movedim(-1, 1)
    # Half of a byte, and a tenth for frames in half precision.
    assert (end - 255 * victim.spec.pixels(found.inputs[0]).clamp(0, 1)).abs().max() <= 0.6

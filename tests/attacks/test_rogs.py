"""ROGS: it finds what the generator can make, by objective among restarts, and refuses what it cannot do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from common.federation import view_of
from common.nets import CLASSES, seeded
from seepage.attacks import ROG, ROGS
from seepage.audit.footage import footage
from seepage.engine.film import Film, filming
from seepage.finding import NotApplicable
from seepage.generate import PictureDecoder, load_generator, save_generator
from seepage.perceptual import LpipsWeights, WeightsMissing
from seepage.recipe import Recipe
from seepage.spec import DataSpec, Examples
from seepage.stored import WeightsNotFound
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import Fact, NotKnown, ThreatModel

RNG = Stream.from_seed(1)
SIDE, LATENT = 8, 4
GRADIENT = Recipe(sends="gradient")
TOLD = ThreatModel("knows the labels", frozenset({Fact.COUNT, Fact.RECIPE, Fact.LABELS}))


def net(channels: int = 3, side: int = SIDE) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side**2, 16), nn.Softplus(), nn.Linear(16, CLASSES))


def task(channels: int = 3, side: int = SIDE) -> Task:
    spec = DataSpec((channels, side, side), classes=CLASSES, mean=(0.5,) * channels, std=(0.25,) * channels)
    return Task(seeded(lambda: net(channels, side)).float(), spec)


@pytest.fixture
def generator(tmp_path: Path) -> str:
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        made = PictureDecoder(CLASSES, SIDE, LATENT)
        with torch.no_grad():
            made.last.weight.mul_(6)  # an untrained one makes nearly grey images
    file = tmp_path / "generator.safetensors"
    save_generator(made, file, {})
    return str(file)


def generated(generator: str, spec: DataSpec, seed: int = 0) -> Examples:
    """Two images that the generator can make."""
    z = torch.randn(2, LATENT, generator=torch.Generator().manual_seed(seed))
    y = torch.tensor([0, 2])
    return Examples(spec.normalise(load_generator(generator, z)(z, y)), y)


def attack(generator: str, **knobs: object) -> ROGS:
    whole = ROGS(generator, ROG(factor=1, steps=80, lr=0.1), perceptual=0.0, steps=60, lr=0.1)
    return replace(whole, **knobs)  # type: ignore[arg-type]


def test_an_image_of_the_generator_is_found_again(generator: str) -> None:
    victim = task()
    secret = generated(generator, victim.spec)
    view = view_of(victim, {"ada": secret}, GRADIENT, threat=TOLD)
    begin, end = (attack(generator, steps=steps)(view, RNG) for steps in (0, 60))
    errors = [float((found.inputs[0] - secret.x).square().mean()) for found in (begin, end)]
    assert errors[1] < errors[0] / 3
    assert float(end.objective[0]) < float(end.first_objective[0])
    assert end.labels.tolist() == [[0, 2]]
    # What is answered is an image of the generator, whatever ROG found.
    low, high = victim.spec.box(end.inputs)
    assert bool((end.inputs >= low - 1e-6).all() and (end.inputs <= high + 1e-6).all())


def test_the_way_to_its_images_is_filmed(generator: str) -> None:
    victim = task()
    secrets = {"ada": generated(generator, victim.spec), "bob": generated(generator, victim.spec, seed=1)}
    film = Film(victim.spec)
    with filming(film):
        found = attack(generator, starts=2)(view_of(victim, secrets, GRADIENT, threat=TOLD), RNG)
    assert film.moments[-1] == 60  # of the generator, after those of ROG
    for i in range(2):
        pixels = victim.spec.pixels(found.inputs[i])
        shown = footage(film, victim.spec, i, pixels, np.array([30.0, 20.0]))
        assert shown is not None
        end = torch.from_numpy(shown.way[:, -1]).movedim(-1, 1)
        assert (end - 255 * pixels).abs().max() <= 1  # each image follows the restart that was answered
        assert (torch.from_numpy(shown.way[:, 0]).movedim(-1, 1) - 255 * pixels).abs().max() > 20


def test_restarts_are_chosen_by_objective_image_by_image(generator: str) -> None:
    victim = task()
    view = view_of(victim, {"ada": generated(generator, victim.spec)}, GRADIENT, threat=TOLD)
    one, four = (attack(generator, steps=3, starts=starts)(view, RNG) for starts in (1, 4))
    assert float(four.objective[0]) < float(one.objective[0])


def test_together_equals_one_by_one(generator: str) -> None:
    victim = task()
    secret = {name: generated(generator, victim.spec, seed) for seed, name in enumerate(("ada", "bob"))}
    short = attack(generator, steps=5, starts=2)
    together = short(view_of(victim, secret, GRADIENT, threat=TOLD), RNG)
    for i, name in enumerate(secret):
        alone = short(view_of(victim, {name: secret[name]}, GRADIENT, threat=TOLD), RNG)
        torch.testing.assert_close(together.inputs[i], alone.inputs[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(together.objective[i], alone.objective[0], rtol=1e-4, atol=1e-6)


def test_grey_images_of_another_size_are_attacked_too(generator: str) -> None:
    victim = task(1, 12)
    x = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    secret = Examples(victim.spec.normalise(x), torch.tensor([0, 1]))
    found = attack(generator, steps=2)(view_of(victim, {"ada": secret}, GRADIENT, threat=TOLD), RNG)
    assert found.inputs.shape == (1, 2, 1, 12, 12)
    assert found.inputs.isfinite().all()


def test_lpips_has_a_say(generator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    kernels = [torch.randn(2, c, k, k, generator=draw) for c, k in ((3, 11), (2, 5), (2, 3), (2, 3), (2, 3))]
    toy = LpipsWeights(tuple((k, torch.zeros(2)) for k in kernels), (torch.ones(2),) * 5)
    monkeypatch.setattr("seepage.attacks.rogs.load_lpips", lambda folder: toy)
    victim = task()
    view = view_of(victim, {"ada": generated(generator, victim.spec)}, GRADIENT, threat=TOLD)
    found = {w: attack(generator, perceptual=w, distance=1 - w, steps=5)(view, RNG) for w in (0.0, 0.5, 1.0)}
    first = {w: float(f.first_objective[0]) for w, f in found.items()}
    assert first[0.5] == pytest.approx((first[0.0] + first[1.0]) / 2, rel=1e-4)
    assert float(found[1.0].objective[0]) < first[1.0]


def test_what_is_missing_is_named_before_any_work(generator: str, tmp_path: Path) -> None:
    victim = task()
    view = view_of(victim, {"ada": generated(generator, victim.spec)}, GRADIENT, threat=TOLD)
    endless = ROG(steps=10**9)
    with pytest.raises(WeightsMissing, match="seepage fetch lpips"):
        attack(generator, rog=endless, perceptual=1.0)(replace(view, folder=tmp_path / "nowhere"), RNG)
    with pytest.raises(WeightsNotFound, match=r"nowhere\.safetensors"):
        attack("nowhere.safetensors", rog=endless)(view, RNG)
    with pytest.raises(WeightsNotFound, match="got 'unheard-of'"):
        ROGS("unheard-of")
    with pytest.raises(NotKnown, match="count"):
        attack(generator)(view_of(victim, {"a": generated(generator, victim.spec)}, GRADIENT, threat=NOBODY), RNG)


NOBODY = ThreatModel("knows nothing", frozenset())


def test_classes_that_the_generator_does_not_know_and_rows_of_tables_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "two.safetensors"
    save_generator(PictureDecoder(2, SIDE, LATENT), file, {})
    victim = task()
    x = torch.zeros(1, 3, SIDE, SIDE)
    with pytest.raises(NotApplicable, match="at most the 2 classes"):
        attack(str(file))(view_of(victim, {"ada": Examples(x, torch.tensor([0]))}, GRADIENT, threat=TOLD), RNG)
    table = Task(seeded(lambda: nn.Linear(5, CLASSES)).float(), DataSpec((5,), classes=CLASSES))
    row = Examples(torch.zeros(1, 5), torch.tensor([0]))
    with pytest.raises(NotApplicable, match="images with 1 or 3 channels"):
        attack(str(file))(view_of(table, {"ada": row}, GRADIENT, threat=TOLD), RNG)


def test_knobs_that_make_no_sense_are_refused(generator: str) -> None:
    with pytest.raises(ValueError, match="not both 0"):
        ROGS(generator, distance=0.0, perceptual=0.0)

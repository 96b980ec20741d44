"""Captures of plain PyTorch loops are what the loop received and sent."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from common.nets import CLASSES, IMAGE, batch_resnet, cnn, images, numbers, seeded
from seepage.audit.values import build
from seepage.capture import examine, read_capture, read_secret
from seepage.frameworks.record import RECIPE, record, unwrapped, write_recipe
from seepage.local import local_update
from seepage.recipe import SGD, Adam, Recipe
from seepage.spec import DataSpec
from seepage.task import Task

SPEC = DataSpec(IMAGE, classes=CLASSES)


def trained(module: nn.Module, lr: float = 0.1, steps: int = 2) -> None:
    optimiser = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=lr)
    data = images(4)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(data.x), data.y).backward()
        optimiser.step()


@pytest.mark.parametrize("build_module", [cnn, batch_resnet])
def test_the_capture_is_explained_by_seepages_own_simulation(build_module: object, tmp_path: Path) -> None:
    module = seeded(build_module).train()  # type: ignore[arg-type]
    task = Task(module, SPEC)
    data, recipe = images(4), Recipe(SGD(0.1), epochs=2, shuffle=False)
    with record(
        module, tmp_path / "c", client="ward 3", number=7, recipe=recipe, secret=tmp_path / "s.safetensors"
    ) as rec:
        rec.seal(data.x, data.y)
        trained(module)
    (capture,) = read_capture(tmp_path / "c")
    (exchange,) = capture.exchanges
    assert (capture.client, exchange.round, exchange.examples) == ("ward 3", 7, 4)
    assert [p for p in examine(capture, task) if p.fatal] == []
    simulated = local_update(task, task.params, recipe.schedule(data.x, data.y), recipe)
    for name, update in exchange.update.items():
        torch.testing.assert_close(update, simulated[name])
    torch.testing.assert_close(read_secret(tmp_path / "s.safetensors").examples.x, data.x)
    assert not any("secret" in path.name for path in (tmp_path / "c").iterdir())


def test_frozen_parameters_are_buffers_as_they_are_for_a_task() -> None:
    module = seeded(cnn)
    module[0].requires_grad_(False)  # type: ignore[index]
    with record(module, examples=4) as rec:
        trained(module)
    task = Task(module, SPEC)
    assert set(rec.capture.exchanges[0].before) == set(task.params)
    assert set(rec.capture.exchanges[0].buffers_before) == set(task.buffers)


def test_what_is_sent_may_be_something_else_than_the_weights() -> None:
    module = seeded(cnn)
    gradient = {name: torch.ones_like(p) for name, p in module.named_parameters()}
    with record(module) as rec:
        rec.send(gradient, kind="gradient")
        gradient["0.bias"].zero_()  # what happens later to the client's tensors is not what was sent
    exchange = rec.capture.exchanges[0]
    assert exchange.kind == "gradient"
    assert exchange.update["0.bias"].eq(1).all()
    assert exchange.buffers_after is None
    assert exchange.examples is None


def test_an_interrupted_training_leaves_nothing(tmp_path: Path) -> None:
    seen = []

    def train() -> None:
        with record(seeded(cnn), tmp_path / "c", secret=tmp_path / "s") as rec:
            seen.append(rec)
            rec.seal(torch.zeros(1, 1, 6, 6), torch.zeros(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="still open"):
        _ = seen[0].capture


def test_a_secret_inside_of_the_capture_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="outside of the capture"),
        record(seeded(cnn), tmp_path / "c", secret=tmp_path / "c" / "secret.safetensors"),
    ):
        pass


def test_a_folder_that_exists_is_refused_before_the_client_trains(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="choose another name"), record(seeded(cnn), tmp_path):
        pytest.fail("the client must not train for nothing")


@pytest.mark.parametrize(
    "recipe",
    [Recipe(), Recipe(Adam(0.01, betas=(0.8, 0.9)), epochs=3, batch_size=4), Recipe(SGD(0.5), sends="gradient")],
)
def test_a_recipe_is_read_again_as_it_was_written(recipe: Recipe, tmp_path: Path) -> None:
    write_recipe(tmp_path / RECIPE, recipe)
    table = tomllib.loads((tmp_path / RECIPE).read_text())
    assert build(Recipe, table["recipe"], RECIPE) == recipe


@pytest.mark.filterwarnings("ignore:`torch.jit")  # torch.compile imports what torch itself calls old
def test_wrappers_are_looked_through() -> None:
    module = seeded(cnn)
    assert unwrapped(nn.DataParallel(module)) is module
    assert unwrapped(torch.compile(module)) is module  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")  # Opacus' own
def test_a_client_trained_by_opacus_is_captured_with_its_noise() -> None:
    opacus = pytest.importorskip("opacus", reason="pip install opacus")
    module = seeded(cnn).float()
    x, y = numbers(4, *IMAGE, dtype=torch.float32), torch.tensor([0, 1, 2, 0])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    private, optimiser, loader = opacus.PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1e-3,
        poisson_sampling=False,
    )
    with record(private, examples=4) as rec:
        for images_, labels in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(private(images_), labels).backward()
            optimiser.step()
    exchange = rec.capture.exchanges[0]
    assert set(exchange.update) == {name for name, _ in module.named_parameters()}
    flat = torch.cat([u.flatten() for u in exchange.update.values()])
    # Clipping at a thousandth leaves nothing but noise: multiplier × clip × lr / batch.
    assert float(flat.std()) == pytest.approx(1.0 * 1e-3 * 0.1 / 4, rel=0.25)


def test_paths_may_be_words(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with record(model, f"{tmp_path}/capture", secret=f"{tmp_path}/secret.safetensors") as rec:
        rec.seal(torch.ones(1, 2), torch.tensor([0]))
        with torch.no_grad():
            model.bias -= 1
    assert len(read_capture(tmp_path / "capture")) == 1
    assert len(read_secret(tmp_path / "secret.safetensors").examples) == 1


def test_sealed_examples_that_go_nowhere_are_told(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="expected `secret=FILE`"), record(model, tmp_path / "capture") as rec:
        rec.seal(torch.ones(1, 2), torch.tensor([0]))
    assert len(read_capture(tmp_path / "capture")) == 1


def test_arrays_are_refused_where_tensors_are_wanted() -> None:
    with record(nn.Linear(2, 2)) as rec, pytest.raises(TypeError, match=r"y: expected a tensor .* got ndarray"):
        rec.seal(torch.zeros(1, 2), np.zeros(1))  # type: ignore[arg-type]

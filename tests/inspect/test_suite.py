"""Attacks are chosen by what fits, and what does not fit has a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from common.nets import CLASSES, IMAGE, batch_resnet, cnn, mlp, seeded
from seepage.attacks import ATTACKS, SME, FedAvg, UnknownSchedule
from seepage.inspect.nature import Nature
from seepage.inspect.suite import Effort, choose
from seepage.recipe import Adam, Recipe
from seepage.spec import DataSpec
from seepage.task import Task

SPEC = DataSpec(IMAGE, classes=CLASSES)
CLEAN = Nature(1.0, examples=4)


def names(task: Task, recipe: Recipe | None, nature: Nature) -> set[str]:
    chosen, left_out = choose(task, recipe, [nature], Effort.QUICK)
    assert all(why for _, why in left_out)
    assert {name for name, _ in left_out} <= set(ATTACKS)
    assert not {one.name for one in chosen} & {name for name, _ in left_out}
    return {one.name for one in chosen}


def test_images_are_sought_with_and_without_a_prior_for_smooth_ones() -> None:
    both = {"inverting-gradients", "inverting-gradients, smooth"}
    assert names(Task(seeded(cnn), SPEC), Recipe(), CLEAN) == {"count-labels", "analytic", "spear", *both}
    rows = Task(nn.Linear(3, 2), DataSpec((3,), classes=2))
    assert "inverting-gradients, smooth" not in names(rows, Recipe(), CLEAN)


def test_steps_decide_between_simulation_and_surrogate() -> None:
    task = Task(seeded(batch_resnet), SPEC)
    several = replace(CLEAN, steps=4, fewest_steps=4)
    assert "sme" in names(task, None, several)
    assert "sme" in names(task, None, CLEAN), "of weights nobody knows how many steps made them"
    assert "sme" not in names(task, None, replace(CLEAN, steps=1))
    told = names(task, Recipe(epochs=4), several)
    assert "fedavg-leakage" in told
    assert not told & {"sme", "spear"}


def test_clients_of_adam_are_followed_and_not_computed() -> None:
    task, adaptive = Task(seeded(batch_resnet), SPEC), replace(CLEAN, adaptive=True)
    for recipe, nature in ((None, adaptive), (Recipe(Adam()), CLEAN)):
        assert not names(task, recipe, nature) & {"analytic", "spear"}
    curves = [
        [one.attack.curve for one in choose(task, None, natures)[0] if isinstance(one.attack, SME)]
        for natures in ([adaptive], [CLEAN], [adaptive, CLEAN, CLEAN])
    ]
    assert curves == [["bezier"], ["line"], ["line"]]
    several = replace(CLEAN, fewest_steps=4)
    assert {"sme", "fedavg-leakage"} <= names(task, Recipe(Adam(), epochs=4), several), "told, both are worth a try"
    assert "sme" not in names(task, Recipe(Adam()), CLEAN), "a single step is simulated"


def test_who_only_counts_steps_seeks_how_they_are_cut() -> None:
    task, several = Task(seeded(batch_resnet), SPEC), replace(CLEAN, steps=4, fewest_steps=4)
    chosen, _ = choose(task, Recipe(epochs=4), [several], Effort.QUICK, cut=False)
    found = {one.name: one.attack for one in chosen}
    assert not {"sme", "fedavg-leakage"} & set(found)
    assert found["fedavg-unknown-schedule"] == UnknownSchedule(FedAvg(**{**FedAvg.presets["ours"], "steps": 300}))
    alike, _ = choose(task, Recipe(batch_size=1), [several], Effort.QUICK, cut=False)
    assert alike == chosen, "four steps are four steps"


@pytest.mark.parametrize(("effort", "steps"), [(Effort.QUICK, 300), (Effort.STANDARD, 400), (Effort.THOROUGH, 800)])
def test_several_epochs_are_attacked_better_than_the_paper_does(effort: Effort, steps: int) -> None:
    several = replace(CLEAN, steps=4, fewest_steps=4)
    chosen, _ = choose(Task(seeded(batch_resnet), SPEC), Recipe(epochs=4), [several], effort)
    (attack,) = (one.attack for one in chosen if isinstance(one.attack, FedAvg))
    assert attack == FedAvg(**{**FedAvg.presets["ours"], "steps": steps})
    assert (attack.within, attack.combination, attack.labels) == ("label", "median", "auto")


def test_spear_needs_relu_and_a_batch() -> None:
    assert "spear" not in names(Task(seeded(mlp), SPEC), Recipe(), CLEAN)
    assert "spear" not in names(Task(seeded(cnn), SPEC), Recipe(), replace(CLEAN, examples=1))


def test_without_a_count_or_classes_there_is_a_reason() -> None:
    task = Task(seeded(cnn), SPEC)
    chosen, left_out = choose(task, Recipe(), [replace(CLEAN, examples=None)])
    assert chosen == []
    assert "--examples" in left_out[0][1]
    regression = Task(nn.Linear(3, 1), DataSpec((3,)))
    assert names(regression, Recipe(), CLEAN) == {"analytic", "inverting-gradients", "local-model"}


def test_text_is_read_off_embeddings_and_attention_and_searched_by_tokens() -> None:
    spec = DataSpec((4,), classes=2, vocabulary=9)
    task = Task(seeded(lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(16, 2))), spec)
    assert names(task, Recipe(), CLEAN) == {"count-labels", "token-bag", "lamp", "dager"}
    assert names(task, Recipe(epochs=2), CLEAN) == {"count-labels", "token-bag", "lamp"}
    chosen, _ = choose(task, Recipe(), [CLEAN])
    assert chosen[-1].name == "dager", "what is exact is said last, and that is what the terminal shows"
    assert names(task, Recipe(), replace(CLEAN, examples=None)) == {"token-bag"}, "which needs no number of examples"


def test_patches_are_for_single_images() -> None:
    def embedded() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3, 3), nn.Flatten(), nn.Linear(16, CLASSES))

    task = Task(seeded(embedded), SPEC)
    assert "patches" in names(task, Recipe(), replace(CLEAN, examples=1))
    assert "patches" not in names(task, Recipe(), CLEAN)

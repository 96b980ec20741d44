"""Which attacks fit a capture, and which do not, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from torch import nn

from seepage.attacks import (
    LAMP,
    SME,
    Analytic,
    Attack,
    CountLabels,
    Dager,
    FedAvg,
    InvertingGradients,
    LocalModel,
    Patches,
    Spear,
    TokenBag,
    UnknownSchedule,
)
from seepage.inspect.nature import Nature, mostly_adaptive
from seepage.recipe import Recipe
from seepage.task import Task

__all__ = ["Chosen", "Effort", "choose"]


SMOOTH = 0.01
"""Weight of total variation of the second search. Where the update says all, `benchmarks/suite_prior.py` finds that it
costs 25 dB, so that it is never the only one; where noise or many steps leave less, a prior has to choose."""

SEVERAL_EPOCHS = FedAvg.presets["ours"]
"""How several epochs are simulated, in whatever network. `benchmarks/suite_fedavg.py` compares it with the forms that
are made for the paper's networks."""


class Effort(StrEnum):
    """How long to search."""

    QUICK = "quick"
    STANDARD = "standard"
    THOROUGH = "thorough"

    @property
    def steps(self) -> int:
        """Iterations of each search."""
        return {Effort.QUICK: 300, Effort.STANDARD: 2000, Effort.THOROUGH: 4800}[self]

    @property
    def simulations(self) -> int:
        """Iterations of a search that simulates all local steps in each of them."""
        return {Effort.QUICK: 300, Effort.STANDARD: 400, Effort.THOROUGH: 800}[self]

    @property
    def sweeps(self) -> int:
        """How often every token of a text is exchanged."""
        return {Effort.QUICK: 4, Effort.STANDARD: 8, Effort.THOROUGH: 16}[self]

    @property
    def restarts(self) -> int:
        """How often each search is begun anew: what comes out the same again is more than chance."""
        return {Effort.QUICK: 2, Effort.STANDARD: 3, Effort.THOROUGH: 5}[self]


@dataclass(frozen=True)
class Chosen:
    """An attack of the suite.

    Args:
        attack: with its knobs.
        why: it fits, in one sentence.
        restarts: how often it is run from the beginning; 1 for what computes its answer.
        label: in the place of its name, where that occurs twice.
    """

    attack: Attack
    why: str
    restarts: int = 1
    label: str = ""

    @property
    def name(self) -> str:
        """As in tables."""
        return self.label or self.attack.name


def choose(
    task: Task,
    recipe: Recipe | None,
    natures: Sequence[Nature],
    effort: Effort = Effort.STANDARD,
    *,
    cut: bool = True,
) -> tuple[list[Chosen], list[tuple[str, str]]]:
    """The suite for clients of one module.

    Args:
        task: the module.
        recipe: how clients train, if that was told.
        natures: of the updates.
        effort: how long to search.
        cut: whether the attacker is told how local steps are cut into epochs and batches, or only how many there are.

    Returns:
        The attacks that fit, and (name, reason) of those that do not.
    """
    counts = {nature.examples for nature in natures}
    if None in counts:
        why = "needs the number of examples, which the capture does not say; give --examples"
        needy = (Dager, LAMP) if task.spec.is_text else (Analytic, Spear, InvertingGradients, FedAvg, SME)
        return _bag(task), [(attack.name, why) for attack in (CountLabels, *needy)]
    several = any(nature.fewest_steps > 1 for nature in natures)
    single = all(nature.steps == 1 for nature in natures)
    stepped = recipe is not None and recipe.sends != "gradient"
    adaptive = mostly_adaptive(natures) if recipe is None else stepped and not recipe.optimiser.linear
    if recipe is not None:
        several = several or any(recipe.steps(count) > 1 for count in counts if count)
    chosen, left_out = _labels(task)
    found, others = (
        _texts(task, several, effort)
        if task.spec.is_text
        else _numbers(task, recipe, counts, several, single, adaptive, effort, cut)
    )
    return chosen + found, left_out + others


def _labels(task: Task) -> tuple[list[Chosen], list[tuple[str, str]]]:
    if task.spec.classes is None:
        return [], [(CountLabels.name, "there are no classes")]
    if task.head is None:
        return [], [(CountLabels.name, "the module does not end in a linear layer with one output per class")]
    return [Chosen(CountLabels(), "the last layer gives label counts away")], []


def _bag(task: Task) -> list[Chosen]:
    """Alone needs no number of examples."""
    why = "the rows of the embedding that moved name the tokens that occur"
    return [Chosen(TokenBag(), why)] if task.spec.is_text else []


def _texts(task: Task, several: bool, effort: Effort) -> tuple[list[Chosen], list[tuple[str, str]]]:
    """What computes its answer comes last: a search that found less does not take its place."""
    # Exchanging tokens finds more than moving embeddings does, and costs more.
    search = LAMP(
        steps=effort.steps // 3 + 1, turns=effort.sweeps, moves=10 * effort.sweeps, sweeps=effort.sweeps, lr=0.05
    )
    chosen = [*_bag(task), Chosen(search, "texts are sought that explain the update, after any number of steps")]
    why = "tokens are whole numbers, which no gradient reaches"
    left_out = [(attack.name, why) for attack in (Analytic, Spear, InvertingGradients, FedAvg, SME)]
    if several:
        return chosen, [(Dager.name, "it takes one gradient apart, and there were several local steps"), *left_out]
    return [*chosen, Chosen(Dager(), "the gradient of an attention spans what enters it, and so tells texts")], left_out


def _numbers(
    task: Task,
    recipe: Recipe | None,
    counts: set[int | None],
    several: bool,
    single: bool,
    adaptive: bool,
    effort: Effort,
    cut: bool,
) -> tuple[list[Chosen], list[tuple[str, str]]]:
    """For images, rows of tables and whatever else has a gradient."""
    chosen: list[Chosen] = []
    left_out: list[tuple[str, str]] = []
    layers = list(task.module.modules())
    if not any(isinstance(layer, nn.Linear) for layer in layers):
        left_out += [(attack.name, "the module has no linear layer") for attack in (Analytic, Spear)]
    elif adaptive:
        why = "it takes gradients apart, and steps of Adam changed them entry by entry"
        left_out += [(attack.name, why) for attack in (Analytic, Spear)]
    else:
        chosen.append(Chosen(Analytic(), "what enters a linear layer can be computed from its gradient"))
        if several:
            left_out.append((Spear.name, "it takes one gradient apart, and there were several local steps"))
        elif max(count or 0 for count in counts) < 2:
            left_out.append((Spear.name, "there is a single example, which the analytic attack finds"))
        elif not any(isinstance(layer, nn.ReLU) for layer in layers):
            left_out.append((Spear.name, "the module has no ReLU, whose zeros it lives on"))
        else:
            chosen.append(Chosen(Spear(), "ReLU leaves zeros by which a batch is taken apart"))
    if task.spec.is_image and any(isinstance(m, nn.Conv2d) and m.stride == m.kernel_size for m in layers):
        if counts == {1}:
            chosen.append(
                Chosen(Patches(), "patches can be computed from their embedding's gradient and the positions'")
            )
        else:
            left_out.append((Patches.name, "it is for a single image"))
    search = InvertingGradients(steps=effort.steps)
    chosen.append(Chosen(search, "the direction of the update is matched", effort.restarts))
    if task.spec.is_image:
        smooth = InvertingGradients(tv=SMOOTH, steps=effort.steps)
        why = "likewise, with smooth images preferred, for updates that say less"
        chosen.append(Chosen(smooth, why, effort.restarts, "inverting-gradients, smooth"))
    slower = FedAvg(**{**SEVERAL_EPOCHS, "steps": effort.simulations})
    simulated = recipe is not None and task.spec.is_image and task.spec.classes is not None
    if simulated and several and not cut:
        why = "epochs are simulated, and how many there are is sought among the divisors of the number of steps"
        chosen.append(Chosen(UnknownSchedule(slower), why))
    elif simulated and cut and recipe is not None and recipe.epochs > 1:
        chosen.append(Chosen(slower, "several epochs are simulated, each with images of its own", effort.restarts))
    else:
        left_out.append((FedAvg.name, "it is for images, several epochs and a recipe that is told"))
    if (recipe is None and not single) or (adaptive and several):
        # `benchmarks/suite_untold.py`: no worse than the others after a step or two, and after ten epochs alone in
        # finding anything; after Adam a curve finds most, however many steps there were, and more than simulating them.
        surrogate = SME(steps=effort.steps, curve="bezier" if adaptive else "line")
        several_steps = "several steps" if recipe is not None else "several steps, which nobody tells of,"
        why = f"{several_steps} are approximated by one between"
        chosen.append(Chosen(surrogate, why, effort.restarts))
    else:
        left_out.append((SME.name, "it is for local steps that the attacker is not told, and for Adam"))
    if task.spec.classes is None:
        chosen.append(Chosen(LocalModel(), "a least-squares client's own model follows from enough rounds"))
    return chosen, left_out

"""Is a capture sound, and is leakage to be expected from it? Each answer with what was expected, what came, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from seepage.audit.diagnosis import mismatches
from seepage.capture import Capture, Exchange, Problem, Secret, examine
from seepage.frameworks.arrange import arrange
from seepage.inspect.nature import Nature, infer, length_of
from seepage.local import local_update
from seepage.pieces.embedded_texts import moved_rows, noise_of_rows
from seepage.recipe import SGD, Recipe
from seepage.spec import Examples
from seepage.task import Task
from seepage.threat import Setting

__all__ = ["Check", "Examination", "Reason", "assumed", "doctor"]

EXPLAINED = 0.1
"""`mismatch` up to which the sealed examples count as what the update was made of."""

PACE = 0.1
"""How much longer or shorter an update may be than its examples make it, as a share."""

FAINT = 16
"""Units of the last bit below which an update is hard to tell from rounding."""

SMOOTH = (nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.Softplus, nn.ELU, nn.Mish)
KINKED = (nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.PReLU, nn.Hardtanh, nn.MaxPool2d)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        name: of it.
        status: `"problem"` where an attack would be misled, `"note"` for what is good to know, `"fine"` otherwise.
        expected: what would be right; empty where nothing is wrong and there is something to know.
        got: what is there.
        remedy: what to do, where something is to be done.
    """

    name: str
    status: Literal["fine", "note", "problem"]
    expected: str
    got: str
    remedy: str = ""


@dataclass(frozen=True)
class Reason:
    """Something that makes leakage more or less likely.

    Args:
        name: of it.
        leakage: whether to expect `"more"` or `"less"` of it, or `"open"`.
        got: what is there.
        why: in one sentence.
    """

    name: str
    leakage: Literal["more", "less", "open"]
    got: str
    why: str


@dataclass(frozen=True, eq=False)
class Examination:
    """What there is to say about one client's last round.

    Args:
        client: its name.
        exchange: the round, arranged as the module has it.
        nature: how the update was made, as far as it shows; `None` where it does not fit the module.
        checks: whether the capture is sound.
        reasons: why leakage is to be expected, or not.
    """

    client: str
    exchange: Exchange
    nature: Nature | None
    checks: tuple[Check, ...]
    reasons: tuple[Reason, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether no check found a problem."""
        return all(check.status != "problem" for check in self.checks)


def assumed(recipe: Recipe | None) -> Recipe:
    """The recipe, or the guess that the answer is, up to scale, one gradient."""
    return Recipe(sends="gradient") if recipe is None else recipe


def doctor(
    captures: Sequence[Capture], task: Task, recipe: Recipe | None = None, secrets: dict[str, Secret] | None = None
) -> list[Examination]:
    """Examine the last round of each client.

    Args:
        captures: as they were read, one per client.
        task: the module that they are said to come from.
        recipe: how clients train, if that was told.
        secrets: by client, where there are any.
    """
    arranged = [arrange(capture, task) for capture in captures]
    misfits = [_misfits(capture, task) for capture in arranged]
    sound = [not any(check.status == "problem" for check in found) for found in misfits]
    lengths = {
        capture.client: infer(capture.exchanges[-1], capture.exchanges[-1], task).length
        for capture, fits in zip(arranged, sound, strict=True)
        if fits
    }
    examinations = []
    for sent, capture, found, fits in zip(captures, arranged, misfits, sound, strict=True):
        exchange = capture.exchanges[-1]
        if not fits:
            examinations.append(Examination(capture.client, exchange, None, tuple(found)))
            continue
        others = [length for client, length in lengths.items() if client != capture.client]
        nature = infer(sent.exchanges[-1], exchange, task, recipe, others)
        checks = [*found, *_checks(exchange, nature, task, recipe), *_layers(task)]
        checks += _truth(exchange, task, recipe, (secrets or {}).get(capture.client))
        reasons = tuple(_reasons(capture, nature, task, recipe))
        examinations.append(Examination(capture.client, exchange, nature, tuple(checks), reasons))
    return examinations


# Is it sound?


def _misfits(capture: Capture, task: Task) -> list[Check]:
    problems = [problem for problem in examine(capture, task) if problem.fatal]
    if not problems:
        whole = f"{len(task.params)} parameters and {len(task.buffers)} buffers of the module"
        return [Check("names and shapes", "fine", whole, "all of them")]
    return [_together(alike) for alike in _alike(problems)]


def _alike(problems: Sequence[Problem]) -> list[list[Problem]]:
    """Problems of one kind in one part of the message: another module differs in every tensor, for one reason."""
    kinds: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.where, problem.fix), []).append(problem)
    return list(kinds.values())


def _together(alike: Sequence[Problem]) -> Check:
    first = alike[0]
    part = first.where.split(", ")[-1]  # of the message: the examination names client and round
    expected, got = _halves(first.what)
    others = f"; likewise for {_few([problem.key for problem in alike[1:]])}" if len(alike) > 1 else ""
    return Check(f"{part}: {first.key}", "problem", expected, got + others, first.fix)


def _halves(what: str) -> tuple[str, str]:
    expected, _, got = what.removeprefix("expected ").partition(", got ")
    return expected, got


def _checks(exchange: Exchange, nature: Nature, task: Task, recipe: Recipe | None) -> Iterator[Check]:
    # `arrange` fills in what was not sent with the module's own tensors.
    assumed_buffers = [name for name, own in task.buffers.items() if exchange.buffers_before[name] is own]
    if assumed_buffers:
        yield Check(
            "buffers",
            "note",
            "the global model's buffers and frozen parameters in what was sent out",
            f"none for {_few(assumed_buffers)}; the module's own are taken",
            "send the whole state dict, or have the factory load the global model's buffers",
        )
    faint = nature.ulps < FAINT
    yield Check(
        "size of the update",
        "fine" if not faint else "note" if nature.half else "problem",
        f"entries of at least {FAINT} units of the last bit of the weights",
        "not rounded to weights" if math.isinf(nature.ulps) else f"{nature.ulps:,.0f} units at the median",
        _remedy_of_rounding(nature) if faint else "",
    )
    if nature.examples is None:
        yield Check("number of examples", "note", "that the reply says it", "nothing", "give --examples N")
    elif nature.fewest_examples > nature.examples:
        yield Check(
            "number of examples",
            "problem",
            f"at most {nature.examples} directions in the first layer's update, one per example",
            f"{nature.fewest_examples}",
            "correct the number of examples; or an optimiser such as Adam, or a defence, is at work: tell the recipe",
        )
    else:
        beside = f", {nature.fewest_examples} or more by the rank of the first layer" if nature.counted_rank else ""
        yield Check("number of examples", "fine", "that the reply says it", f"{nature.examples}{beside}")
    if nature.frozen:
        cancelled = all(_cancelled(name, nature) for name in nature.frozen)
        yield Check(
            "frozen parameters",
            "note",
            "every parameter of the module to have moved",
            f"{len(nature.frozen)} of {len(task.params)} did not: {_few(nature.frozen)}",
            "nothing to do: a normalisation behind a layer takes its bias away"
            if cancelled
            else "set requires_grad = False on them in the factory, so that attacks do not expect a gradient",
        )
    if recipe is None:
        fix = "give --recipe FILE with a [recipe] table; without it local steps can only be approximated by one"
        yield Check("recipe", "note", "learning rate, epochs and batch size", "nothing", fix)
        return
    if nature.steps is not None and nature.examples is not None and exchange.kind != "gradient":
        told = recipe.steps(nature.examples)
        right = told == nature.steps
        fix = "" if right else "correct epochs, batch_size or the number of examples in the recipe"
        got = f"{nature.steps} by BatchNorm's counter"
        yield Check("local steps", "fine" if right else "problem", f"{told} by the recipe", got, fix)
    if nature.train_mode is not None:
        mode = "train" if nature.train_mode else "eval"
        right = mode == recipe.batch_norm
        fix = "" if right else f'write batch_norm = "{mode}" in the recipe'
        yield Check("mode of BatchNorm", "fine" if right else "problem", recipe.batch_norm, mode, fix)
    if nature.momentum and not getattr(recipe.optimiser, "momentum", 0.0):
        yield Check(
            "pace",
            "problem",
            f"a change of the last bias that steps of {recipe.optimiser.lr:g} can make",
            "a larger one",
            "correct lr, epochs or batch_size in the recipe, or add momentum",
        )
    if nature.adaptive and not nature.signed and isinstance(recipe.optimiser, SGD) and recipe.sends != "gradient":
        rates = f"those of all steps add up to {nature.largest:.3g} or more"
        yield Check(
            "optimiser",
            "problem",
            "entries as far apart as SGD leaves them",
            "entries of one order of magnitude in all tensors, as steps of Adam leave them",
            f'write optimiser = {{ kind = "Adam", lr = … }} in the recipe; of learning rates, {rates}',
        )
    if (recipe.sends == "gradient") != (exchange.kind == "gradient"):
        fix = f'write sends = "{exchange.kind}" in the recipe'
        yield Check("what is sent", "problem", f"{recipe.sends} by the recipe", exchange.kind, fix)


def _remedy_of_rounding(nature: Nature) -> str:
    if nature.half:
        return (
            f"nothing to correct: clients send weights in {nature.half}, and this is what is left of the update in them"
        )
    return "capture the update itself rather than weights, or train in float64"


def _cancelled(name: str, nature: Nature) -> bool:
    """Whether it is the bias of a layer whose weight moved."""
    layer, _, kind = name.rpartition(".")
    return kind == "bias" and f"{layer}.weight" not in nature.frozen


def _layers(task: Task) -> Iterator[Check]:
    alike: dict[tuple[str, str, str], int] = {}
    for concern in task.concerns:
        alike[concern.kind, concern.why, concern.fix] = alike.get((concern.kind, concern.why, concern.fix), 0) + 1
    for (kind, why, fix), count in alike.items():
        remedy = "" if fix == "Nothing to do" else fix
        yield Check(f"layer {kind}", "note", "", f"{count} × {why}", remedy)


def _truth(exchange: Exchange, task: Task, recipe: Recipe | None, secret: Secret | None) -> list[Check]:
    if secret is None:
        return []
    held = secret.examples
    if tuple(held.x.shape[1:]) != task.spec.shape:
        what, got = f"inputs of shape {task.spec.shape}", f"{tuple(held.x.shape[1:])}"
        return [Check("sealed examples", "problem", what, got, "seal what the module eats, or correct the shape")]
    like = next(iter(exchange.before.values()))
    (distance,) = mismatches([exchange], [held.to(like.device, like.dtype)], Setting(task, assumed(recipe)))
    if distance <= EXPLAINED:
        found = f"{distance:.2g}"
        explained = Check("sealed examples", "fine", f"a mismatch of at most {EXPLAINED:g} to the update", found)
        return [explained, *_rate(exchange, held.to(like.device, like.dtype), task, recipe)]
    shuffled = recipe is None or (recipe.shuffle and recipe.batch_size is not None)
    plain = not shuffled and not _drops(task, recipe)
    return [
        Check(
            "sealed examples",
            "problem" if plain else "note",
            f"to explain the update, with a mismatch of at most {EXPLAINED:g}",
            f"a mismatch of {distance:.2g} (0 is the same direction, 1.4 unrelated)",
            "compare loss, normalisation of the sealed inputs, BatchNorm mode and recipe with the client's; a defence, "
            "noise, dropout, an optimiser such as Adam, or batches in an unknown order explain it too",
        )
    ]


def _rate(exchange: Exchange, held: Examples, task: Task, recipe: Recipe | None) -> Iterator[Check]:
    """One step has the right direction whatever the learning rate; its length tells."""
    if recipe is None or recipe.sends == "gradient":
        return
    buffers = {**task.buffers, **exchange.buffers_before}
    with torch.no_grad():
        update = local_update(task, exchange.before, recipe.schedule(held.x, held.y), recipe, buffers=buffers)
    ratio = length_of(exchange.update) / max(length_of(update), torch.finfo(torch.float64).tiny)
    if abs(ratio - 1) > PACE:
        rate = recipe.optimiser.lr
        yield Check(
            "learning rate",
            "problem",
            f"an update as long as the sealed examples make it with a learning rate of {rate:g}",
            f"one that is {ratio:.3g} times as long",
            f"correct the recipe: lr = {rate * ratio:.3g} would fit; clipping by the client explains a shorter one",
        )


def _drops(task: Task, recipe: Recipe | None) -> bool:
    """Whether the client draws masks that nobody can draw again."""
    return assumed(recipe).train and any(isinstance(m, _DropoutNd) and m.p > 0 for m in task.module.modules())


# Is leakage to be expected?


def _reasons(capture: Capture, nature: Nature, task: Task, recipe: Recipe | None) -> Iterator[Reason]:
    for about in (_who, _equations, _work, _module, _changes):
        yield from about(capture, nature, task, recipe)


def _who(capture: Capture, nature: Nature, task: Task, recipe: Recipe | None) -> Iterator[Reason]:
    del nature, task, recipe
    if len(capture.members) > 1:
        why = "what is seen is a sum over clients, so that an attack sees one large batch"
        yield Reason("aggregate", "less", f"{len(capture.members)} clients", why)


def _equations(capture: Capture, nature: Nature, task: Task, recipe: Recipe | None) -> Iterator[Reason]:
    del capture, recipe
    if not nature.examples:
        return
    values = math.prod(task.spec.shape)
    moved = sum(p.numel() for name, p in task.params.items() if name not in nature.frozen)
    ratio = moved / (nature.examples * values)
    unknowns = "tokens" if task.spec.is_text else "input values"
    got = f"{ratio:.3g} ({moved} numbers sent for {nature.examples} × {values} {unknowns})"
    if ratio >= 1:
        why = "there are more equations than unknowns, so that few other inputs give the same update"
        yield Reason("parameters per input value", "more", got, why)
    else:
        why = "there are fewer equations than unknowns: many inputs give the same update, and a prior has to choose"
        yield Reason("parameters per input value", "less", got, why)


def _work(capture: Capture, nature: Nature, task: Task, recipe: Recipe | None) -> Iterator[Reason]:
    del capture, task
    if recipe is None and nature.steps != 1 and (nature.examples or 0) > 1:
        got = f"not known, up to {nature.examples} examples per step"
        yield Reason("batch", "open", got, "the smaller, the more comes back; tell the recipe to know")
    elif nature.examples is not None:
        size = min(recipe.batch_size or nature.examples, nature.examples) if recipe else nature.examples
        words = {
            "more": "with a single example nothing is averaged away",
            "open": "small batches are often recovered, in part",
            "less": "the update is a mean over many examples, of which few can be told apart",
        }
        leakage: Literal["more", "open", "less"] = "more" if size == 1 else "open" if size <= 8 else "less"
        yield Reason("batch", leakage, f"{size} of {nature.examples} examples per step", words[leakage])
    told = recipe.steps(nature.examples) if recipe and nature.examples else None
    steps = nature.steps or told
    if steps == 1:
        yield Reason("local steps", "more", "1", "the update is a gradient up to its scale")
    elif steps is not None and recipe is not None:
        yield Reason("local steps", "open", str(steps), "known steps can be simulated; the more, the harder the search")
    elif steps is not None or nature.fewest_steps > 1:
        got = str(steps) if steps else f"{nature.fewest_steps} or more"
        yield Reason("local steps", "less", got, "steps that the attacker is not told can only be approximated by one")
    else:
        yield Reason("local steps", "open", "not known", "one step leaks most; tell the recipe to know")


def _module(capture: Capture, nature: Nature, task: Task, recipe: Recipe | None) -> Iterator[Reason]:
    layers = list(task.module.modules())
    if any(isinstance(layer, _BatchNorm) for layer in layers):
        mode = nature.train_mode if nature.train_mode is not None else assumed(recipe).train
        if mode:
            why = "every batch is normalised by its own statistics, which mixes its examples and hides brightness"
            yield Reason("BatchNorm", "less", "train mode", why)
        else:
            yield Reason("BatchNorm", "more", "eval mode", "normalisation is a fixed map that the attacker knows")
    if _drops(task, recipe):
        yield Reason("dropout", "less", "on", "masks that the attacker does not know were drawn in every step")
    kinked = sorted({type(layer).__name__ for layer in layers if isinstance(layer, KINKED)})
    smooth = sorted({type(layer).__name__ for layer in layers if isinstance(layer, SMOOTH)})
    if kinked:
        why = "derivatives jump where units switch, which disturbs gradient matching and helps exact attacks"
        yield Reason("activation", "open", ", ".join(kinked), why)
    elif smooth:
        why = "smooth derivatives make gradient matching easy"
        yield Reason("activation", "more", ", ".join(smooth), why)
    first = next((layer for layer in layers if next(layer.children(), None) is None and list(layer.parameters())), None)
    if isinstance(first, nn.Linear) and first.bias is not None:
        why = "its gradient is made of the inputs themselves: single examples can be read off exactly"
        yield Reason("first layer", "more", "linear with a bias", why)
    if isinstance(first, nn.Embedding) and task.spec.is_text:
        yield from _embedding(capture.exchanges[-1], first, task)
    if task.head is not None:
        yield Reason("last layer", "more", "linear, one output per class", "its update gives label counts away")
    if nature.dead >= 0.1:
        leakage: Literal["more", "less"] = "less" if nature.dead >= 0.5 else "more"
        why = (
            "what passes through dead units leaves no trace"
            if leakage == "less"
            else "units that are silent for some examples help to tell these apart"
        )
        yield Reason("dead gradients", leakage, f"{nature.dead:.0%} of hidden units", why)


def _embedding(exchange: Exchange, layer: nn.Embedding, task: Task) -> Iterator[Reason]:
    name = next(name for name, other in task.module.named_modules() if other is layer)
    update = exchange.update.get(f"{name}.weight")
    if update is None or not update.any():
        why = "which tokens occur does not show in it; what enters the layers behind it may tell all the same"
        yield Reason("embedding", "less", "not trained", why)
        return
    moved = int(update.any(1).sum())
    got = f"{moved} of {layer.num_embeddings} rows moved"
    if moved < layer.num_embeddings - 1:  # id 0, which fills up, may have no row to move
        yield Reason("embedding", "more", got, "a row moves only if its token occurs: they name the client's words")
        return
    noise = noise_of_rows(update[1:])
    clear = 0 if noise is None else int(moved_rows(update[1:], noise).sum())
    if clear:
        why = "noise or weight decay moves every row alike, and those of tokens that occur further: they name the words"
        yield Reason("embedding", "more", f"{got}, {clear} of them further than the others", why)
    else:
        why = "weight decay, noise or a tied output layer moves every row, which hides which tokens occur"
        yield Reason("embedding", "less", got, why)


def _changes(capture: Capture, nature: Nature, task: Task, recipe: Recipe | None) -> Iterator[Reason]:
    del capture, task, recipe
    if nature.noise:
        got = f"standard deviation {nature.noise:.3g}" + (", all that shows" if nature.noisy else "")
        yield Reason("noise", "less", got, "it hides every direction of the update that is shorter")
    if nature.sparse:
        yield Reason(
            "sparse", "less", f"{nature.zeros:.0%} zeros", "entries were left out; the largest say most, though"
        )
    if nature.signed:
        why = "only signs are left, as of sign compression or of the first step of Adam"
        yield Reason("signed", "less", "entries of one size", why)
    elif nature.adaptive:
        why = "gradients were divided by their own sizes, as by Adam: attacks follow it, and find less than from SGD"
        yield Reason("optimiser", "less", "entries of one order of magnitude in all tensors", why)
    elif nature.levels is not None:
        yield Reason(
            "quantised", "less", f"at most {nature.levels} values per tensor", "small differences were rounded"
        )
    elif nature.half:
        yield Reason("half precision", "open", nature.half, "three digits are left, which is enough for most attacks")
    if nature.clipped is not None:
        why = "clipping changes the length of an update and not its direction, which is what attacks match"
        yield Reason("clipped", "open", f"to a length of {nature.clipped:.3g}", why)


def _few(names: Sequence[str], most: int = 3) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest

"""The network that a client would have trained alone, for attacks that name one, and what it would give away itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from seepage.attacks.attribute_model import best_values
from seepage.audit.attributes import attribute_scores
from seepage.audit.optimum import true_optimum
from seepage.capture import Capture, Secret
from seepage.engine.sweep import flatten
from seepage.metrics.relative import relative_error
from seepage.metrics.score import Score
from seepage.metrics.zest import zest_similarity
from seepage.pieces.lone_training import train_alone
from seepage.spec import Examples
from seepage.task import Params, Task
from seepage.threat import Records, Setting

__all__ = ["is_least_squares", "network_scores", "optimum_scores", "own_model"]


def is_least_squares(task: Task) -> bool:
    """Whether the module is one linear layer for a regression, whose optimum has a closed form."""
    layers = [m for m in task.module.modules() if any(True for _ in m.parameters(recurse=False))]
    return task.spec.classes is None and len(layers) == 1 and isinstance(layers[0], nn.Linear)


def network_scores(found: Params, capture: Capture, secret: Secret, setting: Setting) -> list[Score]:
    """How near a model is to the one that the client would have trained alone: in parameters, and in what it says.

    Args:
        found: what the attack names.
        capture: what it saw.
        secret: the client's data.
        setting: the federation.
    """
    task, train, last = setting.task, setting.recipe.train, capture.exchanges[-1]
    buffers = {**task.buffers, **last.buffers_before}
    alone = own_model(capture, secret, setting)
    x, y = secret.examples.x, secret.examples.y

    def model(params: Params) -> Callable[[Tensor], Tensor]:
        like = {name: p.to(alone[name]) for name, p in params.items()}

        def answers(rows: Tensor) -> Tensor:
            with torch.no_grad():
                out = task.forward(like, rows, buffers=buffers, train=train)[0].double()
            return out if task.spec.classes is None else out.softmax(-1)

        return answers

    def right(said: Tensor) -> float:
        if task.spec.classes is not None:
            return float((said.argmax(-1) == y).double().mean())
        error = ((said - y.reshape(said.shape)) ** 2).sum()
        return float(1 - error / ((y - y.mean()) ** 2).sum())

    def error(params: Params) -> float:
        vector = torch.cat([params[name].double().flatten() for name in alone])
        return float(relative_error(vector[None], flatten(alone).double()[None]))

    said, wanted = model(found)(x), model(alone)(x)
    scores = {
        "relative_error": error(found),
        "relative_error_of_global_model": error(last.before),
        "model_accuracy": right(said),
        "model_accuracy_of_optimum": right(wanted),
    }
    if last.kind != "gradient":  # else no model came back
        scores["relative_error_of_last_answer"] = error({n: p - last.update[n] for n, p in last.before.items()})
    if task.spec.classes is not None:
        scores["prediction_distance"] = float((said - wanted).abs().sum(-1).mean() / 2)
    scores["zest"] = zest_similarity(model(found), model(alone), x)
    return [Score("all", metric, value) for metric, value in scores.items()]


def optimum_scores(capture: Capture, secret: Secret, setting: Setting) -> list[Score]:
    """What eq. (3) of driouich2023 makes of the client's true own model, which no attacker has."""
    assert setting.sensitive is not None
    examples, task = secret.examples, setting.task
    records = Records(setting.sensitive.hidden(examples.x)[None], examples.y[None], setting.sensitive)
    buffers = {**task.buffers, **capture.exchanges[-1].buffers_before}
    linear = is_least_squares(task)
    alone = own_model(capture, secret, setting)
    if linear:
        like = next(iter(alone.values()))
        alone = {name: p.to(like) for name, p in true_optimum(task, buffers, examples, setting.recipe).items()}
    found = best_values(task, alone, buffers, records, 0, train=setting.recipe.train)
    (share,) = (s.value for s in attribute_scores(found, secret, setting.sensitive) if s.metric == "attribute_accuracy")
    scores = [Score("all", "attribute_accuracy_of_optimum", share)]
    if linear and len(setting.sensitive.values) == 2 and not setting.sensitive.numeric:
        scores.append(Score("all", "attribute_accuracy_bound", _proposition4(task, alone, buffers, examples, setting)))
    return scores


def _proposition4(task: Task, params: Params, buffers: Params, examples: Examples, setting: Setting) -> float:
    """1 − 4E/θ[s]²: who has a model of least squares errs in no more records than its squared error E allows."""
    assert setting.sensitive is not None
    records = Records(setting.sensitive.hidden(examples.x)[None], examples.y[None], setting.sensitive)
    no, yes, truth = (
        task.forward(params, x, buffers=buffers)[0].flatten().double()
        for x in (*(records.filled(0, value) for value in setting.sensitive.values), examples.x)
    )
    error = (truth - examples.y.flatten()).square().mean()
    return float(1 - 4 * error / (yes - no).square().mean())


def own_model(capture: Capture, secret: Secret, setting: Setting) -> Params:
    """What the client would have trained alone; once per process, as several attacks are judged by it."""
    first = capture.exchanges[0]
    key = (capture.client, len(secret.examples), float(flatten(first.before).double().sum()), setting.recipe.train)
    if key not in _TRAINED:
        while len(_TRAINED) >= MOST_TRAINED:
            _TRAINED.pop(next(iter(_TRAINED)))
        buffers = {**setting.task.buffers, **first.buffers_before}
        x, y = secret.examples.x, secret.examples.y
        _TRAINED[key] = train_alone(setting.task, first.before, x, y, buffers=buffers, train=setting.recipe.train)
    return _TRAINED[key]


MOST_TRAINED = 32
_TRAINED: dict[tuple[str, int, float, bool], Params] = {}

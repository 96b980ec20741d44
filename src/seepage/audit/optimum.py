"""The model that a client would have trained alone, for attacks that find it: what least squares gives on its data."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, jacrev

from seepage.capture import Capture, Secret
from seepage.engine.sweep import flatten, unflatten
from seepage.metrics.relative import relative_error
from seepage.metrics.score import Score
from seepage.recipe import Recipe
from seepage.spec import Examples
from seepage.task import Params, Task
from seepage.threat import Setting

__all__ = ["model_scores", "true_optimum"]


def true_optimum(task: Task, buffers: Params, examples: Examples, recipe: Recipe) -> Params:
    """The minimum of the client's own squared error, with the recipe's weight decay, in float64.

    Args:
        task: whose module is linear in its parameters.
        buffers: the global model's.
        examples: the client's.
        recipe: how it trains.

    Returns:
        Parameters by name; NaN where the examples do not decide all of them.

    Example:
        >>> from torch import nn
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Linear(1, 1), DataSpec((1,)))
        >>> examples = Examples(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([1.0, 3.0, 5.0]))
        >>> {name: round(float(p), 6) for name, p in true_optimum(task, {}, examples, Recipe()).items()}
        {'weight': 2.0, 'bias': 1.0}
    """
    module = task.to("cpu", torch.float64).module.train(recipe.train)
    like = {name: p.detach().cpu().double() for name, p in task.params.items()}
    held = {n: b.detach().cpu().double() if b.is_floating_point() else b.cpu() for n, b in buffers.items()}
    inside = examples.to("cpu", torch.float64)

    def outputs(theta: Tensor) -> Tensor:
        out: Tensor = functional_call(module, {**held, **unflatten(theta, like)}, (inside.x,))
        return out.flatten()

    nothing = torch.zeros_like(flatten(like))
    design: Tensor = jacrev(outputs)(nothing)  # (examples × targets, parameters)
    wanted = inside.y.reshape(-1).double() - outputs(nothing)
    # SGD adds decay · θ to the gradient of a mean: as many more rows ask for θ = 0, at that weight.
    decay = recipe.optimiser.weight_decay * len(wanted) / 2
    rows = torch.cat([design, decay**0.5 * torch.eye(len(nothing), dtype=torch.float64)])
    solution = torch.linalg.lstsq(rows, torch.cat([wanted, nothing])[:, None], driver="gelsd")
    decided = int(solution.rank) == len(nothing)
    return unflatten(solution.solution[:, 0] if decided else nothing * torch.nan, like)


def model_scores(found: Params, capture: Capture, secret: Secret, setting: Setting) -> list[Score]:
    """How far a reconstructed model is from the client's own, beside models that nobody has to reconstruct.

    Args:
        found: what the attack says.
        capture: what it saw; the last global model and the last answer stand for no attack at all.
        secret: the client's data.
        setting: the federation.
    """
    last = capture.exchanges[-1]
    truth = true_optimum(setting.task, {**setting.task.buffers, **last.buffers_before}, secret.examples, setting.recipe)
    guesses = {"relative_error": found, "relative_error_of_global_model": last.before}
    if last.kind != "gradient":  # else no model came back
        after = {name: p - last.update[name] for name, p in last.before.items()}
        guesses["relative_error_of_last_answer"] = after

    def error(guess: Params) -> float:
        vector = torch.cat([guess[name].detach().cpu().double().flatten() for name in truth])
        return float(relative_error(vector[None], flatten(truth)[None]))

    return [Score("all", metric, error(guess)) for metric, guess in guesses.items()]

"""PRECODE against its loss written out, and what its draw does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.defence_suite import ONE, OTHER
from common.nets import CLASSES, IMAGE, cnn, flat, images, mlp, seeded
from seepage.defences import NoDefence, Precode
from seepage.defences.precode import Bottleneck
from seepage.local import answer, local_update
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec
from seepage.task import Task

GRADIENT = Recipe(sends="gradient")


def defended(beta: float = 0.1, size: int = 3) -> Task:
    module = Precode(size, beta).on_module(seeded(mlp), ONE)
    return Task(module, DataSpec(IMAGE, classes=CLASSES)).to("cpu", torch.float64)


def written_out(params: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, beta: float) -> torch.Tensor:
    """Cross-entropy plus β·KL with means decoded, as a person would write it."""

    def linear(layer: str, x: torch.Tensor) -> torch.Tensor:
        return x @ params[f"{layer}.weight"].mT + params[f"{layer}.bias"]

    mean, log_variance = linear("3.encode", linear("1", x.flatten(1)).tanh()).chunk(2, -1)
    divergence = 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum(-1).mean()
    out = linear("3.last", linear("3.decode", mean))
    return nn.functional.cross_entropy(out, y) + beta * divergence


def test_the_gradient_has_the_divergence_in_it() -> None:
    task, data = defended(beta=0.1), images(4)
    x, y = data.x.double(), data.y
    params = {name: p.clone().requires_grad_() for name, p in task.params.items()}
    expected = torch.autograd.grad(written_out(params, x, y, 0.1), list(params.values()))
    got = local_update(task, task.params, GRADIENT.schedule(x, y), GRADIENT)
    for one, other in zip(got.values(), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_the_second_derivative_has_it_too_also_for_many_clients() -> None:
    task, data = defended(beta=0.5), images(3)
    assert task.batched

    def length(x: torch.Tensor) -> torch.Tensor:
        update = local_update(task, task.params, GRADIENT.schedule(x, data.y), GRADIENT)
        return torch.stack([(u**2).sum() for u in update.values()]).sum()

    def length_written_out(x: torch.Tensor) -> torch.Tensor:
        params = {name: p.clone().requires_grad_() for name, p in task.params.items()}
        loss = written_out(params, x, data.y, 0.5)
        return sum((g**2).sum() for g in torch.autograd.grad(loss, list(params.values()), create_graph=True))

    x = torch.stack([data.x.double(), 0.5 * data.x.double()]).requires_grad_()
    together = torch.autograd.grad(torch.vmap(length)(x).sum(), x)[0]
    for i in range(2):
        alone = x[i].detach().requires_grad_()
        torch.testing.assert_close(together[i], torch.autograd.grad(length_written_out(alone), alone)[0])


def test_clients_draw_from_their_own_stream_and_an_attacker_draws_nothing() -> None:
    task, data = defended(), images(4).to("cpu", torch.float64)
    recipe = Recipe(SGD(0.1), epochs=2)
    sent = [flat(answer(task, task.params, data, recipe, NoDefence(), rng).update) for rng in (ONE, ONE, OTHER)]
    assert sent[0].equal(sent[1])
    assert not torch.allclose(sent[0], sent[2])
    simulated = flat(local_update(task, task.params, recipe.schedule(data.x, data.y), recipe))
    assert not torch.allclose(sent[0], simulated)


def test_draws_have_the_encoded_mean_and_deviation() -> None:
    last = nn.Linear(2, 1)
    block = seeded(lambda: Bottleneck(last, 1, 0.0)).float()
    block.last = block.decode = nn.Identity()
    x = torch.tensor([[0.3, -0.4]]).expand(20_000, 2)
    mean, log_variance = block.encode(x)[0].tolist()
    block.rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        drawn, still = block(x), block.eval()(x)
    assert float(drawn.mean()) == pytest.approx(mean, abs=0.03)
    assert float(drawn.std()) == pytest.approx(2.718281828 ** (log_variance / 2), rel=0.03)
    torch.testing.assert_close(still, torch.full((20_000, 1), mean))


def test_outside_of_training_there_are_as_many_scores_as_classes() -> None:
    task, data = defended(), images(4)
    assert task.forward(task.params, data.x.double())[0].shape == (4, CLASSES)
    assert task.forward(task.params, data.x.double(), train=True)[0].shape == (4, CLASSES + 1)


@pytest.mark.parametrize("build", [mlp, cnn])
def test_the_users_module_is_left_alone_and_the_new_one_is_seeded(build) -> None:
    module = seeded(build)
    before = {name: p.clone() for name, p in module.named_parameters()}
    state = torch.get_rng_state()
    one, again, other = (Precode(4).on_module(module, rng) for rng in (ONE, ONE, OTHER))
    assert state.equal(torch.get_rng_state())
    assert before.keys() == dict(module.named_parameters()).keys()
    assert flat(dict(one.named_parameters())).equal(flat(dict(again.named_parameters())))
    assert not flat(dict(one.named_parameters())).equal(flat(dict(other.named_parameters())))
    assert sum(p.numel() for p in one.parameters()) > sum(p.numel() for p in module.parameters())
    assert Task(one, DataSpec(IMAGE, classes=CLASSES)).head is not None


def test_a_module_without_a_linear_layer_inside_is_refused() -> None:
    with pytest.raises(ValueError, match="which has none; use another defence"):
        Precode().on_module(nn.Linear(2, 2), ONE)
    with pytest.raises(ValueError, match="`size` of at least 1"):
        Precode(size=0)

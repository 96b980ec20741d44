"""The twin of a convolution against torch's own, mapped and differentiated in every way the engine does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from seepage.engine import convolution
from seepage.engine.convolution import LaneConv2d
from seepage.engine.twins import FrozenBatchNorm, purify

KINDS: list[dict[str, Any]] = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": (3, 2), "stride": (1, 2), "padding": "valid", "dilation": 2},
    {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    {"kernel_size": 5, "padding": "same", "bias": False},
    {"kernel_size": 7},  # the second convolution then has more channels than places
    {"kernel_size": 3, "padding": (2, 0), "padding_mode": "reflect"},
]
LANES = 3
# Forward mode imports torch's decompositions, which are still written in TorchScript.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
Tree = dict[str, Tensor]


class Net(nn.Module):
    """Two convolutions with something curved between and after them."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))).sin().sum()


@pytest.fixture(autouse=True, params=[False, True], ids=["together", "one by one"])
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes in one product, and one after another as large products on a GPU are."""
    if request.param:
        monkeypatch.setattr(convolution, "_alone", lambda *_: True)


@pytest.fixture(params=KINDS, ids=str)
def nets(request: pytest.FixtureRequest) -> tuple[Net, Net]:
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        first, second = nn.Conv2d(2, 3, **request.param), nn.Conv2d(3, 2, 3)
    plain = Net(first, second).double()
    return plain, Net(*(LaneConv2d(conv, everywhere=True) for conv in (first, second)))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(net: Net, shared: bool) -> tuple[Tree, Any]:
    params = {name: p.detach() for name, p in net.named_parameters()}
    if shared:
        return params, None
    return {name: p + 0.1 * numbers(LANES, *p.shape) for name, p in params.items()}, 0


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_two_steps_of_training_and_the_gradient_through_them(nets: tuple[Net, Net], shared: bool) -> None:
    params, axis = weights(nets[0], shared)
    x = numbers(LANES, 2, 2, 9, 9, seed=1).requires_grad_()
    along = {name: numbers(LANES, *p.shape[(axis is not None) :], seed=2) for name, p in params.items()}
    results = []
    for net in nets:

        def objective(x: Tensor, params: Tree, along: Tree, net: Net = net) -> Tensor:
            def gradient(params: Tree) -> Tree:
                return grad(lambda params: functional_call(net, params, (x,)))(params)

            first = gradient(params)
            second = gradient({name: p - 0.1 * first[name] for name, p in params.items()})
            return torch.stack([((first[n] + second[n]) * along[n]).sum() for n in first]).sum() ** 2

        value = vmap(objective, in_dims=(0, axis, 0))(x, params, along)
        results.append((value.detach(), torch.autograd.grad(value.sum(), x)[0]))
    for torchs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_forward_over_reverse(nets: tuple[Net, Net], shared: bool) -> None:
    params, axis = weights(nets[0], shared)
    x = numbers(LANES, 2, 2, 9, 9, seed=1)
    along = {name: numbers(LANES, *p.shape[(axis is not None) :], seed=2) for name, p in params.items()}
    results = []
    for net in nets:

        def derivative(x: Tensor, params: Tree, along: Tree, net: Net = net) -> Any:
            both = grad(lambda x, params: functional_call(net, params, (x,)), argnums=(0, 1))
            return jvp(lambda params: both(x, params), (params,), (along,))[1]

        results.append(vmap(derivative, in_dims=(0, axis, 0))(x, params, along))
    torch.testing.assert_close(results[1], results[0], rtol=1e-8, atol=1e-12)


def test_per_example_gradients_inside_of_lanes(nets: tuple[Net, Net]) -> None:
    params, _ = weights(nets[0], shared=False)
    x = numbers(LANES, 4, 2, 9, 9, seed=1)

    def each(net: Net) -> Any:
        def one(x: Tensor, params: Tree) -> Tree:
            return grad(lambda params: functional_call(net, params, (x[None],)))(params)

        return vmap(vmap(one, in_dims=(0, None)))(x, params)

    torch.testing.assert_close(each(nets[1]), each(nets[0]), rtol=1e-8, atol=1e-12)


def test_a_shared_weight_gets_the_sum_of_the_lanes_gradients(nets: tuple[Net, Net]) -> None:
    x = numbers(LANES, 2, 2, 9, 9, seed=1)
    grads = []
    for net in nets:
        params = {name: p.detach().requires_grad_() for name, p in net.named_parameters()}
        total = vmap(lambda x, net=net, params=params: functional_call(net, params, (x,)))(x).sum()
        grads.append(torch.autograd.grad(total, list(params.values())))
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-8, atol=1e-12)


def test_an_image_without_a_batch() -> None:
    conv = nn.Conv2d(2, 3, 3)
    x = torch.ones(2, 5, 5)
    for everywhere in (True, False):
        torch.testing.assert_close(LaneConv2d(conv, everywhere)(x), conv(x))


def test_grouped_convolutions_and_those_of_others_stay_as_they_are() -> None:
    class Own(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    net = purify(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), Own(4, 4, 3), nn.Conv2d(4, 4, 3)), train=False)
    assert [type(layer).__name__ for layer in net.children()] == ["Conv2d", "Own", "LaneConv2d"]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm1d, (5, 3)), (nn.BatchNorm2d, (2, 3, 4, 4))])
def test_a_frozen_norm_is_torchs_in_eval_mode(kind: type[nn.Module], shape: tuple[int, ...], affine: bool) -> None:
    norm = kind(3, affine=affine).double()
    for _ in range(3):
        norm(2 * numbers(*shape) + 1)  # statistics unlike the first ones
    norm.eval()
    x = numbers(*shape, seed=1)
    torch.testing.assert_close(FrozenBatchNorm(norm)(x), norm(x))

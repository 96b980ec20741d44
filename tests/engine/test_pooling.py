"""The twin of average pooling against torch's own, mapped and differentiated in every way the engine does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

from common.nets import numbers
from seepage.engine.pooling import LaneAvgPool2d
from seepage.engine.twins import purify

# Forward mode imports torch's decompositions, which are still written in TorchScript.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
POOLS = [nn.AvgPool2d(2), nn.AvgPool2d((3, 2)), nn.AvgPool2d(2, stride=2, padding=0), nn.AvgPool2d(5)]


@pytest.fixture(autouse=True, params=[False, True], ids=["product", "pair"])
def as_pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of matrices as on a CPU, and the pair of functions as on a GPU."""
    monkeypatch.setattr("seepage.engine.pooling._as_pair", lambda _: request.param)


@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 10, 10), (3, 7, 11)], ids=str)
def test_all_derivatives_are_those_of_torch(pool: nn.AvgPool2d, shape: tuple[int, ...]) -> None:
    twin = LaneAvgPool2d(pool)
    x, along = numbers(4, *shape), numbers(4, *shape, seed=1)

    def of(layer: nn.Module) -> list[Tensor]:
        def curved(x: Tensor) -> Tensor:
            return (layer(x.sin()) ** 3).sum()

        def forward_over_reverse(x: Tensor, along: Tensor) -> Tensor:
            return jvp(grad(curved), (x,), (along,))[1]

        def reverse_over_reverse(x: Tensor, along: Tensor) -> Tensor:
            return grad(lambda x: (grad(curved)(x) * along).sum())(x)

        outside = x.clone().requires_grad_()
        (doubled,) = torch.autograd.grad((vmap(grad(curved))(outside) ** 2).sum(), outside)
        mapped = [vmap(f)(x, along) for f in (forward_over_reverse, reverse_over_reverse)]
        return [vmap(layer)(x), vmap(grad(curved))(x), *mapped, forward_over_reverse(x[0], along[0]), doubled]

    for ours, torchs in zip(of(twin), of(pool), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "pool", [nn.AvgPool2d(3, stride=2), nn.AvgPool2d(2, padding=1), nn.AvgPool2d(2, ceil_mode=True)], ids=str
)
def test_windows_that_overlap_or_reach_over_the_border_stay_with_torch(pool: nn.AvgPool2d) -> None:
    assert type(purify(nn.Sequential(pool), train=False)[0]) is nn.AvgPool2d


def test_a_module_gets_the_twin() -> None:
    assert type(purify(nn.Sequential(nn.AvgPool2d(2)), train=True)[0]) is LaneAvgPool2d

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import truncnorm
from torch import nn

from seepage.models import build
from seepage.models.initialisation import RULES, initialise
from seepage.models.resnet import ResNet
from seepage.spec import DataSpec
from seepage.streams import Stream

ROOT = Stream.from_seed(0)
CIFAR = DataSpec((3, 32, 32), classes=10)


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in module.named_parameters()}


def test_zhu_draws_everything_between_minus_and_plus_a_half() -> None:
    together = torch.cat([p.flatten() for p in weights(build("lenet-zhu", CIFAR, ROOT)).values()])
    assert together.abs().max() <= 0.5
    assert abs(together.mean()) < 0.01
    assert abs(together.std() - 1 / math.sqrt(12)) < 0.01


def test_flax_draws_truncated_weights_of_variance_one_over_fan_in() -> None:
    params = weights(build("cnn-cifar", DataSpec((3, 32, 32), classes=100), ROOT))
    for layer, fan_in in (("conv2", 64 * 9), ("linear1", 8192), ("linear2", 200)):
        weight = params[f"{layer}.weight"]
        assert weight.std() * math.sqrt(fan_in) == pytest.approx(1, abs=0.02)
        # Cut off at two deviations of the normal before it was cut.
        assert weight.abs().max() * math.sqrt(fan_in) <= 2 / 0.87962566 + 1e-5
        assert weight.abs().max() * math.sqrt(fan_in) > 2.2
        assert not params[f"{layer}.bias"].any()


def test_a_seed_is_the_same_truncated_network_with_every_torch() -> None:
    def drawn() -> torch.Generator:
        return torch.Generator().manual_seed(0)

    layer = nn.Linear(4, 3)
    with torch.no_grad():
        RULES["lecun-normal"](layer, drawn())
    # torch's way up to 2.11, by which the tables were made; scipy has the quantiles.
    uniform = torch.rand(3, 4, generator=drawn(), dtype=torch.float32).double()
    expected = truncnorm.ppf(uniform.numpy(), -2, 2, scale=0.5 / 0.87962566103423978)
    torch.testing.assert_close(layer.weight.detach().double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-5)


def test_torch_default_has_the_bounds_of_torch() -> None:
    params = weights(build("convnet", CIFAR, ROOT, width=16))
    theirs = nn.Conv2d(16, 32, 3)
    for name in ("weight", "bias"):
        ours = params[f"conv1.{name}"]
        assert ours.shape == getattr(theirs, name).shape
        assert ours.abs().max() <= 1 / 12  # fan-in of 16 × 9
        assert ours.abs().max() > 0.8 / 12
    assert params["conv1.weight"].std() == pytest.approx(theirs.weight.std().item(), rel=0.05)


def test_resnets_draw_convolutions_by_fan_out() -> None:
    params = weights(build("resnet20-4", CIFAR, ROOT))
    weight = params["stages.2.2.branch.3.weight"]  # 256 → 256
    assert weight.std() == pytest.approx(math.sqrt(2 / (256 * 9)), rel=0.02)
    assert params["linear.weight"].abs().max() <= 1 / 16


def test_normalisation_starts_as_the_identity() -> None:
    module = build("convnet", CIFAR, ROOT, width=4)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            assert layer.num_batches_tracked is not None
            assert not layer.running_mean.any()
            assert bool((layer.running_var == 1).all())
            assert bool((layer.weight == 1).all())
            assert not layer.bias.any()
            assert layer.num_batches_tracked == 0


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_fits_every_layer(rule: str) -> None:
    one = build("resnet18", CIFAR, ROOT, width=4, norm="none", init=rule)
    assert isinstance(one, ResNet)
    assert all(p.isfinite().all() for p in one.parameters())
    assert one.linear.weight.std() > 0


@pytest.mark.parametrize("rule", RULES)
def test_the_generator_is_all_that_is_drawn_from(rule: str) -> None:
    state = torch.random.get_rng_state()
    one, two = (
        initialise(nn.Linear(5, 5, device="meta").to_empty(device="cpu"), RULES[rule], ROOT.generator())
        for _ in range(2)
    )
    assert torch.equal(one.weight, two.weight)
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_layer_without_a_rule_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected layers of convolution, linear, .* got .*GRU"):
        initialise(nn.Sequential(nn.GRU(2, 2)), RULES["torch"], ROOT.generator())

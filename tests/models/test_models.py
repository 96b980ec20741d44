from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from seepage.models import MODELS, build, options
from seepage.models.resnet import RESNETS, ResNet
from seepage.spec import DataSpec
from seepage.streams import Stream

ROOT = Stream.from_seed(0)
MNIST = DataSpec((1, 28, 28), classes=62)
CIFAR = DataSpec((3, 32, 32), classes=10)
CIFAR100 = DataSpec((3, 32, 32), classes=100)
IMAGENET = DataSpec((3, 224, 224), classes=1000)
YUE = DataSpec((3, 128, 128), classes=1000)
TABLE = DataSpec((108,), classes=2)
# Narrow where a network can be, so that every test is quick.
NARROW: dict[str, dict[str, object]] = {
    "convnet": {"width": 4},
    "vgg7": {"width": 4, "hidden": 8},
    "mlp": {"hidden": (8,)},
    **{name: {"width": 4} for name in RESNETS},
}

OF_NUMBERS = [name for name in MODELS if not name.startswith("text-")]  # the others: `test_text.py`


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def conv(inside: int, outside: int, kernel: int) -> int:
    return inside * outside * kernel**2 + outside


@pytest.mark.parametrize(
    ("name", "spec", "given", "expected"),
    [
        ("linear", TABLE, {}, 108 * 2 + 2),
        ("linear", TABLE, {"bias": False}, 108 * 2),
        ("mlp", TABLE, {}, 108 * 256 + 2 * 256 * 256 + 256 * 2 + 3 * 256 + 2),
        ("mlp", CIFAR100, {"hidden": [32], "bias": False}, 3072 * 32 + 32 * 100),
        ("mlp", TABLE, {"hidden": (8,), "batch_norm": True}, 108 * 8 + 8 + 2 * 8 + 8 * 2 + 2),
        ("mlp", TABLE, {"hidden": ()}, 108 * 2 + 2),
        ("lenet-zhu", CIFAR, {}, conv(3, 12, 5) + 2 * conv(12, 12, 5) + 768 * 10 + 10),
        ("lenet-yue", YUE, {}, conv(3, 32, 5) + conv(32, 64, 5) + 65_536 * 512 + 512 * 1000),
        ("cnn-femnist", MNIST, {}, 320 + 18_496 + 3136 * 100 + 100 + 100 * 62 + 62),
        ("cnn-cifar", CIFAR100, {}, conv(3, 64, 3) + conv(64, 128, 3) + 8192 * 200 + 200 + 200 * 100 + 100),
        (
            "convnet",
            CIFAR,
            {},
            # convolutions, two per normalised channel, the linear layer
            conv(3, 64, 3) + conv(64, 128, 3) + conv(128, 128, 3) + conv(128, 256, 3) + 4 * conv(256, 256, 3)
            + 2 * (64 + 128 + 128 + 5 * 256) + 2304 * 10 + 10,
        ),
        (
            "convnet",
            CIFAR,
            {"width": 8, "batch_norm": False},
            conv(3, 8, 3) + conv(8, 16, 3) + conv(16, 16, 3) + conv(16, 32, 3) + 4 * conv(32, 32, 3) + 288 * 10 + 10,
        ),
        (
            "vgg7",
            YUE,
            {},
            conv(3, 128, 3) + conv(128, 128, 3) + conv(128, 256, 3) + conv(256, 256, 3) + conv(256, 512, 3)
            + conv(512, 512, 3) + 131_072 * 1024 + 1024 + 1024 * 1000 + 1000,
        ),
        ("resnet18", IMAGENET, {"stem": "large"}, 11_689_512),  # torchvision's own counts
        ("resnet34", IMAGENET, {"stem": "large"}, 21_797_672),
        ("resnet50", IMAGENET, {"stem": "large"}, 25_557_032),
        ("resnet18", IMAGENET, {"stem": "large", "norm": "group"}, 11_689_512),
        ("resnet18", CIFAR, {}, 11_173_962),  # the usual count of the variant for CIFAR
        ("resnet50", CIFAR, {}, 23_520_842),
    ],
)  # fmt: skip
def test_parameter_counts(name: str, spec: DataSpec, given: dict[str, object], expected: int) -> None:
    with torch.device("meta"):  # counting needs no memory
        module = MODELS[name].make(spec, **given)
    assert count(module) == expected


def test_resnet20_4_by_hand() -> None:
    def stage(inside: int, width: int) -> int:
        blocks = inside * width * 9 + 5 * width * width * 9 + 6 * 2 * width
        return blocks + (inside * width + 2 * width if inside != width else 0)

    expected = 3 * 64 * 9 + 2 * 64 + stage(64, 64) + stage(64, 128) + stage(128, 256) + 256 * 10 + 10
    assert count(build("resnet20-4", CIFAR, ROOT)) == expected


def test_resnet32_10_is_ten_times_as_wide_as_sixteen() -> None:
    with torch.device("meta"):
        module = MODELS["resnet32-10"].make(CIFAR)
    assert isinstance(module, ResNet)
    assert module.conv.out_channels == 160
    assert module.linear.in_features == 640
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(layers) + 1 == 32  # and the linear layer


def test_yue_resnet18() -> None:
    given = {"norm": "none", "stem": "large", "stem_pool": False, "pool": 8}
    with torch.device("meta"):
        module = MODELS["resnet18"].make(YUE, **given)
        assert isinstance(module, ResNet)
        assert module(torch.empty(2, 3, 128, 128)).shape == (2, 1000)
    assert module.linear.in_features == 32_768
    assert not any(isinstance(m, nn.BatchNorm2d) for m in module.modules())


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("spec", [CIFAR, MNIST, DataSpec((3, 40, 36), targets=2)], ids=["cifar", "mnist", "regression"])
def test_forward_shapes(name: str, spec: DataSpec) -> None:
    module = build(name, spec, ROOT, **NARROW.get(name, {}))
    out = module(ROOT.normal(2, *spec.shape))
    assert out.shape == (2, spec.classes or spec.targets)
    assert bool(out.isfinite().all())
    assert module.training


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_weights_depend_on_the_stream_alone(name: str) -> None:
    given = NARROW.get(name, {})
    state = torch.random.get_rng_state()
    one = build(name, CIFAR, ROOT, **given).state_dict()
    assert torch.equal(state, torch.random.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.rand(3)
        same = build(name, CIFAR, ROOT, **given).state_dict()
    other = build(name, CIFAR, ROOT / "other", **given).state_dict()
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_registered_defaults_are_valid_options(name: str) -> None:
    module = build(name, CIFAR, ROOT, **{**options(name), **NARROW.get(name, {})})
    assert not any(tensor.is_meta for tensor in module.state_dict().values())


@pytest.mark.parametrize("name", ["mlp", "linear"])
def test_tables(name: str) -> None:
    assert build(name, TABLE, ROOT)(torch.zeros(3, 108)).shape == (3, 2)
    assert build(name, DataSpec((43,)), ROOT)(torch.zeros(3, 43)).shape == (3, 1)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("padding", ["zeros", "circular"])
@pytest.mark.parametrize("stem", ["small", "large"])
def test_resnet_options(norm: str, padding: str, stem: str) -> None:
    for name in ("resnet20-4", "resnet50"):
        module = build(name, CIFAR, ROOT, norm=norm, padding=padding, stem=stem, width=4)
        assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_circular_padding_makes_shifts_invisible() -> None:
    # Strides of 2 twice: shifting by 4 pixels shifts the last map by one, which average-pooling forgets.
    module = build("resnet20-4", CIFAR, ROOT, padding="circular", width=4).eval()
    x = (ROOT / "x").normal(1, 3, 32, 32)
    torch.testing.assert_close(module(x), module(x.roll((4, 8), (2, 3))), atol=1e-5, rtol=1e-4)


def test_batch_is_one_by_one_in_evaluation_mode() -> None:
    module = build("resnet18", CIFAR, ROOT, width=4).eval()
    x = (ROOT / "x").normal(3, 3, 32, 32)
    torch.testing.assert_close(module(x), torch.cat([module(one[None]) for one in x]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_second_derivatives_batch_over_clients(name: str) -> None:
    module = build(name, MNIST, ROOT, **NARROW.get(name, {})).double().eval()
    params: dict[str, torch.Tensor] = dict(module.named_parameters())
    buffers = dict(module.named_buffers())

    def steepness(x: torch.Tensor) -> torch.Tensor:
        def loss(params: dict[str, torch.Tensor]) -> torch.Tensor:
            out: torch.Tensor = functional_call(module, {**params, **buffers}, (x,))
            return out.logsumexp(-1).mean()

        return torch.stack([(g**2).sum() for g in grad(loss)(params).values()]).sum()

    x = (ROOT / "x").normal(2, 1, *MNIST.shape, dtype=torch.float64)  # two clients with one image each
    torch.testing.assert_close(vmap(grad(steepness))(x)[1], grad(steepness)(x[1]))


def test_unknown_names_options_and_values_list_the_choices() -> None:
    with pytest.raises(ValueError, match=r"expected `name` to be one of \['cnn-cifar', .*got 'resnet19'"):
        build("resnet19", CIFAR, ROOT)
    with pytest.raises(ValueError, match=r"expected options of 'convnet' among \['activation', .*got \['witdh'\]"):
        build("convnet", CIFAR, ROOT, witdh=3)
    with pytest.raises(ValueError, match=r"expected `activation` to be one of \['elu', .*got 'swish'"):
        build("mlp", CIFAR, ROOT, activation="swish")
    with pytest.raises(ValueError, match=r"expected `init` to be one of \['kaiming', .*got 'zeros'"):
        build("mlp", CIFAR, ROOT, init="zeros")
    for option in ("norm", "padding", "stem"):
        with pytest.raises(ValueError, match=rf"expected `{option}` to be one of \[.*\], got 'odd'"):
            build("resnet18", CIFAR, ROOT, **{option: "odd"})


@pytest.mark.parametrize(
    ("name", "given"),
    [("mlp", {"hidden": (0,)}), ("mlp", {"hidden": 3}), ("convnet", {"width": 0}), ("vgg7", {"hidden": 0}),
     ("resnet18", {"width": 0}), ("resnet18", {"pool": 0})],
)  # fmt: skip
def test_sizes_must_be_positive(name: str, given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        build(name, CIFAR, ROOT, **given)


@pytest.mark.parametrize("name", ["convnet", "vgg7", "cnn-cifar"])
def test_too_small_images_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected larger images for this network, got shape \(1, 2, 2\)"):
        build(name, DataSpec((1, 2, 2), classes=2), ROOT, **NARROW.get(name, {}))


@pytest.mark.parametrize("name", sorted(set(OF_NUMBERS) - {"mlp", "linear"}))
def test_convolutions_refuse_tables(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected images .*got shape \(108,\); use 'mlp' or 'linear'"):
        build(name, TABLE, ROOT)


def test_a_network_made_directly_is_real() -> None:
    module = MODELS["lenet-zhu"].make(CIFAR)
    assert module(torch.zeros(1, 3, 32, 32)).shape == (1, 10)

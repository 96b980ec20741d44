"""BigGAN-deep from a state dict: hand-computed values, an obvious twin of its attention, and names of public files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from seepage.generate import BigGAN, load_generator
from seepage.stored import WeightsNotFound

LATENT, CLASSES = 2, 3


def normalisation(name: str, width: int, conditional: bool = True) -> dict[str, torch.Tensor]:
    tensors = {f"{name}.running_means": torch.zeros(5, width), f"{name}.running_vars": torch.ones(5, width) - 1e-4}
    if not conditional:
        return tensors | {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}
    return (
        tensors
        | spectral(f"{name}.scale", torch.zeros(width, 2 * LATENT))
        | spectral(f"{name}.offset", torch.zeros(width, 2 * LATENT))
    )


def spectral(name: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """A weight that is divided by one: u and v are such that uᵀWv = 1, for which something must not be zero."""
    weight = weight.clone()
    flat = weight.view(len(weight), -1)
    if not flat.any():
        flat[0, 0] = 1e-30
    row, column = divmod(int(flat.abs().argmax()), flat.shape[1])
    u, v = torch.zeros(len(flat)), torch.zeros(flat.shape[1])
    u[row], v[column] = 1, 1 / flat[row, column]
    tensors = {f"{name}.weight_orig": weight, f"{name}.weight_u": u, f"{name}.weight_v": v}
    return tensors if bias is None else tensors | {f"{name}.bias": bias}


def block(name: str, before: int, after: int) -> dict[str, torch.Tensor]:
    middle = before // 4
    tensors: dict[str, torch.Tensor] = {}
    for i, (a, b, k) in enumerate([(before, middle, 1), (middle, middle, 3), (middle, middle, 3), (middle, after, 1)]):
        tensors |= normalisation(f"{name}.bn_{i}", a)
        tensors |= spectral(f"{name}.conv_{i}", torch.zeros(b, a, k, k), torch.zeros(b))
    return tensors


def state(width: int = 8) -> dict[str, torch.Tensor]:
    """A plain block, attention, and a block that doubles the size and halves the channels, all without effect."""
    tensors = {"embeddings.weight": torch.arange(6.0).reshape(LATENT, CLASSES)}
    tensors |= spectral("generator.gen_z", torch.zeros(16 * width, 2 * LATENT), torch.zeros(16 * width))
    tensors |= block("generator.layers.0", width, width)
    for part, (a, b) in {"theta": (8, 1), "phi": (8, 1), "g": (8, 4), "o_conv": (4, 8)}.items():
        tensors |= spectral(f"generator.layers.1.snconv1x1_{part}", torch.zeros(b, a, 1, 1))
    tensors |= {"generator.layers.1.gamma": torch.ones(1)}
    tensors |= block("generator.layers.2", width, width // 2)
    tensors |= normalisation("generator.bn", width // 2, conditional=False)
    return tensors | spectral("generator.conv_to_rgb", torch.zeros(4, width // 2, 3, 3), torch.zeros(4))


def test_its_form_is_read_off_the_tensors() -> None:
    net = BigGAN(state())
    assert (net.latent, net.classes, net.side) == (LATENT, CLASSES, 8)
    assert BigGAN.recognises(state())
    assert not BigGAN.recognises({"begin.weight": torch.zeros(1)})


def test_the_first_map_keeps_channels_last_and_passes_blocks_that_do_nothing() -> None:
    tensors = state()
    # Place (1, 2) of the 4 × 4 map, channel 1; the map is what the embedding's first number is, times two.
    weight = torch.zeros(16 * 8, 2 * LATENT)
    weight[(1 * 4 + 2) * 8 + 1, LATENT] = 2.0
    tensors |= {"generator.gen_z.weight_orig": weight, "generator.gen_z.weight_v": torch.tensor([0, 0, 1.0, 0])}
    tensors["generator.gen_z.weight_u"] = torch.nn.functional.one_hot(torch.tensor(49), 128).float()  # σ = 2
    red = torch.zeros(4, 4, 3, 3)
    red[0, 1, 1, 1] = 0.5
    tensors |= spectral("generator.conv_to_rgb", red, torch.tensor([0.0, 0.25, 0.0, 0.0]))
    tensors["generator.conv_to_rgb.weight_u"] *= 0.5  # σ = ½: the weight becomes one
    made = BigGAN(tensors)(torch.zeros(1, LATENT), torch.tensor([2]))
    expected = torch.zeros(1, 3, 8, 8)
    expected[0, 0, 2:4, 4:6] = 2.0  # the embedding of class 2 begins with 2, and W / σ is one
    expected[0, 1] = 0.25
    torch.testing.assert_close(made, (1 + expected.tanh()) / 2)


def test_a_block_normalises_scales_and_shifts_by_what_it_is_told() -> None:
    tensors = state()
    tensors["generator.gen_z.bias"] = torch.full((128,), 3.0)
    # The last normalisation: (3 − 1) / √4 · 5 − 1 = 4, and its first channel becomes red.
    tensors["generator.bn.running_means"][-1] = 1.0
    tensors["generator.bn.running_vars"][-1] = 4.0 - 1e-4
    tensors |= {"generator.bn.weight": torch.full((4,), 5.0), "generator.bn.bias": torch.full((4,), -1.0)}
    # The first block: (3 − 2) · (1 + 0.5 z₀) + 1 z₁, through identities, and 0.125 of its sum over two middle channels.
    name = "generator.layers.0"
    tensors[f"{name}.bn_0.running_means"][-1] = 2.0
    first, second = torch.zeros(8, 4), torch.zeros(8, 4)
    first[:, 0], second[:, 1] = 0.5, 1.0
    tensors |= spectral(f"{name}.bn_0.scale", first) | spectral(f"{name}.bn_0.offset", second)
    into, through, out = torch.zeros(2, 8, 1, 1), torch.zeros(2, 2, 3, 3), torch.zeros(8, 2, 1, 1)
    into[0, 0] = into[1, 1] = through[0, 0, 1, 1] = through[1, 1, 1, 1] = 1.0
    out[:] = 0.125
    for i, weight in enumerate((into, through, through, out)):
        tensors |= spectral(f"{name}.conv_{i}", weight)
    red = torch.zeros(4, 4, 3, 3)
    red[0, 0, 1, 1] = 1.0
    tensors |= spectral("generator.conv_to_rgb", red)
    z = torch.tensor([[2.0, 0.5]])
    added = 2 * 0.125 * ((3 - 2) * (1 + 0.5 * 2.0) + 0.5)
    value = torch.tensor((3 + added - 1) / 2 * 5 - 1)
    made = BigGAN(tensors)(z, torch.tensor([0]))
    torch.testing.assert_close(made[0, 0], ((1 + value.tanh()) / 2).expand(8, 8))


def test_attention_is_a_weighted_mean_of_the_strongest_of_four_neighbours() -> None:
    tensors = state()
    draw = torch.Generator().manual_seed(0)
    weights = {}
    for part, shape in {"theta": (1, 8), "phi": (1, 8), "g": (4, 8), "o_conv": (8, 4)}.items():
        weights[part] = torch.randn(*shape, 1, 1, generator=draw)
        tensors |= spectral(f"generator.layers.1.snconv1x1_{part}", weights[part])
    tensors["generator.layers.1.gamma"] = torch.tensor([0.7])
    x = torch.randn(1, 8, 4, 4, generator=draw)
    got = BigGAN(tensors)._attention("generator.layers.1", x)

    asked, offered, held = (weights[part][:, :, 0, 0] @ x[0].reshape(8, 16) for part in ("theta", "phi", "g"))

    def strongest(values: torch.Tensor) -> torch.Tensor:  # (c, 16) to (c, 4)
        grid = values.reshape(-1, 4, 4)
        corners = [grid[:, i : i + 2, j : j + 2].amax((1, 2)) for i in (0, 2) for j in (0, 2)]
        return torch.stack(corners, 1)

    offered, held = strongest(offered), strongest(held)
    expected = x.clone()
    for place in range(16):
        share = (asked[:, place] @ offered).exp()
        share = share / share.sum()
        seen = sum(share[k] * held[:, k] for k in range(4))
        expected[0, :, place // 4, place % 4] += 0.7 * weights["o_conv"][:, :, 0, 0] @ seen
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("blocks", "side"), [(10, 128), (12, 256), (14, 512)])
def test_names_of_the_public_files_are_understood(blocks: int, side: int) -> None:
    """`biggan-deep-128`, `-256` and `-512` have attention before their ninth block, and as many blocks as here."""
    tensors = state()
    for i in range(blocks + 1):
        if i != 8:
            tensors |= block(f"generator.layers.{i}", 8, 4 if i == blocks else 8)
    parts = [f"snconv1x1_{p}.weight_{k}" for p in ("theta", "phi", "g", "o_conv") for k in ("orig", "u", "v")]
    for part in (*parts, "gamma"):
        tensors[f"generator.layers.8.{part}"] = tensors[f"generator.layers.1.{part}"]
    tensors = {k: t for k, t in tensors.items() if not k.startswith("generator.layers.1.snconv")}
    del tensors["generator.layers.1.gamma"]
    net = BigGAN(tensors)
    assert net.side == side
    assert net._layers[8] == "generator.layers.8"
    assert len(net._blocks) == blocks


def test_it_loads_from_both_kinds_of_files_and_never_runs_what_is_in_them(tmp_path: Path) -> None:
    tensors = {k: t.contiguous().clone() for k, t in state().items()}
    tensors["generator.gen_z.bias"].normal_(generator=torch.Generator().manual_seed(0))
    save_file(tensors, tmp_path / "gan.safetensors")
    torch.save(tensors, tmp_path / "gan.pth")
    z, y = torch.ones(2, LATENT), torch.tensor([0, 2])
    nets = [load_generator(str(tmp_path / name), z) for name in ("gan.safetensors", "gan.pth")]
    assert nets[0](z, y).equal(nets[1](z, y))
    torch.save({"weights": Path("anything")}, tmp_path / "code.pth")
    with pytest.raises(ValueError, match="tensors alone"):
        load_generator(str(tmp_path / "code.pth"), z)
    with pytest.raises(WeightsNotFound, match=r"nowhere\.bin"):
        load_generator("nowhere.bin", z)
    del tensors["generator.bn.weight"]
    save_file(tensors, tmp_path / "broken.safetensors")
    with pytest.raises(ValueError, match=r"generator\.bn\.weight"):
        load_generator(str(tmp_path / "broken.safetensors"), z)


def test_lanes_and_slopes() -> None:
    tensors = state()
    tensors["generator.gen_z.weight_orig"].normal_(generator=torch.Generator().manual_seed(0))
    tensors |= spectral("generator.conv_to_rgb", torch.ones(4, 4, 3, 3))
    net = BigGAN(tensors).to(torch.zeros((), dtype=torch.float64))
    z = torch.randn(3, 2, LATENT, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[0, 1], [2, 2], [1, 0]])
    together = torch.vmap(net)(z, y)
    torch.testing.assert_close(together, torch.stack([net(*lane) for lane in zip(z, y, strict=True)]))
    assert torch.autograd.grad(together.sum(), z)[0].any()


def test_it_agrees_with_the_implementation_that_public_weights_come_with() -> None:
    reason = "install pytorch_pretrained_biggan to compare with it"
    public = pytest.importorskip("pytorch_pretrained_biggan", reason=reason)
    draw = torch.Generator().manual_seed(0)
    config = public.BigGANConfig(z_dim=16, class_embed_dim=16, channel_width=8, num_classes=7, n_stats=5)
    theirs = public.BigGAN(config).double()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.3, generator=draw)
        for name, buffer in theirs.named_buffers():
            if "running_means" in name:
                buffer.normal_(generator=draw)
            if "running_vars" in name:
                buffer.uniform_(0.5, 2, generator=draw)
        z, y = torch.randn(3, 16, generator=draw, dtype=torch.float64), torch.tensor([1, 5, 5])
        kinds = torch.nn.functional.one_hot(y, 7).double()
        theirs.train()(z, kinds, 1.0)  # finds the vectors of the spectral norms
        expected = theirs.eval()(z, kinds, 1.0)
    torch.testing.assert_close(BigGAN(theirs.state_dict())(z, y), (1 + expected) / 2, rtol=0, atol=1e-12)

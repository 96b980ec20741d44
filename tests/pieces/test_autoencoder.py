"""The learnt representation: how many numbers it has, that it batches, and what it does with odd sizes and files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from seepage.pieces.autoencoder import AUTOENCODERS, Autoencoder, LatentSize, load_autoencoder, save_autoencoder
from seepage.pieces.representations import Bicubic, Learnt, Representation
from seepage.stored import WeightsNotFound

LIKE = torch.zeros((), dtype=torch.float64)


def drawn(size: LatentSize, seed: int = 0) -> Autoencoder:
    """With weights that do something everywhere."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.random.manual_seed(seed)
        net = Autoencoder(size)
        for parameter in net.out[-2].parameters():
            parameter.copy_(0.05 * torch.randn(parameter.shape))
    return net.double().eval()


def images(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("size", "numbers"), [("S", 512), ("M", 2048), ("L", 8192)])
def test_it_has_as_many_numbers_as_those_of_the_paper_and_a_small_decoder(size: LatentSize, numbers: int) -> None:
    net = drawn(size)
    assert torch.Size(Learnt(net).shape((3, 128, 128))).numel() == numbers
    decoder = sum(p.numel() for half in (net.out, net.plain) for p in half.parameters())
    assert 2 * decoder < 2_000_000  # bytes in half precision


@pytest.mark.parametrize("size", ["S", "M", "L"])
def test_decoding_batches_over_lanes_and_has_the_right_slope(size: LatentSize) -> None:
    small = Learnt(drawn(size))
    decode = small.decoder((3, 32, 32), LIKE)
    z = images(2, 3, *small.shape((3, 32, 32))).requires_grad_()
    batched = torch.vmap(decode)(z)
    torch.testing.assert_close(batched, torch.stack([decode(lane) for lane in z]))
    torch.testing.assert_close(batched, decode(z))
    direction = images(*z.shape) - 0.5
    (slope,) = torch.autograd.grad(batched.square().sum(), z)
    step = 1e-5
    ends = [decode(z + sign * step * direction).square().sum() for sign in (1, -1)]
    torch.testing.assert_close((slope * direction).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(3, 32, 48), (1, 28, 28), (3, 30, 17)])
def test_any_size_comes_back_and_codes_do_not_see_each_other(shape: tuple[int, ...]) -> None:
    small = Learnt(drawn("M"))
    x = images(2, *shape)
    z = small.encode(x)
    assert tuple(z.shape[1:]) == small.shape(shape)
    back = small.decoder(shape, LIKE)(z)
    assert back.shape == x.shape
    torch.testing.assert_close(back[1:], small.decoder(shape, LIKE)(small.encode(x[1:])))


def test_what_is_no_image_represents_itself_and_odd_channels_are_refused() -> None:
    small = Learnt(drawn("L"))
    row = images(2, 7)
    assert small.shape((7,)) == (7,)
    assert small.decoder((7,), LIKE)(row) is row
    with pytest.raises(ValueError, match="1 or 3 channels, got 2"):
        small.shape((2, 8, 8))


@pytest.mark.parametrize("small", [Bicubic(4), Bicubic(1), Learnt(drawn("L"))], ids=["bicubic", "identity", "learnt"])
def test_every_representation_decodes_what_it_encodes_to_the_shape_of_an_image(small: Representation) -> None:
    z = images(2, 5, *small.shape((3, 24, 20)))
    assert small.decoder((3, 24, 20), z)(z).shape == (2, 5, 3, 24, 20)


def test_weights_come_back_from_a_file_in_half_precision(tmp_path: Path) -> None:
    net, file = drawn("M"), tmp_path / "mine.safetensors"
    save_autoencoder(net, file, {"source": "a test"})
    assert {t.dtype for t in load_file(file).values() if t.is_floating_point()} == {torch.float16}
    again = load_autoencoder(str(file), LIKE)
    z = images(2, 8, 4, 4)
    torch.testing.assert_close(again.decode(z), net.decode(z), rtol=0, atol=2e-2)
    assert not any(p.requires_grad for p in again.parameters())


def test_other_files_and_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsNotFound, match=r"`autoencoder`.*'none'.*got 'unheard-of'.*seepage train autoencoder"):
        AUTOENCODERS.check("unheard-of")
    with pytest.raises(WeightsNotFound, match=r"nowhere\.safetensors"):
        load_autoencoder("nowhere.safetensors", LIKE)
    file = tmp_path / "other.safetensors"
    for metadata in ({}, {"size": "XL"}, {"size": "S"}):
        save_file({"w": torch.zeros(1)}, file, metadata=metadata)
        with pytest.raises(ValueError, match="made by `seepage train autoencoder`"):
            load_autoencoder(str(file), LIKE)
    with pytest.raises(ValueError, match=r"expected a latent size of \['S', 'M', 'L'\], got 'XL'"):
        Autoencoder("XL")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", AUTOENCODERS.names())
def test_what_is_shipped_gives_images_back(name: str) -> None:
    small = Learnt.named(name, LIKE)
    coarse = images(1, 3, 2, 2)
    smooth = torch.nn.functional.interpolate(coarse, (64, 64), mode="bilinear")
    back = small.decoder((3, 64, 64), LIKE)(small.encode(smooth))
    assert float((back - smooth).square().mean()) < float((smooth - smooth.mean()).square().mean())

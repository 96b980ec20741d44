"""The small generator: what it makes, that it batches, and how it is stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from seepage.generate import PictureDecoder, PictureEncoder, check_generator, load_generator, save_generator
from seepage.stored import WeightsNotFound

LIKE = torch.zeros(())


def drawn(classes: int = 5, side: int = 16, latent: int = 8) -> PictureDecoder:
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        return PictureDecoder(classes, side, latent).requires_grad_(False)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_images_depend_on_the_numbers_and_on_the_class_and_lie_in_range() -> None:
    net, z = drawn(), numbers(2, 8)
    made = net(z, torch.tensor([1, 4]))
    assert made.shape == (2, 3, 16, 16)
    assert 0 <= float(made.min()) < float(made.max()) <= 1
    torch.testing.assert_close(net(z[:1], torch.tensor([1])), made[:1])
    assert not torch.allclose(net(z, torch.tensor([2, 4]))[0], made[0])
    assert not torch.allclose(net(-z, torch.tensor([1, 4]))[0], made[0])


def test_lanes_and_slopes() -> None:
    net = drawn().double()
    z, y = numbers(3, 2, 8).double().requires_grad_(), torch.tensor([[0, 1], [2, 2], [1, 0]])
    together = torch.vmap(net)(z, y)
    torch.testing.assert_close(together, torch.stack([net(*lane) for lane in zip(z, y, strict=True)]))
    assert torch.autograd.gradcheck(lambda z: net(z, y[0]).sum((2, 3)), z[0])


def test_the_one_for_imagenet_is_small() -> None:
    assert 2 * sum(p.numel() for p in PictureDecoder(1000, 128).parameters()) < 5_000_000


def test_it_comes_back_from_a_file(tmp_path: Path) -> None:
    net, file = drawn(), tmp_path / "mine.safetensors"
    save_generator(net, file, {"source": "a test"})
    again = load_generator(str(file), LIKE)
    assert (again.latent, again.classes, again.side) == (8, 5, 16)
    z, y = numbers(2, 8), torch.tensor([0, 3])
    torch.testing.assert_close(again(z, y), net(z, y), rtol=0, atol=5e-3)
    assert load_generator(str(file), LIKE.double())(z.double(), y).dtype == torch.float64


def test_other_files_and_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsNotFound, match=r"`generator`.*got 'unheard-of'.*seepage train generator"):
        check_generator("unheard-of")
    check_generator("later.safetensors")
    check_generator("later.pth")
    with pytest.raises(WeightsNotFound, match=r"later\.safetensors"):
        load_generator("later.safetensors", LIKE)
    file = tmp_path / "other.safetensors"
    save_file({"w": torch.zeros(1)}, file, metadata={"classes": "3", "side": "16", "latent": "8"})
    with pytest.raises(ValueError, match="made by `seepage train generator`"):
        load_generator(str(file), LIKE)


def test_sides_are_powers_of_two() -> None:
    assert PictureEncoder(32, 4)(torch.rand(2, 3, 32, 32))[0].shape == (2, 4)
    for side in (4, 20, 48):
        with pytest.raises(ValueError, match=f"got {side}"):
            PictureDecoder(2, side)

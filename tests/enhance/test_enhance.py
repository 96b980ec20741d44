"""The enhancer: what it is before training, what it is stored as, and the blur that it learns from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from seepage.enhance import (
    Degradation,
    Enhancer,
    check_enhancer,
    degrade,
    enhance,
    load_enhancer,
    save_enhancer,
    shipped,
)
from seepage.pieces.representations import Bicubic
from seepage.stored import WeightsNotFound


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def drawn(seed: int = 0) -> Enhancer:
    """With weights that do something."""
    net = Enhancer()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.random.manual_seed(seed)
        for parameter in net.parameters():
            parameter.copy_(0.05 * torch.randn(parameter.shape))
    return net


@pytest.mark.parametrize("shape", [(2, 3, 16, 16), (1, 1, 28, 28), (3, 3, 10, 13)])
def test_untrained_it_changes_nothing(shape: tuple[int, ...]) -> None:
    x = images(*shape)
    torch.testing.assert_close(enhance(Enhancer(), x), x)


def test_values_stay_in_range_and_images_do_not_see_each_other() -> None:
    net, x = drawn(), images(3, 3, 16, 24, dtype=torch.float64)
    better = enhance(net, x)
    assert better.dtype == x.dtype
    assert not torch.allclose(better, x, atol=1e-3)
    assert 0 <= float(better.min()) <= float(better.max()) <= 1
    torch.testing.assert_close(better[1:2], enhance(net, x[1:2]), rtol=1e-4, atol=1e-5)


def test_two_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or 3 channels, got 2"):
        enhance(Enhancer(), images(1, 2, 8, 8))


def test_weights_come_back_from_a_small_file(tmp_path: Path) -> None:
    net, file = drawn(), tmp_path / "mine.safetensors"
    save_enhancer(net, file, {"source": "a test"})
    assert file.stat().st_size < 5_000_000
    x = images(2, 3, 16, 16)
    torch.testing.assert_close(enhance(load_enhancer(str(file)), x), enhance(net, x), rtol=0, atol=2e-3)


def test_a_missing_enhancer_is_named_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(WeightsNotFound, match=r"'none'.*got 'sharper'.*seepage train enhancer"):
        check_enhancer("sharper")
    check_enhancer("later.safetensors")
    with pytest.raises(WeightsNotFound, match=r"later\.safetensors"):
        load_enhancer(str(tmp_path / "later.safetensors"))


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.safetensors"
    file.write_bytes(b"no weights")
    with pytest.raises(ValueError, match="made by `seepage train enhancer`"):
        load_enhancer(str(file))
    save_file({"w": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match="made by `seepage train enhancer`"):
        load_enhancer(str(file))


@pytest.mark.parametrize("name", shipped())
def test_what_is_shipped_loads_and_is_small(name: str) -> None:
    x = images(1, 3, 32, 32)
    assert enhance(load_enhancer(name), x).isfinite().all()


def test_without_noise_an_image_is_degraded_to_the_nearest_that_has_a_representation() -> None:
    x = 0.25 + images(2, 3, 16, 16, dtype=torch.float64) / 2
    small = Bicubic(4)
    got = degrade(x, Degradation(4, 0.0, 0.0), torch.Generator().manual_seed(0))
    torch.testing.assert_close(got, small.decode(small.encode(x), (16, 16)).clamp(0, 1))


def test_the_error_of_a_representation_has_the_stated_size_and_pixels_share_it() -> None:
    x = torch.full((32, 3, 32, 32), 0.5, dtype=torch.float64)
    error = degrade(x, Degradation(2, 0.05, 0.05), torch.Generator().manual_seed(0)) - x
    assert float(Bicubic(2).encode(error).square().mean().sqrt()) == pytest.approx(0.05, rel=0.03)
    assert float((error[..., 1:] * error[..., :-1]).mean() / error.square().mean()) > 0.4


@pytest.mark.parametrize(
    ("knobs", "what"),
    [((4, 0.2, 0.1), "least_noise"), ((0, 0.0, 0.1), "factor")],
)
def test_a_degradation_that_makes_no_sense_is_refused(knobs: tuple[float, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Degradation(*knobs)


def test_the_file_is_half_precision(tmp_path: Path) -> None:
    save_enhancer(Enhancer(), tmp_path / "a.safetensors", {})
    assert {t.dtype for t in load_file(tmp_path / "a.safetensors").values()} == {torch.float16}

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from skimage import data
from torch import Tensor

from seepage.metrics.perceptual import lpips
from seepage.perceptual import ALEXNET_FILE, LINEAR_FILE, LpipsWeights, WeightsBroken, WeightsMissing, load_lpips


def photo(image: NDArray[np.uint8], top: int, left: int, side: int = 128) -> Tensor:
    crop = torch.from_numpy(image[top : top + side, left : left + side].copy())
    return crop.permute(2, 0, 1)[None].float() / 255


def blocks(image: Tensor, side: int = 4) -> Tensor:
    return F.avg_pool2d(image, side).repeat_interleave(side, 2).repeat_interleave(side, 3)


def twin(one: Tensor, other: Tensor, folder: Path) -> Tensor:
    """The formula as it is written down with the weights: one image in [-1, 1], no loop."""
    alex, linear = load_file(folder / ALEXNET_FILE), load_file(folder / LINEAR_FILE)

    def relus(x: Tensor) -> list[Tensor]:
        x = (x - torch.tensor([-0.030, -0.088, -0.188])[:, None, None]) / torch.tensor([0.458, 0.448, 0.450])[
            :, None, None
        ]
        a = F.relu(F.conv2d(x, alex["features.0.weight"], alex["features.0.bias"], stride=4, padding=2))
        b = F.relu(F.conv2d(F.max_pool2d(a, 3, 2), alex["features.3.weight"], alex["features.3.bias"], padding=2))
        c = F.relu(F.conv2d(F.max_pool2d(b, 3, 2), alex["features.6.weight"], alex["features.6.bias"], padding=1))
        d = F.relu(F.conv2d(c, alex["features.8.weight"], alex["features.8.bias"], padding=1))
        e = F.relu(F.conv2d(d, alex["features.10.weight"], alex["features.10.bias"], padding=1))
        return [F.normalize(x, dim=1) for x in (a, b, c, d, e)]

    total = torch.zeros(())
    for depth, (left, right) in enumerate(zip(relus(one), relus(other), strict=True)):
        total = total + F.conv2d((left - right) ** 2, linear[f"alex.lin{depth}.model.1.weight"]).mean()
    return total


def test_equals_the_formula_written_out(weights: LpipsWeights, lpips_folder: Path) -> None:
    truth = torch.cat([photo(data.astronaut(), 0, 150), photo(data.coffee(), 100, 200)])
    guess = torch.cat([blocks(truth[:1]), truth[:1]])
    ours = lpips(guess, truth, 0.0, 1.0, weights)
    theirs = torch.stack([twin(2 * guess[i : i + 1] - 1, 2 * truth[i : i + 1] - 1, lpips_folder) for i in range(2)])
    torch.testing.assert_close(ours, theirs)


def test_equals_the_authors_package(weights: LpipsWeights) -> None:
    """The numbers are those of `lpips.LPIPS(net="alex", version="0.1")` of PyPI's lpips 0.1.4 on the same crops."""
    astronaut, coffee = photo(data.astronaut(), 0, 150), photo(data.coffee(), 100, 200)
    assert lpips(blocks(astronaut), astronaut, 0.0, 1.0, weights).item() == pytest.approx(0.425947, abs=2e-5)
    assert lpips(coffee, astronaut, 0.0, 1.0, weights).item() == pytest.approx(0.648376, abs=2e-5)


def test_linear_layers_are_those_that_torchmetrics_ships(weights: LpipsWeights) -> None:
    file = Path(torchmetrics.__file__).parent / "functional" / "image" / "lpips_models" / "alex.pth"
    if not file.is_file():
        pytest.skip(f"this version of torchmetrics has no {file.name}")
    theirs = torch.load(file, weights_only=True, map_location="cpu")
    for depth, linear in enumerate(weights.linears):
        assert torch.equal(linear, theirs[f"lin{depth}.model.1.weight"].flatten())


@pytest.mark.parametrize("shape", [(2, 3, 64, 64), (2, 1, 28, 28), (1, 3, 32, 48), (2, 1, 70, 92)])
def test_is_a_symmetric_distance_at_any_size(weights: LpipsWeights, shape: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(0)
    one, other = torch.rand(shape, generator=rng), torch.rand(shape, generator=rng)
    there, back = lpips(one, other, 0.0, 1.0, weights), lpips(other, one, 0.0, 1.0, weights)
    assert there.shape == (shape[0],)
    assert (there > 0).all()
    torch.testing.assert_close(there, back)
    assert lpips(one, one, 0.0, 1.0, weights).tolist() == [0.0] * shape[0]


def test_grows_with_noise_and_is_free_of_the_range(weights: LpipsWeights) -> None:
    truth = photo(data.astronaut(), 0, 150)
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1))
    values = [lpips(truth + level * noise, truth, 0.0, 1.0, weights).item() for level in (0.0, 0.02, 0.05, 0.1, 0.3)]
    assert values == sorted(values)
    assert values[1] > 0
    bytes_ = lpips(255 * (truth + 0.1 * noise), 255 * truth, 0.0, 255.0, weights).item()
    assert bytes_ == pytest.approx(values[3], abs=1e-5)


def test_grey_is_the_same_as_three_equal_channels(weights: LpipsWeights) -> None:
    grey = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(2))
    colour = grey.repeat(1, 3, 1, 1)
    torch.testing.assert_close(
        lpips(grey[:1], grey[1:], 0.0, 1.0, weights), lpips(colour[:1], colour[1:], 0.0, 1.0, weights)
    )


def test_small_images_are_enlarged_to_64(weights: LpipsWeights) -> None:
    small = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    large = F.interpolate(small, size=(64, 64), mode="bilinear", align_corners=False)
    torch.testing.assert_close(
        lpips(small[:1], small[1:], 0.0, 1.0, weights), lpips(large[:1], large[1:], 0.0, 1.0, weights)
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_nan(weights: LpipsWeights, value: float) -> None:
    truth = torch.full((3, 1, 65, 65), 0.5)
    guess = truth.clone()
    guess[1, 0, -1, -1] = value
    assert lpips(guess, truth, 0.0, 1.0, weights).isnan().tolist() == [False, True, False]


def test_no_images_give_no_values(weights: LpipsWeights) -> None:
    assert lpips(torch.zeros(0, 1, 8, 8), torch.zeros(0, 1, 8, 8), 0.0, 1.0, weights).shape == (0,)


def test_missing_weights_say_what_where_and_how(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing) as error:
        load_lpips(tmp_path)
    for part in (ALEXNET_FILE, LINEAR_FILE, str(tmp_path), "--data DIR", "SEEPAGE_DATA", "seepage fetch lpips"):
        assert part in str(error.value)
    assert isinstance(error.value, FileNotFoundError)


def test_one_missing_file_is_named_as_missing(tmp_path: Path, lpips_folder: Path) -> None:
    shutil.copyfile(lpips_folder / LINEAR_FILE, tmp_path / LINEAR_FILE)
    with pytest.raises(WeightsMissing, match=f"got no {ALEXNET_FILE};"):
        load_lpips(tmp_path)


def test_altered_weights_are_refused(tmp_path: Path, lpips_folder: Path) -> None:
    shutil.copyfile(lpips_folder / LINEAR_FILE, tmp_path / LINEAR_FILE)
    save_file({"features.0.weight": torch.zeros(1)}, tmp_path / ALEXNET_FILE)
    with pytest.raises(WeightsBroken, match=r"SHA-256 dad556.* in .*, got [0-9a-f]{64}; .*seepage fetch lpips"):
        load_lpips(tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    for name in (ALEXNET_FILE, LINEAR_FILE):
        (tmp_path / name).write_bytes(b"not the weights")
    with pytest.raises(WeightsBroken, match=r"to be safetensors, got: .*seepage fetch lpips"):
        load_lpips(tmp_path)


def test_the_layout_of_the_file_does_not_matter(tmp_path: Path, lpips_folder: Path) -> None:
    for name in (ALEXNET_FILE, LINEAR_FILE):
        save_file(load_file(lpips_folder / name), tmp_path / name, metadata={"made": "anew"})
    assert len(load_lpips(tmp_path).linears) == 5


def test_wrong_shapes_are_named() -> None:
    toy = LpipsWeights(((torch.ones(1, 3, 3, 3), torch.zeros(1)),) * 5, (torch.ones(1),) * 5)
    with pytest.raises(ValueError, match=r"1 or 3 channels, got \(1, 2, 8, 8\)"):
        lpips(torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 8, 8), 0.0, 1.0, toy)
    with pytest.raises(ValueError, match="got 0 and 5"):
        LpipsWeights((), (torch.ones(1),) * 5)

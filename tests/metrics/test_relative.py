from __future__ import annotations

import math

import pytest
import torch

from seepage.metrics.relative import relative_error


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_scale_of_the_values_does_not_matter(scale: float) -> None:
    truth = scale * torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(relative_error(0 * truth, truth), torch.ones(5).double())
    torch.testing.assert_close(relative_error(1.1 * truth, truth), torch.full((5,), 0.1).double())
    assert relative_error(truth, truth).tolist() == [0.0] * 5


def test_what_is_not_finite_or_has_no_size_is_not_a_number() -> None:
    truth = torch.tensor([[1.0], [1.0], [0.0]])
    guess = torch.tensor([[math.inf], [math.nan], [0.0]])
    assert relative_error(guess, truth).isnan().all()


def test_shapes_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one shape .*got \(2, 3\) and \(1, 3\)"):
        relative_error(torch.zeros(2, 3), torch.zeros(1, 3))

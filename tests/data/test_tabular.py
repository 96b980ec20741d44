from __future__ import annotations

import numpy as np
import pytest
import torch

from seepage.data.tabular import Encoding
from seepage.pieces.boxes import boxed
from seepage.spec import DataSpec


def test_a_constant_column_does_no_harm() -> None:
    table = {"same": np.full(3, 4.0), "kind": np.array(["b", "a", "b"])}
    encoding = Encoding.of(table)
    x = encoding.normalise(table)
    assert bool(x.isfinite().all())
    assert x[:, 0].tolist() == [0.0] * 3
    assert encoding.columns[1].values == ("a", "b")


def test_a_binary_column_is_one_feature() -> None:
    table = {"sex": np.array(["m", "f", "m"]), "kind": np.array(["b", "a", "b"])}
    encoding = Encoding.of(table, binary=("sex",))
    assert encoding.normalise(table).tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    sex, kind = encoding.columns
    assert (sex.kind, sex.values, sex.features) == ("binary", ("f", "m"), slice(0, 1))
    assert kind.features == slice(1, 3)


def test_three_values_are_not_binary() -> None:
    with pytest.raises(ValueError, match=r"two values in the binary column 'x', got \['a', 'b', 'c'\]"):
        Encoding.of({"x": np.array(["a", "b", "c"])}, binary=("x",))


def test_raw_values_of_training_rows_fill_the_unit_interval() -> None:
    draw = np.random.default_rng(0)
    table = {"x": draw.normal(50, 10, 40), "y": draw.uniform(-3, -1, 40)}
    encoding = Encoding.of(table)
    spec = encoding.spec(classes=None)
    raw = spec.pixels(encoding.normalise(table))
    torch.testing.assert_close(raw.amin(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(raw.amax(0), torch.ones(2), atol=1e-6, rtol=0)
    back = encoding.columns[1].offset + encoding.columns[1].scale * raw[:, 1]
    np.testing.assert_allclose(back.numpy(), table["y"], atol=1e-5)


def test_clipping_is_per_feature() -> None:
    table = {"x": np.array([0.0, 10.0]), "kind": np.array(["a", "b"])}
    encoding = Encoding.of(table)
    spec = encoding.spec(classes=2)
    clipped = boxed(spec, torch.zeros(1))(torch.full((1, 3), 99.0))
    torch.testing.assert_close(spec.pixels(clipped), torch.ones(1, 3))


def test_the_spec_says_which_features_are_one_column() -> None:
    table = {"age": np.array([20.0, 60.0, 30.0]), "sex": np.array(["f", "m", "f"]), "job": np.array(["a", "b", "c"])}
    assert Encoding.of(table, binary=("sex",)).spec(classes=2).categories == ((1, 2), (2, 5))
    assert Encoding.of(table).spec(classes=2).columns == ((0, 1), (1, 3), (3, 6))


@pytest.mark.parametrize("categories", [((2, 2),), ((1, 3), (2, 4)), ((3, 4), (0, 1)), ((4, 6),)])
def test_columns_that_overlap_or_do_not_fit_are_refused(categories: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match=r"in ascending order within 5 features, got"):
        DataSpec((5,), categories=categories)

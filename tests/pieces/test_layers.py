"""Which tensors of an update are looked at."""

from __future__ import annotations

import pytest
import torch

from seepage.pieces.layers import layer_weights, masked, parse_layers, tensor_mask

UPDATE = {
    "a": torch.tensor([[3.0, 4.0], [0.0, 0.1]]),  # norms 5 and 0.1
    "b": torch.tensor([[1.0], [2.0]]),
    "c": torch.tensor([[0.0, 0.0, 0.5], [0.0, 3.0, 0.0]]),
}


@pytest.mark.parametrize(
    ("which", "chosen"),
    [
        ("all", ["abc", "abc"]),
        ("top1", ["a", "c"]),
        ("top2", ["ab", "bc"]),
        ("top9", ["abc", "abc"]),
        ("first1", ["a", "a"]),
        ("first9", ["abc", "abc"]),
        ("last2", ["bc", "bc"]),
        ("last9", ["abc", "abc"]),
    ],
)
def test_every_client_has_its_own_mask(which: str, chosen: list[str]) -> None:
    mask = tensor_mask(UPDATE, which)
    assert ["".join(name for name in UPDATE if mask[name][i]) for i in range(2)] == chosen


def test_what_is_masked_is_zero_and_the_rest_as_it_was() -> None:
    one = {name: u[0] for name, u in UPDATE.items()}
    mask = {name: m[0] for name, m in tensor_mask(UPDATE, "top1").items()}
    assert {name: u.tolist() for name, u in masked(one, mask).items()} == {
        "a": [3.0, 4.0],
        "b": [0.0],
        "c": [0.0, 0.0, 0.0],
    }


@pytest.mark.parametrize("which", ["top", "top0", "10", "some3", "", 3])
def test_anything_else_is_refused(which: str) -> None:
    with pytest.raises(ValueError, match="expected `layers` to be 'all', or 'top', 'first' or 'last' with a number"):
        parse_layers(which)


def test_layer_weights_of_dimitrov2022() -> None:
    names = [f"{layer}.{part}" for layer in ("conv1", "conv2", "linear1", "linear2") for part in ("weight", "bias")]
    weights = layer_weights(names, 1.0)
    assert [round(weights[name], 4) for name in names[::2]] == [1.0, 0.3679, 0.1353, 0.0498]
    assert all(weights[f"{layer}.weight"] == weights[f"{layer}.bias"] for layer in ("conv1", "conv2", "linear2"))
    assert set(layer_weights(names, 0.0).values()) == {1.0}

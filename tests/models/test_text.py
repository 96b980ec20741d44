from __future__ import annotations

import pytest
import torch

from seepage.models import MODELS, build, options
from seepage.spec import DataSpec
from seepage.streams import Stream
from seepage.task import Task

ROOT = Stream.from_seed(0)
SPEC = DataSpec((7,), classes=3, vocabulary=20)
OF_TEXT = [name for name in MODELS if name.startswith("text-")]
X = torch.tensor([[1, 5, 6, 2, 0, 0, 0], [1, 7, 8, 9, 10, 11, 2]])


@pytest.mark.parametrize("name", OF_TEXT)
def test_what_fills_up_is_no_part_of_the_answer(name: str) -> None:
    module = build(name, SPEC, ROOT, **options(name)).double()
    out = module(X)
    assert out.shape == (2, 3)
    assert bool(out.isfinite().all())
    longer = build(name, SPEC, ROOT).double()
    if hasattr(longer, "positions"):  # places that nobody fills may have any embedding
        with torch.no_grad():
            longer.positions.weight[4:] = 7.0
    torch.testing.assert_close(longer(X)[0], out[0])
    assert build(name, SPEC, ROOT / "other").double()(X).ne(out).all()


@pytest.mark.parametrize("name", OF_TEXT)
def test_they_train_together_as_alone(name: str) -> None:
    task = Task(build(name, SPEC, ROOT), SPEC)
    assert task.batched
    assert task.concerns == ()
    assert task.head == "head"


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_decoder_sees_the_past_and_an_encoder_all(norm: str) -> None:
    other = X.clone()
    other[1, 5] = 12
    for name, past_alone in (("text-decoder", True), ("text-encoder", False)):
        seen: list[torch.Tensor] = []
        module = build(name, SPEC, ROOT, width=16, norm=norm)
        module.get_submodule("blocks.1.query").register_forward_pre_hook(lambda _, given, to=seen: to.append(given[0]))
        module(X), module(other)
        same = (seen[0] - seen[1])[1].abs().amax(-1) < 1e-6
        assert same.tolist() == ([True] * 5 + [False] * 2 if past_alone else [False] * 7)


def test_parameters_by_hand() -> None:
    block = 4 * (16 * 16 + 16) + 16 * 64 + 64 + 64 * 16 + 16 + 4 * 16
    expected = 20 * 16 + 7 * 16 + 2 * 16 + 3 * block + 16 * 3 + 3
    module = build("text-encoder", SPEC, ROOT, width=16, layers=3)
    assert sum(p.numel() for p in module.parameters()) == expected
    assert sum(p.numel() for p in build("text-bag", SPEC, ROOT, width=8).parameters()) == 20 * 8 + 8 * 3 + 3


def test_numbers_and_odd_sizes_are_refused() -> None:
    for name in OF_TEXT:
        with pytest.raises(ValueError, match="expected text, of which the data spec tells the `vocabulary`"):
            build(name, DataSpec((4,), classes=2), ROOT)
    with pytest.raises(ValueError, match="`heads` to divide `width`"):
        build("text-encoder", SPEC, ROOT, width=10, heads=4)
    with pytest.raises(ValueError, match="expected `norm` to be one of"):
        build("text-encoder", SPEC, ROOT, norm="both")

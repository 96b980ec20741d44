"""The copies of the user's layers that Seepage computes with, and what is said about each layer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from common.nets import cnn, made_of, numbers, seeded
from seepage.engine.layers import Consequence, known_concerns
from seepage.engine.twins import PureBatchNorm, PureDropout, fresh_statistics, pure_dropout_rng, purify


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (lambda: nn.BatchNorm1d(3), (5, 3)),
        (lambda: nn.BatchNorm1d(3), (5, 3, 4)),
        (lambda: nn.BatchNorm2d(3, eps=0.1), (2, 3, 4, 4)),
        (lambda: nn.BatchNorm2d(3, affine=False), (2, 3, 4, 4)),
        (lambda: nn.BatchNorm2d(3, momentum=None), (2, 3, 4, 4)),
        (lambda: nn.BatchNorm2d(3, track_running_stats=False), (1, 3, 2, 2)),
        (lambda: nn.BatchNorm3d(3), (2, 3, 2, 2, 2)),
    ],
)
def test_pure_batch_norm_gives_what_batch_norm_gives_and_would_have_written(norm, shape) -> None:
    theirs = seeded(norm)
    for p in theirs.parameters():
        p.data = numbers(*p.shape, seed=3)
    ours = PureBatchNorm(copy.deepcopy(theirs))
    for seed in range(3):
        x = numbers(*shape, seed=seed) * 3 + 1
        torch.testing.assert_close(ours(x), theirs.train()(x))
        fresh = fresh_statistics(ours)
        assert fresh.keys() == dict(theirs.named_buffers()).keys()
        for name, buffer in theirs.named_buffers():
            torch.testing.assert_close(fresh[name], buffer)
            ours.get_buffer(name).copy_(buffer)


def test_pure_batch_norm_writes_nothing_and_remembers_nothing_once_asked() -> None:
    net = purify(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).double(), train=True)
    before = made_of(net)
    net(numbers(5, 3))
    assert all(before[name].equal(tensor) for name, tensor in net.state_dict().items())
    assert set(fresh_statistics(net)) == {"0.running_mean", "0.running_var", "0.num_batches_tracked"}
    assert fresh_statistics(net) == {}


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (lambda: nn.LayerNorm(4), (5, 4)),
        (lambda: nn.LayerNorm((3, 4), eps=0.1), (2, 3, 4)),
        (lambda: nn.LayerNorm(4, elementwise_affine=False), (2, 3, 4)),
        (lambda: nn.LayerNorm(4, bias=False), (2, 3, 4)),
        (lambda: nn.InstanceNorm1d(3), (2, 3, 4)),
        (lambda: nn.InstanceNorm2d(3, affine=True, eps=0.1), (2, 3, 4, 4)),
        (lambda: nn.InstanceNorm3d(3, affine=True), (2, 3, 2, 2, 2)),
    ],
)
def test_pure_norms_give_what_norms_give(norm, shape) -> None:
    theirs = seeded(norm)
    for p in theirs.parameters():
        p.data = numbers(*p.shape, seed=3)
    for train in (True, False):
        (ours,) = purify(nn.Sequential(theirs), train)
        assert type(ours) is not type(theirs)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        x = numbers(*shape) * 3 + 1
        torch.testing.assert_close(ours(x), theirs(x))


def test_a_norm_with_a_forward_pass_of_its_own_is_left_as_it_is() -> None:
    class Swapping(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.transpose(1, 2)).transpose(1, 2)

    (layer,) = purify(nn.Sequential(Swapping(3)), train=True)
    assert isinstance(layer, Swapping)


def test_a_module_that_is_itself_batch_norm_is_purified() -> None:
    net = purify(nn.BatchNorm1d(3), train=True)
    assert isinstance(net, PureBatchNorm)
    net(torch.eye(3))
    assert "running_mean" in fresh_statistics(net)


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_dropout_keeps_the_stated_share_and_the_mean(p: float) -> None:
    layer = PureDropout(p, whole_channels=False).train()
    layer.rng = torch.Generator().manual_seed(0)
    out = layer(torch.ones(100, 100))
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    assert float((out == 0).double().mean()) == pytest.approx(p, abs=0.02)
    assert float(out.mean()) == pytest.approx(1, abs=0.02)


def test_dropout_of_channels_drops_whole_channels() -> None:
    net = purify(nn.Sequential(nn.Dropout2d(0.5)), train=True)
    pure_dropout_rng(net, torch.Generator().manual_seed(0))
    out = net(torch.ones(8, 8, 3, 3))
    per_channel = out.flatten(2)
    assert (per_channel == per_channel[..., :1]).all()
    assert 0 < int((per_channel[..., 0] == 0).sum()) < 64


def test_dropout_is_off_without_a_stream_and_in_eval_mode() -> None:
    x = torch.ones(10, 10)
    assert purify(nn.Sequential(nn.Dropout(0.9)), train=True)(x).equal(x)
    net = purify(nn.Sequential(nn.Dropout(0.9)), train=False)
    pure_dropout_rng(net, torch.Generator().manual_seed(0))
    assert net(x).equal(x)


@pytest.mark.parametrize(
    "cell",
    [
        nn.LSTM(3, 3, num_layers=2, dropout=0.5),
        nn.GRU(3, 3, num_layers=2, dropout=0.5),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5),
        nn.MultiheadAttention(4, 2, dropout=0.5),
    ],
    ids=lambda cell: type(cell).__name__,
)
def test_dropout_inside_recurrent_and_attention_layers_is_off(cell: nn.Module) -> None:
    net = purify(nn.ModuleList([cell]), train=True)[0]
    x = torch.randn(
        5, 2, net.input_size if isinstance(net, nn.RNNBase) else 4, generator=torch.Generator().manual_seed(0)
    )
    inputs = (x, x, x) if isinstance(net, nn.MultiheadAttention) else (x,)

    def out() -> Tensor:
        result = net(*inputs)
        return result[0] if isinstance(result, tuple) else result

    state = torch.get_rng_state()
    assert out().equal(out())
    assert state.equal(torch.get_rng_state())


def test_purify_copies_and_leaves_the_module_alone() -> None:
    module = nn.Sequential(cnn(), nn.BatchNorm1d(3), nn.Dropout(0.5)).eval()
    before = made_of(module)
    pure = purify(module, train=True)
    assert pure.training
    assert not module.training
    assert isinstance(module[1], nn.BatchNorm1d)
    assert isinstance(module[2], nn.Dropout)
    assert list(pure.state_dict()) == list(module.state_dict())
    for p in pure.parameters():
        p.data.zero_()
    assert all(before[name].equal(tensor) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize(
    ("layer", "consequence", "why", "fix"),
    [
        (nn.BatchNorm2d(2), Consequence.NOTE, "whole batch", "batch_norm = 'eval'"),
        (nn.Dropout(0.5), Consequence.NOTE, "masks", "p = 0"),
        (nn.GRU(2, 2), Consequence.LOOP, "no batching rule", "nn.LSTM"),
        (nn.RNN(2, 2), Consequence.LOOP, "no batching rule", "nn.LSTM"),
        (nn.AlphaDropout(), Consequence.LOOP, "global generator", "nn.Dropout"),
        (nn.MultiheadAttention(2, 1), Consequence.NOTE, "second derivative", "Nothing to do"),
        (nn.InstanceNorm2d(2, track_running_stats=True), Consequence.REFUSE, "in place", "track_running_stats=False"),
        (nn.Embedding(2, 2), Consequence.REFUSE, "integer", "behind the embedding"),
        (nn.EmbeddingBag(2, 2), Consequence.REFUSE, "integer", "behind the embedding"),
        (nn.LazyLinear(2), Consequence.REFUSE, "no shape yet", "Run one batch"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_a_layer_is_named_with_the_reason_and_the_fix(
    layer: nn.Module, consequence: Consequence, why: str, fix: str
) -> None:
    (concern,) = known_concerns(nn.ModuleDict({"body": nn.ModuleList([nn.Linear(2, 2), layer])}))
    assert concern.layer == "body.1"
    assert concern.kind == type(layer).__name__
    assert concern.consequence is consequence
    assert why in concern.why
    assert fix in concern.fix
    assert all(part in str(concern) for part in ("body.1", type(layer).__name__, consequence, concern.why, concern.fix))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 1, 3),
        nn.Linear(2, 2),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.GroupNorm(1, 2),
        nn.LayerNorm(2),
        nn.LSTM(2, 2),
        nn.InstanceNorm2d(2),
        nn.ReLU(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_are_plainly_fine_raise_no_concern(layer: nn.Module) -> None:
    assert known_concerns(nn.Sequential(layer)) == []

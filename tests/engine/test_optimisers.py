from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from seepage.engine.graphs import _overwrite
from seepage.engine.lanes import Tree
from seepage.engine.optimisers import Optimiser, adam, cosine, drops, exponential, lbfgs, sgd, signed
from seepage.streams import Stream

STREAM = Stream.from_seed(0) / "optimisers"
CURVATURE = torch.tensor([1.0, 3.0, 0.2, 7.0], dtype=torch.float64)

EVERY = [
    adam(0.1),
    sgd(0.05),
    sgd(0.05, momentum=0.9),
    signed(adam(0.1)),
    drops(adam(0.1), steps=10),
    exponential(sgd(0.05), rate=0.5, every=4),
    cosine(signed(sgd(0.05)), steps=10),
    lbfgs(0.5, history=3),
    lbfgs(history=3, line_search="backtracking"),
    cosine(lbfgs(history=3), steps=10),
]


def normal(*shape: int, name: str = "x", dtype: torch.dtype = torch.float64) -> Tensor:
    return (STREAM / name).normal(*shape, dtype=dtype)


def wavy(x: Tensor) -> Tensor:
    """Convex enough, not quadratic, with other curvature in every direction. (lanes, 4) to (lanes,)."""
    return (CURVATURE.to(x.dtype) * (x**2 / 2 + 0.1 * torch.cos(2 * x))).sum(-1) + 0.01 * x.sum(-1) ** 4


def rosenbrock(x: Tensor) -> Tensor:
    return ((1 - x[..., 0]) ** 2) + 100 * (x[..., 1] - x[..., 0] ** 2) ** 2


def iterates(optimiser: Optimiser, x: Tree, function: Callable[[Tree], Tensor], steps: int) -> list[Tree]:
    state, seen = optimiser.init(x), []
    for _ in range(steps):
        leaves, spec = pytree.tree_flatten(x)
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        value = function(pytree.tree_unflatten(leaves, spec))
        grad = pytree.tree_unflatten(torch.autograd.grad(value.sum(), leaves), spec)
        with torch.no_grad():
            x, state = optimiser.update(pytree.tree_map(torch.detach, x), value.detach(), grad, state)
        seen.append(x)
    return seen


def reference(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], x: Tensor, function: Callable[[Tensor], Tensor], steps: int
) -> list[Tensor]:
    x = x.clone().requires_grad_()
    optimiser, seen = make([x]), []

    def closure() -> float:
        optimiser.zero_grad()
        value = function(x).sum()
        value.backward()
        return float(value.detach())

    for _ in range(steps):
        optimiser.step(closure)
        seen.append(x.detach().clone())
    return seen


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (adam(0.1), lambda p: torch.optim.Adam(p, lr=0.1)),
        (adam(0.02, (0.5, 0.9), 1e-3), lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.5, 0.9), eps=1e-3)),
        (sgd(0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
        (sgd(0.05, 0.9), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    ],
    ids=["adam", "adam of other knobs", "sgd", "sgd with momentum"],
)
def test_first_order_methods_are_torch_s(ours: Optimiser, theirs: Callable[..., torch.optim.Optimizer]) -> None:
    x = normal(3, 4)
    for a, b in zip(iterates(ours, x, wavy, 50), reference(theirs, x, wavy, 50), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_adam_is_torch_s_in_float32() -> None:
    x = normal(3, 4, dtype=torch.float32)
    theirs = reference(lambda p: torch.optim.Adam(p, lr=0.1), x, wavy, 50)
    torch.testing.assert_close(iterates(adam(0.1), x, wavy, 50)[-1], theirs[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("history", [2, 5, 100])
@pytest.mark.parametrize("lr", [1.0, 0.3])
def test_lbfgs_is_torch_s(lr: float, history: int) -> None:
    x = normal(1, 4)

    def theirs(p: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(
            p, lr=lr, max_iter=1, history_size=history, tolerance_grad=0, tolerance_change=0, line_search_fn=None
        )

    ours = iterates(lbfgs(lr, history), x, wavy, 30)
    for a, b in zip(ours, reference(theirs, x, wavy, 30), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_lbfgs_is_torch_s_across_its_inner_iterations() -> None:
    # The start is near the top of the hills, so that pairs without positive curvature are met and refused.
    x = 0.01 * normal(1, 4)

    def bumpy(x: Tensor) -> Tensor:
        return (torch.cos(3 * x) * CURVATURE + 0.05 * x**4).sum(-1)

    def theirs(p: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(p, lr=0.1, max_iter=5, tolerance_grad=0, tolerance_change=0)

    ours = iterates(lbfgs(0.1), x, bumpy, 30)
    slopes = [torch.func.grad(lambda x: bumpy(x)[0])(point) for point in ours[:2]]
    assert ((slopes[1] - slopes[0]) * (ours[1] - ours[0])).sum() < 0
    for a, b in zip(ours[4::5], reference(theirs, x, bumpy, 6), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_lbfgs_solves_a_quadratic_in_few_steps() -> None:
    def quadratic(x: Tensor) -> Tensor:
        return (CURVATURE * (x - 1) ** 2).sum(-1) / 2

    assert (iterates(lbfgs(), normal(5, 4), quadratic, 25)[-1] - 1).abs().max() < 1e-6


def test_backtracking_finds_the_minimum_of_rosenbrock_in_every_lane() -> None:
    start = torch.tensor([[-1.2, 1.0], [0.0, 0.0], [2.0, -3.0]], dtype=torch.float64)
    x = iterates(lbfgs(history=10, line_search="backtracking"), start, rosenbrock, 120)[-1]
    assert (x - 1).abs().max() < 1e-6


def test_backtracking_never_accepts_a_rise() -> None:
    x = torch.tensor([[-1.2, 1.0]], dtype=torch.float64)
    optimiser = lbfgs(line_search="backtracking")
    state, accepted = optimiser.init(x), []
    for _ in range(60):
        x = x.detach().requires_grad_()
        value = rosenbrock(x)
        (grad,) = torch.autograd.grad(value.sum(), x)
        x, state = optimiser.update(x.detach(), value.detach(), grad, state)
        accepted.append(float(state.value))
    assert accepted == sorted(accepted, reverse=True)
    assert (state.halvings <= 20).all()


def test_backtracking_asks_for_the_fall_that_armijo_asks_for() -> None:
    # From 1 with a slope of 1000 the first step has length 1, so values up to 1 - 0.0001 * 1000 = 0.9 are accepted.
    optimiser, x = lbfgs(line_search="backtracking"), torch.zeros(2, 1)
    slope = torch.full((2, 1), 1000.0)
    trial, state = optimiser.update(x, torch.ones(2), slope, optimiser.init(x))
    torch.testing.assert_close(trial, torch.full((2, 1), -1.0))
    following, state = optimiser.update(trial, torch.tensor([0.95, 0.85]), slope, state)
    assert state.halvings.tolist() == [1, 0]
    torch.testing.assert_close(following[0], torch.tensor([-0.5]))
    torch.testing.assert_close(state.base, torch.tensor([[0.0], [-1.0]]))


def test_backtracking_takes_up_the_gradient_when_a_direction_fails() -> None:
    # A gradient that points the wrong way is refused over and over; the search must not shrink to nothing for good.
    x = torch.ones(1, 2, dtype=torch.float64)
    optimiser = lbfgs(line_search="backtracking")
    state, lengths = optimiser.init(x), []
    for _ in range(50):
        x, state = optimiser.update(x, (x**2).sum(1), -2 * x, state)
        lengths.append(float(state.length))
    assert max(lengths[25:]) == lengths[0]


def test_lbfgs_survives_a_zero_gradient() -> None:
    x = torch.ones(2, 3, dtype=torch.float64)
    for line_search in (None, "backtracking"):
        for seen in iterates(lbfgs(history=2, line_search=line_search), x, lambda x: 0 * x.sum(1), 3):
            assert seen.equal(x)


@pytest.mark.parametrize("optimiser", EVERY, ids=str)
def test_lanes_together_are_lanes_alone(optimiser: Optimiser) -> None:
    x = 2 * normal(5, 4)
    together = iterates(optimiser, x, wavy, 15)[-1]
    alone = torch.cat([iterates(optimiser, lane[None], wavy, 15)[-1] for lane in x])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimiser", EVERY, ids=str)
def test_a_lane_that_is_not_finite_leaves_the_others_alone(optimiser: Optimiser) -> None:
    x = normal(3, 4)
    broken = x.clone()
    broken[1] = torch.nan
    kept = [0, 2]
    healthy, beside = (iterates(optimiser, start, wavy, 8)[-1] for start in (x, broken))
    assert healthy[kept].equal(beside[kept])


@pytest.mark.parametrize("optimiser", EVERY, ids=str)
def test_a_tree_is_its_concatenation(optimiser: Optimiser) -> None:
    x = normal(3, 4)

    def of_tree(tree: dict[str, Tree]) -> Tensor:
        return wavy(torch.cat((tree["a"].reshape(3, -1), tree["b"][0][:, None], tree["b"][1]), 1))

    tree = {"a": x[:, :2].reshape(3, 2, 1), "b": (x[:, 2], x[:, 3:])}
    whole, parts = iterates(optimiser, x, wavy, 8)[-1], iterates(optimiser, tree, of_tree, 8)[-1]
    joined = torch.cat((parts["a"].reshape(3, 2), parts["b"][0][:, None], parts["b"][1]), 1)
    torch.testing.assert_close(joined, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("optimiser", EVERY, ids=str)
def test_dtypes_and_the_shapes_of_the_state_are_kept(optimiser: Optimiser, dtype: torch.dtype) -> None:
    x = normal(2, 4).to(dtype)
    before = optimiser.init(x)
    point, after = optimiser.update(x, wavy(x), x, before)
    assert point.dtype == dtype
    # A captured graph copies every state into the tensors of the one before.
    for old, new in zip(pytree.tree_leaves(before), pytree.tree_leaves(after), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)


@pytest.mark.parametrize("optimiser", EVERY, ids=str)
def test_updates_change_nothing_they_are_given(optimiser: Optimiser) -> None:
    x = normal(2, 4)
    _, state = optimiser.update(x, wavy(x), x.clone(), optimiser.init(x))
    copies = pytree.tree_map(torch.clone, (x, state))
    optimiser.update(x, wavy(x), x.clone(), state)
    for old, new in zip(pytree.tree_leaves(copies), pytree.tree_leaves((x, state)), strict=True):
        assert old.equal(new)


@pytest.mark.parametrize("optimiser", EVERY, ids=str)
def test_updates_read_nothing_back_to_the_host(optimiser: Optimiser) -> None:
    # Fake tensors have no numbers, so reading one raises; a CUDA graph could not capture it.
    with FakeTensorMode():
        x = torch.ones(2, 4)
        state = optimiser.init(x)
        for _ in range(2):
            x, state = optimiser.update(x, torch.ones(2), x, state)


@pytest.mark.parametrize("optimiser", EVERY, ids=str)
def test_a_state_may_be_overwritten_by_the_next_one(optimiser: Optimiser) -> None:
    # What a replayed CUDA graph does, without one.
    def iteration(state: Tree) -> Tree:
        x, memory = state
        return optimiser.update(x, (x**2).sum(1), 2 * x, memory)

    state = (normal(2, 4), optimiser.init(normal(2, 4)))
    static = pytree.tree_map(torch.clone, state)
    for _ in range(6):
        state = iteration(state)
        _overwrite(static, iteration(static))
    for old, new in zip(pytree.tree_leaves(state), pytree.tree_leaves(static), strict=True):
        assert old.equal(new)


def test_overwriting_reads_before_it_writes() -> None:
    static = (torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([3.0]))
    _overwrite(static, (static[0] + 10, static[0], static[1][:]))
    assert [float(leaf) for leaf in static] == [11.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="keep structure, shapes and dtypes"):
        _overwrite(static, (static[0], static[1], static[2][None]))


def test_equal_knobs_are_equal_and_print_themselves() -> None:
    made = drops(signed(adam(0.1)), steps=8)
    assert eval(repr(made)) == made
    assert hash(made) == hash(drops(signed(adam(0.1)), 8))


def rates(optimiser: Optimiser, steps: int) -> list[float]:
    """The learning rates, read off the steps down a slope of 1."""
    x = torch.zeros(1, 1, dtype=torch.float64)
    seen = [0.0] + [float(x) for x in iterates(optimiser, x, lambda x: x.sum(1), steps)]
    return [a - b for a, b in itertools.pairwise(seen)]


def test_drops_fall_at_their_milestones() -> None:
    assert rates(drops(sgd(1.0), steps=16), 16) == pytest.approx([1.0] * 6 + [0.1] * 4 + [0.01] * 4 + [0.001] * 2)
    assert rates(drops(sgd(1.0), steps=100, at=(0.29,), factor=0.5), 31) == pytest.approx([1.0] * 29 + [0.5] * 2)


def test_exponential_decays_between_its_marks_too() -> None:
    assert rates(exponential(sgd(2.0), rate=0.1, every=4), 9) == pytest.approx([2 * 0.1 ** (t / 4) for t in range(9)])


def test_cosine_ends_at_its_final_fraction_and_stays() -> None:
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * min(t, 10) / 10)) / 2 for t in range(13)]
    assert rates(cosine(sgd(1.0), steps=10, final=0.2), 13) == pytest.approx(expected)


def test_schedules_multiply_and_reach_through_wrappers() -> None:
    both = exponential(signed(cosine(sgd(1.0), steps=4)), rate=0.5, every=1)
    assert rates(both, 4) == pytest.approx([0.5**t * (1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)])


def test_drops_of_adam_are_torch_s() -> None:
    x = normal(2, 4).requires_grad_()
    ours = iterates(drops(signed(adam(0.1)), steps=16), x.detach(), wavy, 16)
    theirs = torch.optim.Adam([x], lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(theirs, milestones=[6, 10, 14], gamma=0.1)
    for a in ours:
        (grad,) = torch.autograd.grad(wavy(x).sum(), x)
        x.grad = grad.sign()
        theirs.step()
        schedule.step()
        torch.testing.assert_close(a, x.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: adam(0.0), r"expected `lr` to be a number above 0, got 0.0"),
        (lambda: adam(0.1, betas=(0.9, 1.0)), r"`betas` .* two numbers in \[0, 1\), got \(0.9, 1.0\)"),
        (lambda: adam(0.1, eps=-1.0), r"`eps`"),
        (lambda: sgd(0.1, momentum=1.5), r"`momentum` .* got 1.5"),
        (lambda: sgd(-1.0), r"`lr`"),
        (lambda: drops(sgd(1.0), steps=0), r"`steps` .* got 0"),
        (lambda: drops(sgd(1.0), steps=9, at=(3.0,)), r"`at` .* fractions of the run, in \[0, 1\], got \(3.0,\)"),
        (lambda: drops(sgd(1.0), steps=9, factor=0.0), r"`factor`"),
        (lambda: exponential(sgd(1.0), rate=0.0, every=1), r"`rate`"),
        (lambda: exponential(sgd(1.0), rate=0.5, every=0), r"`every`"),
        (lambda: cosine(sgd(1.0), steps=0), r"`steps`"),
        (lambda: cosine(sgd(1.0), steps=1, final=-0.1), r"`final`"),
        (lambda: lbfgs(lr=0.0), r"`lr`"),
        (lambda: lbfgs(history=0), r"`history` .* at least 1, got 0"),
        (lambda: lbfgs(line_search="wolfe"), r"`line_search` to be None or 'backtracking', got 'wolfe'"),
    ],
)
def test_bad_knobs_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()

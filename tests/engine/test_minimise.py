from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from seepage.engine.graphs import repeat
from seepage.engine.minimise import Solution, Status, best_start, minimise
from seepage.engine.optimisers import Optimiser, adam, cosine, drops, lbfgs, sgd, signed
from seepage.streams import Stream

STREAM = Stream.from_seed(0) / "minimise"
NAN = float("nan")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
OPTIMISERS = [
    adam(0.1),
    sgd(0.02, 0.9),
    drops(signed(adam(0.1)), steps=20),
    lbfgs(0.5, history=3),
    lbfgs(history=3, line_search="backtracking"),
]


class Candidate(NamedTuple):
    x: Tensor
    y: Tensor


def normal(*shape: int, name: str = "x", dtype: torch.dtype = torch.float64) -> Tensor:
    return (STREAM / name).normal(*shape, dtype=dtype)


def bowl(x: Tensor, target: Tensor, curvature: Tensor) -> Tensor:
    """Elementwise up to one sum, so that lanes round alike however many there are."""
    return (curvature * (x - target) ** 2).sum() / 2


def bowls(clients: int = 3, starts: int = 2, width: int = 4) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    target = normal(clients, width, name="target")
    curvature = 0.5 + normal(clients, width, name="curvature") ** 2
    return normal(clients, starts, width), (target, curvature)


def assert_same(a: Solution, b: Solution) -> None:
    for name in ("x", "value", "first_value", "status"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=0, equal_nan=True)


def statuses(solution: Solution) -> list[str]:
    return [Status(code).name for code in solution.status.flatten().tolist()]


class Crowded(torch.autograd.Function):
    """The identity, for at most so many lanes at once: the rule for `vmap` is told how many there are."""

    @staticmethod
    def forward(x: Tensor, room: int) -> Tensor:
        if room < 1:  # a lane that is alone is not mapped
            raise torch.OutOfMemoryError("1 lane")
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, room: int) -> tuple[Tensor, int]:
        if info.batch_size > room:
            raise torch.OutOfMemoryError(f"{info.batch_size} lanes")
        return Crowded.apply(x, room), in_dims[0]


def test_gradient_descent_on_a_quadratic_is_its_closed_form() -> None:
    start, (target, curvature) = bowls()
    found = minimise(bowl, start, (target, curvature), optimiser=sgd(0.1), steps=7)
    expected = target[:, None] + (1 - 0.1 * curvature[:, None]) ** 7 * (start - target[:, None])
    torch.testing.assert_close(found.x, expected)
    torch.testing.assert_close(found.value, (curvature[:, None] * (expected - target[:, None]) ** 2).sum(2) / 2)
    torch.testing.assert_close(found.first_value, (curvature[:, None] * (start - target[:, None]) ** 2).sum(2) / 2)
    assert statuses(found) == ["REDUCED"] * 6
    assert found.steps == 7


def test_every_lane_reaches_its_own_client_s_minimum() -> None:
    start, (target, curvature) = bowls()
    found = minimise(bowl, start, (target, curvature), optimiser=lbfgs(history=10), steps=30)
    torch.testing.assert_close(found.x, target[:, None].expand_as(start), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=str)
@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_results_do_not_depend_on_the_chunk(optimiser: Optimiser, chunk: int) -> None:
    start, given = bowls()
    whole = minimise(bowl, start, given, optimiser=optimiser, steps=12)
    assert_same(minimise(bowl, start, given, optimiser=optimiser, steps=12, chunk=chunk), whole)


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=str)
def test_together_is_one_by_one(optimiser: Optimiser) -> None:
    def objective(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return ((torch.tanh(weight @ x) - target) ** 2).sum()

    start, weight, target = normal(2, 3, 4), normal(2, 5, 4, name="weight"), normal(2, 5, name="target")
    together = minimise(objective, start, (weight, target), optimiser=optimiser, steps=15)
    for client in range(2):
        for s in range(3):
            one = start[client : client + 1, s : s + 1]
            mine = (weight[client : client + 1], target[client : client + 1])
            alone = minimise(objective, one, mine, optimiser=optimiser, steps=15)
            torch.testing.assert_close(alone.x[0, 0], together.x[client, s], rtol=1e-9, atol=1e-11)


def test_the_loop_is_the_batch() -> None:
    start, given = bowls()
    batched, looped = (minimise(bowl, start, given, optimiser=adam(0.1), steps=9, batched=b) for b in (True, False))
    torch.testing.assert_close(batched.x, looped.x, rtol=1e-12, atol=1e-12)


def test_trees_keep_their_kind_shapes_and_dtypes() -> None:
    def objective(c: Candidate, given: dict[str, Tensor]) -> Tensor:
        return ((c.x - given["x"]) ** 2).sum() + (c.y - 1) ** 2

    start = Candidate(normal(2, 3, 4, 5).float(), normal(2, 3, name="y"))
    found = minimise(objective, start, ({"x": normal(2, 4, 5, name="g").float()},), optimiser=adam(0.1), steps=3)
    assert isinstance(found.x, Candidate)
    assert (found.x.x.shape, found.x.x.dtype) == (torch.Size([2, 3, 4, 5]), torch.float32)
    assert (found.x.y.shape, found.x.y.dtype) == (torch.Size([2, 3]), torch.float64)
    assert found.value.shape == (2, 3)
    assert isinstance(best_start(found).x, Candidate)
    assert best_start(found).x.x.shape == (2, 4, 5)


@pytest.mark.parametrize(
    ("dtype", "of_value"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_dtype_is_kept(dtype: torch.dtype, of_value: torch.dtype) -> None:
    found = minimise(lambda x: (x**2).sum(), torch.ones(1, 1, 3, dtype=dtype), optimiser=lbfgs(history=2), steps=2)
    assert (found.x.dtype, found.value.dtype, found.first_value.dtype) == (dtype, of_value, of_value)


def test_the_start_is_left_alone() -> None:
    start = normal(2, 2, 3).requires_grad_()
    copy = start.detach().clone()
    found = minimise(lambda x: (x**2).sum(), start, optimiser=sgd(0.1), steps=3)
    assert start.equal(copy)
    assert start.grad is None
    assert not found.x.requires_grad


def test_a_leaf_that_the_objective_ignores_stays() -> None:
    start = Candidate(torch.ones(1, 1, 2), torch.ones(1, 1, 2))
    found = minimise(lambda c: (c.x**2).sum(), start, optimiser=sgd(0.1), steps=3)
    assert found.x.y.equal(start.y)


def test_the_best_is_kept_when_steps_overshoot() -> None:
    # x goes 1, -1.2, 1.44, ...: every step is worse than the one before.
    found = minimise(lambda x: x**2, torch.ones(1, 1), optimiser=sgd(1.1), steps=5)
    assert found.x.item() == 1.0
    assert statuses(found) == ["NOT_REDUCED"]


def test_the_last_iterate_counts() -> None:
    found = minimise(lambda x: x**2, torch.ones(1, 1), optimiser=sgd(0.5), steps=1)
    assert (found.x.item(), found.value.item(), found.first_value.item()) == (0.0, 0.0, 1.0)


def test_no_steps_evaluate_the_start() -> None:
    found = minimise(lambda x: x**2, torch.full((1, 2), 3.0), optimiser=sgd(0.5), steps=0)
    assert (found.x.tolist(), found.value.tolist(), found.steps) == ([[3.0, 3.0]], [[9.0, 9.0]], 0)
    assert statuses(found) == ["NOT_REDUCED"] * 2


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("optimiser", [sgd(0.25), adam(0.1), lbfgs(history=2)], ids=str)
def test_lanes_that_stop_being_finite_are_frozen_and_the_others_go_on(optimiser: Optimiser, batched: bool) -> None:
    def objective(x: Tensor, wall: Tensor) -> Tensor:
        return (x**2).sum() + 0 * torch.sqrt(x - wall).sum()  # not a number left of the wall

    start = torch.full((3, 1, 2), 4.0)
    wall = torch.tensor([-100.0, 3.7, 5.0])
    found = minimise(objective, start, (wall,), optimiser=optimiser, steps=30, batched=batched)
    assert statuses(found) == ["REDUCED", "DIVERGED", "NEVER_FINITE"]
    assert (found.x[1] >= 3.7).all()
    assert torch.isfinite(found.value[:2]).all()
    assert found.value[2].isnan()
    assert found.x[2].equal(start[2])
    alone = minimise(objective, start[:1], (wall[:1],), optimiser=optimiser, steps=30, batched=batched)
    assert alone.x[0].equal(found.x[0])


def test_a_gradient_that_is_not_finite_freezes_a_lane_too() -> None:
    # The slope of the root is infinite at 0, where the value is a good one.
    found = minimise(lambda x: torch.sqrt(x).sum(), torch.tensor([[[0.0], [1.0]]]), optimiser=sgd(0.1), steps=2)
    assert statuses(found) == ["DIVERGED", "REDUCED"]
    assert found.value[0, 0] == 0


def test_a_frozen_lane_does_not_come_back() -> None:
    # Finite again further on: a lane that could move through the hole would find the lower side.
    def objective(x: Tensor) -> Tensor:
        return x + 0 * torch.where((x > 0) & (x < 0.5), NAN, 0.0)

    found = minimise(objective, torch.tensor([[1.0]]), optimiser=sgd(0.3), steps=9)
    assert statuses(found) == ["DIVERGED"]
    assert found.x.item() == pytest.approx(0.7)


def test_every_status_has_a_sentence() -> None:
    assert [status.value for status in Status] == [0, 1, 2, 3]
    for status in Status:
        assert Status(int(status)) is status
        assert status.sentence.endswith(".")


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=str)
def test_the_projection_is_respected(optimiser: Optimiser) -> None:
    start, given = bowls(width=3)
    found = minimise(
        bowl, start.clamp(0, 0.1), given, optimiser=optimiser, steps=40, project=lambda x: x.clamp(0.0, 0.1)
    )
    assert ((found.x >= 0) & (found.x <= 0.1)).all()


def test_a_projected_quadratic_ends_at_the_nearest_point_of_the_box() -> None:
    target = torch.tensor([[-1.0, 0.25, 3.0]], dtype=torch.float64)
    found = minimise(
        lambda x, t: ((x - t) ** 2).sum(),
        torch.full((1, 1, 3), 0.5, dtype=torch.float64),
        (target,),
        optimiser=sgd(0.2),
        steps=60,
        project=lambda x: x.clamp(0, 1),
    )
    torch.testing.assert_close(found.x[0], torch.tensor([[0.0, 0.25, 1.0]], dtype=torch.float64))


@pytest.mark.parametrize(("width", "programs"), [(5, 2), (8_001, 3), (30_000, 10), (100_000, 20)])
def test_a_cpu_takes_fewer_lanes_at_a_time_the_larger_they_are(width: int, programs: int) -> None:
    calls = 0

    def counted(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1  # once for all lanes of a program
        return (x**2).sum()

    minimise(counted, torch.ones(10, 2, width), optimiser=sgd(0.1), steps=2)
    assert calls == programs * 3


@pytest.mark.parametrize("room", [1, 2, 3])
def test_memory_that_runs_out_halves_the_chunk_and_changes_nothing(room: int) -> None:
    def crowded(x: Tensor, target: Tensor, curvature: Tensor) -> Tensor:
        return bowl(Crowded.apply(x, room), target, curvature)

    start, given = bowls(clients=5)
    whole = minimise(bowl, start, given, optimiser=adam(0.1), steps=6)
    assert_same(minimise(crowded, start, given, optimiser=adam(0.1), steps=6), whole)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")]
)
def test_memory_that_runs_out_half_way_starts_the_chunk_again(error: Exception) -> None:
    calls = 0

    def fails_once(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise error
        return (x**2).sum()

    start = normal(4, 1, 3)
    whole = minimise(lambda x: (x**2).sum(), start, optimiser=adam(0.1), steps=6)
    assert_same(minimise(fails_once, start, optimiser=adam(0.1), steps=6), whole)
    assert calls == 4 + 2 * 7  # three good ones and the failure, then two halves of seven evaluations


def test_memory_for_less_than_one_lane_says_what_to_do() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="single one; use fewer examples") as caught:
        minimise(lambda x: Crowded.apply(x, 0).sum(), torch.ones(2, 2, 3), optimiser=sgd(0.1), steps=3)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_other_errors_of_the_objective_come_through() -> None:
    def wrong(x: Tensor) -> Tensor:
        raise RuntimeError("size mismatch")

    with pytest.raises(RuntimeError, match="size mismatch"):
        minimise(wrong, torch.ones(2, 2, 3), optimiser=sgd(0.1), steps=3)


def test_best_start_takes_the_lowest_and_nan_last() -> None:
    value = torch.tensor([[2.0, 1.0, 3.0], [NAN, 5.0, NAN], [NAN, NAN, NAN], [4.0, 4.0, NAN]])
    places = torch.arange(12).reshape(4, 3)
    best = best_start(Solution({"x": places[..., None]}, value, value + 1, places, steps=3))
    assert best.status.tolist() == [1, 4, 6, 9]
    assert best.x["x"].tolist() == [[1], [4], [6], [9]]
    assert best.value.tolist()[:2] == [1.0, 5.0]
    assert math.isnan(best.value[2])
    assert (best.first_value[0], best.steps) == (2.0, 3)
    with pytest.raises(ValueError, match="call best_start once"):
        best_start(best)


def test_progress_is_told_the_best_so_far() -> None:
    told: list[tuple[int, int, float]] = []
    start = torch.tensor([[1.0], [3.0]])
    minimise(
        lambda x: x**2,
        start,
        optimiser=sgd(0.25),
        steps=5,
        progress=lambda *report: told.append(report),
        progress_every=2,
    )
    assert [(step, steps) for step, steps, _ in told] == [(2, 5), (4, 5), (5, 5)]
    assert [value for *_, value in told] == pytest.approx([5 * 0.25**2, 5 * 0.25**4, 5 * 0.25**5])


def test_random_objectives_are_refused_unless_asked_for() -> None:
    def objective(x: Tensor) -> Tensor:
        return ((x - torch.rand_like(x)) ** 2).sum()

    start = torch.zeros(2, 1, 3)
    with pytest.raises(RuntimeError, match="random"):
        minimise(objective, start, optimiser=sgd(0.1), steps=1)
    with torch.random.fork_rng(devices=[]):
        found = minimise(objective, start, optimiser=sgd(0.1), steps=1, randomness="same")
    assert found.x[0].equal(found.x[1])


@pytest.mark.parametrize(
    ("start", "options", "error", "message"),
    [
        (torch.ones(2, 1, 3, dtype=torch.long), {}, TypeError, r"floating-point tensor, got torch.int64; pass what"),
        ({"x": torch.ones(2, 1), "n": 3}, {}, TypeError, r"floating-point tensor, got int"),
        ((), {}, ValueError, r"at least one tensor, got none"),
        (torch.ones(2), {}, ValueError, r"same axes \(clients, starts\), got shapes \[\(2,\)\]"),
        ((torch.ones(2, 1), torch.ones(3, 1)), {}, ValueError, r"got shapes \[\(2, 1\), \(3, 1\)\]"),
        (torch.ones(0, 1, 3), {}, ValueError, r"got shapes \[\(0, 1, 3\)\]"),
        (torch.ones(2, 1), {"given": torch.ones(2)}, TypeError, r"tuple of trees, got Tensor; write `\(value,\)`"),
        (torch.ones(2, 1), {"given": (torch.ones(3),)}, ValueError, r"`given\[0\]` .* the 2 clients .* shape \(3,\)"),
        (torch.ones(2, 1), {"given": (torch.ones(2), "x")}, TypeError, r"`given\[1\]` .* got str; let the objective"),
        (torch.ones(2, 1), {"steps": -1}, ValueError, r"`steps` of at least 0, got -1"),
        (torch.ones(2, 1), {"chunk": 0}, ValueError, r"`chunk` of at least 1 lane, or None for all lanes, got 0"),
        (torch.ones(2, 1), {"progress_every": 0}, ValueError, r"`progress_every` of at least 1, got 0"),
        (torch.ones(2, 1), {"graph": "yes"}, ValueError, r"one of \('auto', 'always', 'never'\), got 'yes'"),
        (torch.ones(2, 1), {"project": lambda x: x[:, None]}, ValueError, r"`project` to keep the structure, shapes"),
    ],
)
def test_bad_arguments_are_named(start: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        minimise(lambda x, *given: x.sum(), start, **{"optimiser": sgd(0.1), "steps": 1, **options})


@pytest.mark.parametrize("batched", [True, False])
def test_bad_objectives_are_named(batched: bool) -> None:
    def run(objective: Any) -> None:
        minimise(objective, torch.ones(2, 1, 3), optimiser=sgd(0.1), steps=1, batched=batched)

    with pytest.raises(ValueError, match=r"scalar tensor for one lane, got shape \(3,\); sum"):
        run(lambda x: x)
    with pytest.raises(ValueError, match="scalar tensor for one lane, got tuple"):
        run(lambda x: (x.sum(), x.sum()))
    with pytest.raises(ValueError, match="got a constant"):
        run(lambda x: x.detach().sum())


def test_repeat_watches_every_time() -> None:
    seen: list[tuple[int, float]] = []
    state = torch.ones(1)
    end = repeat(lambda x: 2 * x, state, 3, watch=lambda time, x: seen.append((time, float(x))))
    assert seen == [(0, 2.0), (1, 4.0), (2, 8.0)]
    assert (state.item(), end.item()) == (1.0, 8.0)


@pytest.mark.parametrize("batched", [True, False])
def test_the_loop_reads_nothing_back_to_the_host(batched: bool) -> None:
    # Fake tensors have no numbers, so reading one raises; a CUDA graph could not capture it.
    with FakeTensorMode():
        found = minimise(
            lambda x, t: ((x - t) ** 2).sum(),
            torch.ones(2, 3, 4),
            (torch.zeros(2, 4),),
            optimiser=adam(0.1),
            steps=2,
            chunk=4,
            batched=batched,
            project=lambda x: x.clamp(0, 1),
        )
    assert found.x.shape == (2, 3, 4)


@needs_cuda
@pytest.mark.parametrize("optimiser", [*OPTIMISERS, cosine(lbfgs(history=2), steps=20)], ids=str)
@pytest.mark.parametrize("steps", [0, 2, 3, 20])
def test_captured_is_eager(optimiser: Optimiser, steps: int) -> None:
    start, given = bowls()
    start, given = start.cuda(), tuple(leaf.cuda() for leaf in given)
    captured, eager = (
        minimise(bowl, start, given, optimiser=optimiser, steps=steps, graph=graph, project=lambda x: x.clamp(-2, 2))
        for graph in ("always", "never")
    )
    torch.testing.assert_close(captured.x, eager.x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(captured.value, eager.value, rtol=1e-10, atol=1e-12)
    assert captured.status.equal(eager.status)
    assert captured.x.is_cuda


@needs_cuda
def test_captured_results_do_not_depend_on_the_chunk_and_the_graphs_are_freed() -> None:
    start, given = bowls()
    start, given = start.cuda(), tuple(leaf.cuda() for leaf in given)
    whole = minimise(bowl, start, given, optimiser=adam(0.1), steps=9, graph="always")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    chunked = minimise(bowl, start, given, optimiser=adam(0.1), steps=9, graph="always", chunk=2)
    torch.testing.assert_close(chunked.x, whole.x, rtol=1e-10, atol=1e-12)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + 2**21  # one small block of the allocator


@needs_cuda
def test_what_cannot_be_captured_goes_on_without_a_graph_and_says_so_once() -> None:
    def reads_back(x: Tensor) -> Tensor:
        return (x**2).sum() * float(torch.ones(1, device="cuda").item())

    start = normal(4, 1, 3).cuda()
    eager = minimise(reads_back, start, optimiser=adam(0.1), steps=9, graph="never")
    with pytest.warns(UserWarning, match="cannot be captured in a CUDA graph: .*; going on without a graph") as caught:
        fallen = minimise(reads_back, start, optimiser=adam(0.1), steps=9, chunk=2)
    assert len(caught) == 1
    torch.testing.assert_close(fallen.x, eager.x)
    with pytest.raises(RuntimeError, match="cannot be captured in a CUDA graph"):
        minimise(reads_back, start, optimiser=adam(0.1), steps=9, graph="always")
    # A failed capture leaves the device usable, for eager work and for the next capture.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        minimise(lambda x: (x**2).sum(), start, optimiser=adam(0.1), steps=9)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("chunk", [None, 1])
def test_a_clocked_objective_is_told_how_many_updates_were_made(batched: bool, chunk: int | None) -> None:
    target = normal(2, 3, name="target")

    def falling(x: Tensor, target: Tensor, updates: Tensor) -> Tensor:
        assert updates.shape == ()
        return (x * target).sum() * 0 + 10 - updates

    found = minimise(
        falling, normal(2, 2, 3), (target,), optimiser=sgd(0.1), steps=4, clocked=True, batched=batched, chunk=chunk
    )
    assert found.first_value.eq(10).all()
    assert found.value.eq(6).all()  # the last of five evaluations


def test_of_values_that_do_not_compare_the_last_candidate_is_kept() -> None:
    start, given = bowls()

    def rising(x: Tensor, target: Tensor, curvature: Tensor, updates: Tensor) -> Tensor:
        return (1 + updates) ** 3 * bowl(x, target, curvature)

    # Adam does not see a factor that is the same in all steps, and this one hardly.
    steps = [minimise(rising, start, given, optimiser=adam(0.1), steps=n, clocked=True) for n in (3, 4)]
    assert not steps[0].x.equal(steps[1].x)
    assert (steps[1].value > steps[0].value).all()


def test_a_clocked_lane_that_breaks_keeps_its_last_finite_candidate() -> None:
    def breaking(x: Tensor, updates: Tensor) -> Tensor:
        return torch.where(updates < 2, x, NAN).sum()

    found = minimise(breaking, torch.zeros(1, 1, 1), optimiser=sgd(1.0), steps=5, clocked=True)
    assert found.x.tolist() == [[[-1.0]]]
    assert statuses(found) == ["DIVERGED"]


def test_a_clock_that_nobody_reads_changes_nothing_where_every_step_is_better() -> None:
    start, given = bowls()
    plain = minimise(bowl, start, given, optimiser=sgd(0.02), steps=7)
    clocked = minimise(lambda *all_but: bowl(*all_but[:-1]), start, given, optimiser=sgd(0.02), steps=7, clocked=True)
    assert_same(plain, clocked)

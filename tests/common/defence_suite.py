"""What every defence must hold to; a new one enters the list in `tests/defences/test_defences.py` by one line."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from common.nets import IMAGE, flat, image_task, images, numbers
from seepage.defences import Defence, NoDefence, chain
from seepage.local import answer, local_update
from seepage.recipe import SGD, Recipe
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.task import Params

ONE, OTHER = Stream.from_seed(1), Stream.from_seed(2)
RECIPES = [Recipe(sends="gradient"), Recipe(SGD(0.5), epochs=2, batch_size=2)]
ANY = numbers(7, seed=3)


@dataclass(frozen=True)
class DefenceCase:
    """A defence that does something, and the settings of it that do nothing."""

    defence: Defence
    off: Defence

    def __str__(self) -> str:
        return str(self.defence)


@dataclass(frozen=True)
class Doubling(Defence):
    """Something after which nothing is the same, at every hook."""

    per_example = True
    per_step = True
    changes_weights = True
    name = "doubling"

    def on_data(self, examples: Examples, rng: Stream | None) -> Examples:
        return Examples(2 * examples.x + 1, examples.y)

    def on_example_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        return 2 * gradient + 1

    def on_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        return 2 * gradient + 1

    def on_update(self, update: Params, rng: Stream | None) -> Params:
        return {name: 2 * u + 1 for name, u in update.items()}

    def on_weights(self, weights: Params, rng: Stream | None) -> Params:
        return {name: 2 * w + 1 for name, w in weights.items()}

    def on_global(self, weights: Params, rng: Stream) -> Params:
        return {name: 2 * w + 1 for name, w in weights.items()}


def an_update(dtype: torch.dtype = torch.float64) -> Params:
    return {
        "w": numbers(4, 5, seed=1, dtype=dtype),
        "scalar": numbers(seed=2, dtype=dtype),
        "b": numbers(3, seed=3, dtype=dtype),
    }


def sent(defence: Defence, recipe: Recipe, rng: Stream) -> Params:
    if defence.changes_weights and recipe.sends == "gradient":
        pytest.skip("a defence of weights, where none are sent")
    task = image_task()
    return answer(task, task.params, images(5), recipe, defence, rng).update


def after_each_hook(defence: Defence, rng: Stream | None) -> list[Tensor]:
    """What every hook makes of the same things."""
    examples = defence.on_data(images(4), rng)
    return [
        examples.x,
        examples.y,
        defence.on_example_gradient(ANY.clone(), rng),
        defence.on_gradient(ANY.clone(), rng),
        flat(defence.on_update(an_update(), rng)),
        flat(defence.on_weights(an_update(), rng)),
    ]


def assert_all_close(got: list[Tensor], expected: list[Tensor]) -> None:
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-10, atol=1e-12)


class DefenceSuite:
    """One body per property; the fixture `case` runs through the list."""

    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.sends)
    def test_switched_off_it_gives_plain_training(self, case: DefenceCase, recipe: Recipe) -> None:
        torch.testing.assert_close(
            flat(sent(case.off, recipe, ONE)), flat(sent(NoDefence(), recipe, ONE)), rtol=1e-9, atol=1e-12
        )

    def test_switched_on_it_does_something(self, case: DefenceCase) -> None:
        if case.defence == case.off:
            pytest.skip("a defence that does nothing")
        assert not torch.allclose(flat(sent(case.defence, RECIPES[1], ONE)), flat(sent(NoDefence(), RECIPES[1], ONE)))

    def test_a_defence_of_weights_is_refused_where_none_are_sent(self, case: DefenceCase) -> None:
        if not case.defence.changes_weights:
            pytest.skip("a defence of updates")
        task = image_task()
        with pytest.raises(ValueError, match=f"{case.defence.name}.*expected sends = 'weights' or 'update'"):
            answer(task, task.params, images(2), RECIPES[0], case.defence, ONE)

    def test_the_expected_defence_draws_nothing(self, case: DefenceCase) -> None:
        expected = case.defence.expected
        without = after_each_hook(expected, None)
        for rng in (ONE, OTHER):
            assert_all_close(after_each_hook(expected, rng), without)
        assert expected.expected == expected

    def test_without_a_stream_it_is_its_expected_self(self, case: DefenceCase) -> None:
        assert_all_close(after_each_hook(case.defence, None), after_each_hook(case.defence.expected, None))

    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.sends)
    def test_a_stream_repeats_it(self, case: DefenceCase, recipe: Recipe) -> None:
        state = torch.get_rng_state()
        assert flat(sent(case.defence, recipe, ONE)).equal(flat(sent(case.defence, recipe, Stream.from_seed(1))))
        assert state.equal(torch.get_rng_state())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_names_their_order_shapes_and_types_are_kept(self, case: DefenceCase, dtype: torch.dtype) -> None:
        before = an_update(dtype)
        for rng in (None, ONE):
            for change in (case.defence.on_update, case.defence.on_weights):
                after = change(an_update(dtype), rng)
                assert [(n, u.shape, u.dtype) for n, u in after.items()] == [
                    (n, u.shape, u.dtype) for n, u in before.items()
                ]
            for hook in (case.defence.on_gradient, case.defence.on_example_gradient):
                assert hook(ANY.to(dtype), rng).dtype == dtype
                assert hook(ANY.to(dtype), rng).shape == ANY.shape

    def test_what_comes_in_is_left_alone(self, case: DefenceCase) -> None:
        update, examples, gradient = an_update(), images(4), ANY.clone()
        case.defence.on_update(update, ONE)
        case.defence.on_weights(update, ONE)
        case.defence.on_global(update, ONE)
        case.defence.on_data(examples, ONE)
        case.defence.on_gradient(gradient, ONE)
        case.defence.on_example_gradient(gradient, ONE)
        assert flat(update).equal(flat(an_update()))
        assert examples.x.equal(images(4).x)
        assert gradient.equal(ANY)

    def test_a_zero_update_stays_finite(self, case: DefenceCase) -> None:
        zero = {name: torch.zeros_like(u) for name, u in an_update().items()}
        for rng in (None, ONE):
            assert flat(case.defence.on_update(zero, rng)).isfinite().all()
            assert flat(case.defence.on_weights(zero, rng)).isfinite().all()

    def test_it_comes_before_what_follows_it_in_a_chain(self, case: DefenceCase) -> None:
        first, second = case.defence, Doubling()
        for one, other in ((first, second), (second, first)):
            chained = chain(one, other)
            examples = other.on_data(one.on_data(images(4), ONE / 0), ONE / 1)
            update = other.on_update(one.on_update(an_update(), ONE / 0), ONE / 1)
            weights = other.on_weights(one.on_weights(an_update(), ONE / 0), ONE / 1)
            seen = other.on_global(one.on_global(an_update(), ONE / 0), ONE / 1)
            assert_all_close(
                after_each_hook(chained, ONE),
                [
                    examples.x,
                    examples.y,
                    other.on_example_gradient(one.on_example_gradient(ANY, ONE / 0), ONE / 1),
                    other.on_gradient(one.on_gradient(ANY, ONE / 0), ONE / 1),
                    flat(update),
                    flat(weights),
                ],
            )
            assert_all_close([flat(chained.on_global(an_update(), ONE))], [flat(seen)])
            assert chained.expected == chain(one.expected, other.expected)
            assert chained.per_example
            assert chained.per_step
            assert chained.changes_weights

    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.sends)
    def test_an_attackers_simulation_of_it_is_differentiable(self, case: DefenceCase, recipe: Recipe) -> None:
        task, y = image_task(), images(3).y

        def value(x: Tensor) -> Tensor:
            update = flat(local_update(task, task.params, recipe.schedule(x, y), recipe, case.defence.expected))
            return (update * numbers(len(update), seed=5)).sum()

        x = numbers(3, *IMAGE).requires_grad_()
        (gradient,) = torch.autograd.grad(value(x), x)
        direction, h = numbers(3, *IMAGE, seed=6), 1e-6
        with torch.no_grad():
            difference = (value(x + h * direction) - value(x - h * direction)) / (2 * h)
        torch.testing.assert_close((gradient * direction).sum(), difference, rtol=1e-5, atol=1e-8)

    def test_an_attackers_simulation_of_it_is_mapped_over_clients(self, case: DefenceCase) -> None:
        task, recipe = image_task(), RECIPES[1]
        x, y = numbers(2, 3, *IMAGE), images(3).y

        def simulate(x: Tensor) -> Tensor:
            return flat(local_update(task, task.params, recipe.schedule(x, y), recipe, case.defence.expected))

        torch.testing.assert_close(vmap(simulate)(x), torch.stack([simulate(one) for one in x]))

    def test_it_is_a_value(self, case: DefenceCase) -> None:
        assert hash(case.defence) == hash(case.defence)
        assert type(case.defence).__name__ in str(case.defence)
        assert isinstance(case.defence.name, str)

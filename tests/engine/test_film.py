from __future__ import annotations

import math

import pytest
import torch

from seepage.engine import film as film_module
from seepage.engine.film import Film, current_film, filming, shown_as
from seepage.engine.minimise import minimise
from seepage.engine.optimisers import sgd
from seepage.spec import DataSpec

SPEC = DataSpec((1, 2, 2), classes=2)


def searched(film: Film, start: object, chunk: int | None = None, steps: int = 20) -> torch.Tensor:
    """Towards 0.5, of which each step goes half of the way."""
    with filming(film):
        found = minimise(
            lambda x: sum(((leaf - 0.5) ** 2).sum() for leaf in (x.values() if isinstance(x, dict) else [x])),
            start,
            optimiser=sgd(0.25),
            steps=steps,
            chunk=chunk,
        )
    return found.x["x"] if isinstance(found.x, dict) else found.x  # type: ignore[no-any-return]


def test_frames_are_the_way_of_every_lane_whatever_the_chunk() -> None:
    start = torch.rand(3, 2, 4, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    whole, pieces = Film(SPEC), Film(SPEC)
    answer = searched(whole, start)
    searched(pieces, start, chunk=4)
    assert whole.moments[0] == 0
    assert whole.moments[-1] == 20
    assert len(whole.moments) <= film_module.MOMENTS
    assert whole.frames is not None
    assert pieces.frames is not None
    assert torch.equal(whole.frames, pieces.frames)
    expected = torch.stack([0.5 + (start - 0.5) * 0.5**moment for moment in whole.moments])
    assert (whole.frames.float() - expected).abs().max() <= 2**-11
    assert (whole.frames[-1].float() - answer).abs().max() <= 2**-11


def test_images_are_found_among_what_is_searched_for() -> None:
    film = Film(SPEC)
    start = {"alpha": torch.zeros(1, 1), "x": torch.zeros(1, 1, 3, 1, 2, 2)}
    searched(film, start)
    assert film.frames is not None
    assert film.frames.shape[1:] == (1, 1, 3, 1, 2, 2)


def test_what_is_no_image_or_too_large_is_not_filmed(monkeypatch: pytest.MonkeyPatch) -> None:
    film = Film(SPEC)
    searched(film, torch.zeros(1, 1, 5))
    assert film.frames is None
    monkeypatch.setattr(film_module, "MOST_BYTES", 10)
    searched(film, torch.zeros(1, 1, 3, 1, 2, 2))
    assert film.frames is None


def test_what_is_no_number_or_too_large_for_a_frame_can_be_shown() -> None:
    film = Film(SPEC)
    start = torch.tensor([math.nan, math.inf, 1e6, 0.5]).reshape(1, 1, 1, 1, 2, 2)
    searched(film, start, steps=0)
    assert film.frames is not None
    assert film.frames[0].flatten().tolist() == [0.0, 65504.0, 65504.0, 0.5]


def test_filming_ends_and_changes_nothing() -> None:
    start = torch.rand(2, 1, 3, 1, 2, 2, generator=torch.Generator().manual_seed(1))
    with_film = searched(Film(SPEC), start)
    assert current_film() is None
    plain = minimise(lambda x: ((x - 0.5) ** 2).sum(), start, optimiser=sgd(0.25), steps=20).x
    assert torch.equal(with_film, plain)


def test_what_stands_for_images_is_shown_as_these_whatever_the_chunk() -> None:
    start = torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(2))  # a shade for each of four images
    first = torch.arange(6.0) / 10  # of each lane something of its own

    def images(shades: torch.Tensor, begin: int) -> torch.Tensor:
        own = shades * first[begin : begin + len(shades), None]
        return own[..., None, None, None].expand(-1, -1, 1, 2, 2)

    for chunk in (None, 4):
        film = Film(SPEC)
        with shown_as(images):
            answer = searched(film, start, chunk)
        assert film.frames is not None
        expected = (answer * first.reshape(3, 2, 1))[..., None, None, None].expand(-1, -1, -1, 1, 2, 2)
        assert (film.frames[-1].float() - expected).abs().max() <= 2**-11
    after = Film(SPEC)
    searched(after, start)
    assert after.frames is None


def test_lanes_that_are_single_images_are_those_of_their_client() -> None:
    start = torch.rand(6, 2, 3, generator=torch.Generator().manual_seed(3))  # two clients with three images each
    film = Film(SPEC)
    with shown_as(lambda z, _: z.mean(-1)[:, None, None, None].expand(-1, 1, 2, 2), clients=2):
        answer = searched(film, start)
    assert film.frames is not None
    assert film.frames.shape[1:] == (2, 1, 6, 1, 2, 2)
    shades = film.frames[-1, :, 0, :, 0, 0, 0].reshape(6, 2)
    assert (shades - answer.mean(-1)).abs().max() <= 2**-11

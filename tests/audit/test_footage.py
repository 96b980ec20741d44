from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from seepage.audit.footage import footage, gallery, telling, trimmed
from seepage.audit.table import Footage, Pictures, Table
from seepage.engine.film import Film
from seepage.spec import DataSpec

SPEC = DataSpec((1, 2, 2), classes=2)


def film_of(frames: torch.Tensor) -> Film:
    film = Film(SPEC)
    film.frames = frames.half()
    film.moments = list(range(len(frames)))
    return film


def images(*shades: float) -> torch.Tensor:
    return torch.stack([torch.full((1, 2, 2), shade) for shade in shades])


def test_the_way_follows_the_restart_and_the_order_of_the_answer() -> None:
    # (moments, clients, starts, n, …): the second restart ends at the answer, in another order.
    wrong = torch.stack([images(0.1, 0.1), images(0.1, 0.2)])
    right = torch.stack([images(0.5, 0.6), images(0.8, 0.4)])
    frames = torch.stack([wrong, right], 1)[:, None]
    found = footage(film_of(frames), SPEC, 0, images(0.4, 0.8), np.array([30.0, 20.0]))
    assert found is not None
    assert found.of.tolist() == [0, 1]
    assert found.way[..., 0, 0, 0].tolist() == [[153, 102], [128, 204]]
    assert found.epochs.shape[1] == 0


def test_epochs_are_shown_one_by_one_and_their_mean_on_the_way() -> None:
    # (moments, clients, starts, epochs, n, …), each epoch in an order of its own
    last = torch.stack([images(0.2, 0.875), images(0.75, 0.4)])
    frames = torch.stack([torch.zeros_like(last), last])[:, None, None]
    found = footage(film_of(frames), SPEC, 0, images(0.3, 0.8125), np.array([10.0, 10.0]))
    assert found is not None
    assert found.way[:, -1, 0, 0, 0].tolist() == [76, 207]  # (0.2 + 0.4) / 2 and (0.875 + 0.75) / 2
    assert found.epochs[..., 0, 0, 0].tolist() == [[51, 102], [223, 191]]


def test_pixels_are_shown_in_the_range_that_is_asked_for() -> None:
    frames = images(0.5, 1.0)[None, None, None]
    wide = DataSpec((1, 2, 2), classes=2, low=-1.0, high=3.0)
    found = footage(film_of(frames), wide, 0, images(0.5, 1.0), np.array([30.0, 20.0]))
    assert found is not None
    assert found.way[..., 0, 0, 0].tolist() == [[96], [128]]  # 1.5 / 4 and 2 / 4


def test_where_nothing_was_answered_or_filmed_there_is_no_film() -> None:
    frames = torch.zeros(1, 1, 1, 1, 1, 2, 2)
    assert footage(film_of(frames), SPEC, 0, images(math.nan), np.array([math.nan])) is None
    assert footage(film_of(frames), SPEC, 1, images(0.5), np.array([1.0])) is None
    assert footage(Film(SPEC), SPEC, 0, images(0.5), np.array([1.0])) is None


@pytest.mark.parametrize("n", [1, 12, 13, 200])
def test_the_best_are_best_and_the_worst_worst(n: int) -> None:
    values = np.random.default_rng(n).permutation(n).astype(float)
    found = telling(values)
    assert len(found) == min(n, 12)
    worst = [values[i] for i, word in found.items() if word == "worst"]
    best = [values[i] for i, word in found.items() if word == "best"]
    assert best == sorted(values, reverse=True)[: len(best)]
    assert worst == sorted(values, reverse=True)[n - len(worst) :]


def test_every_client_has_a_picture_in_the_gallery() -> None:
    clients = [f"c{i // 10}" for i in range(200)]
    found = gallery(np.arange(200.0), clients)
    assert {clients[i] for i in found} == set(clients)


def test_films_survive_the_disk_and_the_joining_of_clients(tmp_path: object) -> None:
    shape = (2, 2, 2, 1)
    parts = []
    for shade in (10, 20):
        film = Footage(
            np.array([1]),
            np.array([0, 5]),
            np.full((1, 2, 2, 2, 1), shade, np.uint8),
            np.zeros((1, 0, 2, 2, 1), np.uint8),
        )
        nothing = np.zeros(shape, np.uint8)
        parts.append(Pictures(["a"] * 2, ["0", "1"], nothing, nothing, np.array([1.0, 2.0]), film))
    joined = trimmed(Pictures.join(parts))
    table = Table(tmp_path)  # type: ignore[arg-type]
    table.write("t", [], joined, {})
    read = table.pictures("t")
    assert read is not None
    assert read.footage is not None
    assert read.footage.of.tolist() == [1, 3]
    assert read.footage.way[:, 0, 0, 0, 0].tolist() == [10, 20]
    assert read.footage.moments.tolist() == [0, 5]


def test_of_thousands_of_films_those_of_the_gallery_are_kept() -> None:
    n = 300
    nothing = np.zeros((n, 2, 2, 1), np.uint8)
    film = Footage(np.arange(n), np.array([0]), nothing[:, None], nothing[:, None][:, :0])
    kept = trimmed(Pictures(["a"] * n, ["0"] * n, nothing, nothing, np.arange(n, dtype=float), film)).footage
    assert kept is not None
    assert len(kept.of) == 12

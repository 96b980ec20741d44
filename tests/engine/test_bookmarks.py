"""A search that is killed goes on where it stood, and ends where it would have ended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from seepage.engine.bookmarks import Bookmarks, bookmarking, current_bookmarks
from seepage.engine.film import Film, filming
from seepage.engine.minimise import Solution, minimise
from seepage.engine.optimisers import Optimiser, adam, cosine, sgd
from seepage.engine.progress import watching
from seepage.spec import DataSpec

STEPS = 40
TARGET = torch.linspace(-1, 1, 12).reshape(3, 1, 1, 2, 2)  # clients, one image of 2 × 2 each


class Counted:
    """A valley without an end that is reached exactly; counts how often anybody looked at it."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self, x: Tensor, target: Tensor) -> Tensor:
        self.looks += 1
        return (x - target).square().sum().add(0.1).sqrt() + 0.1 * x.sin().sum()


def searched(
    objective: Counted, chunk: int | None = None, steps: int = STEPS, optimiser: Optimiser | None = None
) -> Solution:
    return minimise(
        objective,
        torch.zeros(3, 2, 1, 1, 2, 2) + torch.arange(2.0).reshape(1, 2, 1, 1, 1, 1),
        (TARGET,),
        optimiser=optimiser or cosine(adam(0.1), steps),
        steps=steps,
        chunk=chunk,
    )


def killed_at(folder: Path, step: int, chunk: int | None = None, every: float = 0.0) -> None:
    def interrupt(now: int, steps: int, value: float) -> None:
        if now >= step:
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        bookmarking(Bookmarks(folder, every=every)),
        watching(interrupt),
    ):
        searched(Counted(), chunk=chunk)


@pytest.mark.parametrize("chunk", [None, 4])
def test_a_killed_search_ends_where_it_would_have_ended_and_looks_less_often(tmp_path: Path, chunk: int | None) -> None:
    whole = searched(first := Counted(), chunk=chunk)
    killed_at(tmp_path / "trial", 20, chunk)
    with bookmarking(Bookmarks(tmp_path / "trial", every=0.0)):
        rest = searched(second := Counted(), chunk=chunk)
    for name in ("x", "value", "first_value", "status"):
        assert torch.equal(getattr(rest, name), getattr(whole, name)), name
    assert second.looks < first.looks
    assert rest.steps == STEPS


def test_the_second_search_of_an_attack_goes_on_by_itself(tmp_path: Path) -> None:
    alone = [searched(Counted()), searched(Counted(), steps=30)]
    folder = tmp_path / "trial"

    def both() -> None:
        with bookmarking(Bookmarks(folder, every=0.0)):
            searched(Counted())
            searched(Counted(), steps=30)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        both()
    assert sorted(file.name for file in folder.iterdir()) == ["search-1-0-6.safetensors", "search-2-0-6.safetensors"]
    with bookmarking(Bookmarks(folder, every=0.0)):
        again = [searched(looks := Counted()), searched(Counted(), steps=30)]
    assert looks.looks <= 2
    for one, other in zip(alone, again, strict=True):
        assert torch.equal(one.x, other.x)


def test_what_belongs_to_another_search_or_is_broken_is_not_read(tmp_path: Path) -> None:
    other, shorter = searched(Counted(), optimiser=sgd(0.1)), searched(Counted(), steps=30)
    killed_at(tmp_path / "a", 20)
    with bookmarking(Bookmarks(tmp_path / "a")):
        assert torch.equal(searched(Counted(), optimiser=sgd(0.1)).x, other.x)
    killed_at(tmp_path / "b", 20)
    with bookmarking(Bookmarks(tmp_path / "b")):
        assert torch.equal(searched(Counted(), steps=30).x, shorter.x)
    killed_at(tmp_path / "c", 20)
    (file,) = (tmp_path / "c").iterdir()
    file.write_bytes(file.read_bytes()[:-10])
    with bookmarking(Bookmarks(tmp_path / "c")):
        assert torch.equal(searched(Counted()).x, searched(Counted()).x)


def test_bookmarks_are_forgotten_with_the_attack_and_stay_where_it_is_interrupted(tmp_path: Path) -> None:
    folder = tmp_path / "halfway" / "trial"
    killed_at(folder, 20)
    assert folder.is_dir()
    with bookmarking(Bookmarks(folder)):
        searched(Counted())
    assert not (tmp_path / "halfway").exists()
    killed_at(folder, 20)
    with pytest.raises(RuntimeError), bookmarking(Bookmarks(folder)):
        raise RuntimeError
    assert not folder.exists()
    assert current_bookmarks() is None


def test_short_searches_and_large_ones_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(tmp_path / "short", 20, every=60.0)
    assert not (tmp_path / "short").exists()
    monkeypatch.setattr("seepage.engine.bookmarks.MOST_BYTES", 10)
    killed_at(tmp_path / "large", 20)
    assert not (tmp_path / "large").exists()


def test_a_search_outlives_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # where a folder is expected
    with pytest.warns(UserWarning, match="cannot be kept"), bookmarking(Bookmarks(tmp_path / "file" / "x", every=0.0)):
        found = searched(Counted())
    assert torch.equal(found.x, searched(Counted()).x)


def test_the_film_of_a_search_that_went_on_begins_there(tmp_path: Path) -> None:
    spec = DataSpec((1, 2, 2), classes=2)
    whole, rest = Film(spec), Film(spec)
    with filming(whole):
        searched(Counted())
    killed_at(tmp_path / "trial", 20)
    with filming(rest), bookmarking(Bookmarks(tmp_path / "trial")):
        searched(Counted())
    assert whole.frames is not None
    assert rest.frames is not None
    assert 0 < len(rest.moments) < len(whole.moments)
    assert rest.moments == whole.moments[-len(rest.moments) :]
    assert torch.equal(rest.frames, whole.frames[-len(rest.moments) :])

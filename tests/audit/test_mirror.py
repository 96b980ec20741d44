"""A copy elsewhere from which another machine goes on."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from pandas.testing import assert_frame_equal

from common.audits import perform, tiny
from seepage.audit.mirror import Mirror
from seepage.audit.values import SpecError


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_another_machine_goes_on_where_the_first_stopped(kind: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path if kind == 'file' else ''}/bucket/audit"
    experiment = tiny(defence=["none", "clip"], accuracy=True)
    first = Mirror(url, tmp_path / "first")
    before = perform(experiment, first.folder, after=[first.landed])
    first.close()
    store, root = fsspec.core.url_to_fs(url)
    there = sorted(path.removeprefix(f"{root}/") for path in store.find(root))
    # Nothing but results: neither captures, nor secrets, nor halves of files.
    assert {path.split("/")[0] for path in there} == {"experiment.json", "notes", "pictures", "rows"}
    assert sum(path.startswith("rows/") for path in there) == 4

    second = Mirror(url, tmp_path / "second")
    assert second.fetch() == 4
    assert second.fetch() == 0
    events: list[str] = []
    after = perform(experiment, second.folder, listener=lambda *event: events.append(event[-1]))
    assert [event for event in events if not event.startswith("note")] == ["skip"] * 4
    assert_frame_equal(after.read(), before.read())
    trial = next(experiment.trials())
    assert (after.pictures(trial.digest).truth == before.pictures(trial.digest).truth).all()
    if kind == "memory":
        store.rm("/bucket", recursive=True)


def test_a_place_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--mirror: expected an address that fsspec can open, got 'nowhere://a'"):
        Mirror("nowhere://a", tmp_path).fetch()

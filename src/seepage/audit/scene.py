"""From a trial to what went over the wire: data, clients, module, rounds.

Captures and secrets are kept on disk under the digest of what decides them, so that many attacks on one federation play
it once, and a user can look at the very messages that were attacked.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seepage.audit.experiment import Trial, Watch
from seepage.audit.own_code import called, imported
from seepage.audit.pretraining import Trained, pretrain
from seepage.audit.values import SpecError, digest
from seepage.capture import Capture, Secret, read_capture, read_secret, write_capture, write_secret
from seepage.data import Dataset, load
from seepage.data.partition import IID, ByOwner, Dirichlet, DistinctLabels, Partition, partition
from seepage.models import build as build_model
from seepage.recipe import Recipe
from seepage.rounds import Federation, Round, join_rounds, overhear, play, trained_together
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.task import ModuleError, Task, TooFewOutputs
from seepage.threat import Sensitive, Setting

__all__ = ["Scene", "captured", "forget_scenes", "played", "set_scene"]


@dataclass(frozen=True, eq=False)
class Scene:
    """A federation ready to play; `taught` is what its model is pre-trained on."""

    trial: Trial
    dataset: Dataset
    setting: Setting
    clients: tuple[Examples, ...]
    held_out: Examples
    taught: Examples
    rng: Stream

    def rounds(self, *, measured: bool = True, begin: Trained | None = None, first: int = 0) -> Iterator[Round]:
        """Play it, with accuracy after each round where that is asked for: it may cost as much as the round.

        With `begin`, the model before round number `first`, what was played until then is not played again.
        """
        begin = begin or self.beginning()
        return play(
            *self._players,
            defence=self.trial.defence,
            held_out=self.held_out if measured else None,
            params=begin.params,
            buffers=begin.buffers,
            first=first,
        )

    def messages(self, which: range) -> list[tuple[Capture, Secret]]:
        """Those at positions `which` of the first round; nobody else is trained."""
        begin = self.beginning()
        return overhear(*self._players, which, defence=self.trial.defence, params=begin.params, buffers=begin.buffers)

    @property
    def one_by_one(self) -> bool:
        """Whether a message takes no more than the training of those who speak in it."""
        trial, task = self.trial, self.setting.task
        return trial.watch.rounds.stop == 1 and not trained_together(task, task.params, trial.federation, trial.defence)

    @property
    def _players(self) -> tuple[Task, tuple[Examples, ...], Recipe, Federation, Stream]:
        trial = self.trial
        return self.setting.task, self.clients, trial.recipe, trial.federation, self.rng / "federation"

    def beginning(self) -> Trained:
        """The global model before the first round; pre-trained once per process where the experiment says so."""
        task, how = self.setting.task, self.trial.model.pretraining
        if how.epochs == 0:
            return Trained(task.params, task.buffers)
        device = self.held_out.x.device
        key = f"{digest((self.trial.data, self.trial.model, self.trial.seed))} {device}"
        if key not in _TRAINED:
            _TRAINED.clear()  # trials of one model follow each other: one is enough to remember
            _TRAINED[key] = pretrain(task, self.taught, how, self.rng / "pretraining")
        return _TRAINED[key]


_TRAINED: dict[str, Trained] = {}


_SET: dict[str, Scene] = {}


def set_scene(trial: Trial, device: torch.device, folder: str | Path | None) -> Scene:
    """Load, deal and build all that `trial` names; what the last one named is at hand."""
    key = f"{digest(replace(trial, case='', watch=Watch(), **_UNSEEN))} {device} {folder}"
    if key not in _SET:
        scene = _set_scene(trial, device, folder)
        _SET.clear()  # trials of one federation follow each other: one is enough to remember
        _SET[key] = scene
    known = _SET[key]
    # Whoever comes next gets a module through which nothing has passed.
    return replace(known, trial=trial, setting=replace(known.setting, task=known.setting.task.fresh()))


# What does not change the federation, but only who looks at it.
_UNSEEN: dict[str, Any] = {
    "threshold": 0.0,
    "attack": None,
    "threat": None,
    "first": 0,
    "last": 0,
    "metrics": (),
    "label": "",
}


def forget_scenes() -> None:
    """Build the next one anew, as the user's own code or files may have changed."""
    _SET.clear()


def _set_scene(trial: Trial, device: torch.device, folder: str | Path | None) -> Scene:
    root = Stream.from_seed(trial.seed)
    dataset = _dataset(trial.data.name, trial.data.raw, trial.data.size, None if folder is None else str(folder))
    held, held_out = (dataset.train, dataset.test) if trial.data.split == "train" else (dataset.test, dataset.train)
    if trial.data.public >= len(held_out):
        raise SpecError(
            f"data.public: expected less than the {len(held_out)} held-out examples, got {trial.data.public}"
        )
    shown = len(held_out) - trial.data.public
    dtype = {"float32": torch.float32, "float64": torch.float64}[trial.data.dtype]
    public = held_out[shown:].to(device, dtype) if trial.data.public else None
    how = trial.model.pretraining
    taught = round(how.share * shown) if how.epochs else 0
    sensitive = _sensitive(dataset, trial.data.sensitive) if trial.data.sensitive is not None else None
    if sensitive is not None:
        sensitive = replace(
            sensitive, missing=tuple(_sensitive(dataset, name, "missing") for name in trial.data.missing)
        )
    module = trial.defence.on_module(_module(trial, dataset, root / "model"), root / "module")
    try:
        task = Task(module.to(device, dtype), dataset.spec)
    except TooFewOutputs as error:
        raise TooFewOutputs(f"model.options: {error} (options are the arguments of {trial.model.name})") from error
    except ModuleError as error:
        raise ModuleError(f"model.name: {trial.model.name}: {error}") from error
    return Scene(
        trial,
        dataset,
        Setting(task, trial.recipe, trial.defence, public, sensitive, None if folder is None else Path(folder)),
        tuple(part.to(device, dtype) for part in _deal(trial, dataset, held, root / "partition")),
        held_out[taught:shown].to(device, dtype),
        held_out[:taught].to(device, dtype),
        root,
    )


@lru_cache(maxsize=4)
def _dataset(name: str, raw: bool, size: int | None, folder: str | None) -> Dataset:
    dataset = _own_data(name) if ":" in name else load(name, folder)
    try:
        dataset = dataset.normalised_by() if raw else dataset
    except ValueError as error:
        raise SpecError(f"data.raw: {error}") from error
    try:
        return dataset if size is None else dataset.resized(size)
    except ValueError as error:
        raise SpecError(f"data.size: {error}") from error


def _own_data(name: str) -> Dataset:
    made = called(imported(name, "data.name"), name, "data.name", "write a function without arguments")
    if not isinstance(made, Dataset):
        raise SpecError(f"data.name: expected {name} to return a seepage.data.Dataset, got {type(made).__name__}")
    _check_range(made, name)
    return made


def _check_range(dataset: Dataset, name: str) -> None:
    """Images that were not divided by 255, say, would be clipped to the range of the spec wherever they are seen."""
    spec = dataset.spec
    if not spec.is_image or not len(dataset.train):
        return
    pixels = spec.pixels(dataset.train.x)
    low, high, slack = float(pixels.min()), float(pixels.max()), 0.05 * (spec.high - spec.low)
    if not spec.low - slack <= low <= high <= spec.high + slack:
        raise SpecError(
            f"data.name: {name}: expected raw values from spec.low to spec.high, {spec.low:g} to {spec.high:g}, "
            f"got {low:.4g} to {high:.4g}; divide pixels of 0 to 255 by 255 before `spec.normalise`, "
            "or correct `low`, `high`, `mean` and `std` of the spec"
        )


def _sensitive(dataset: Dataset, name: str, key: str = "sensitive") -> Sensitive:
    try:
        column = dataset.column(name)
    except KeyError as error:
        raise SpecError(f"data.{key}: {error.args[0]}") from error
    if column.kind == "numeric":
        spread = dataset.train.x[..., column.features]
        mean, deviation = spread.mean(), spread.std()
        return Sensitive(
            name, column.features, torch.stack([mean - deviation, mean + deviation])[:, None], numeric=True
        )
    values = torch.eye(len(column.values))
    return Sensitive(name, column.features, values[:, 1:] if column.kind == "binary" else values)


def _module(trial: Trial, dataset: Dataset, rng: Stream) -> nn.Module:
    name, options = trial.model.name, trial.model.options
    if ":" not in name:
        try:
            return build_model(name, dataset.spec, rng, **options)
        except ValueError as error:
            raise SpecError(f"model: {error}") from error
    # The user's own code may draw from the global generator: it gets one of ours and the global one is put back.
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(rng.seed)
        fix = "give its arguments as options = { name = value } under [model]"
        module = called(imported(name, "model.name"), name, "model.name", fix, **options)
    if not isinstance(module, nn.Module):
        raise SpecError(f"model.name: expected {name} to return an nn.Module, got {type(module).__name__}")
    return module


def _deal(trial: Trial, dataset: Dataset, held: Examples, rng: Stream) -> list[Examples]:
    count, each, skip = trial.clients.count, trial.clients.examples, trial.clients.skip
    if skip >= len(held):
        raise SpecError(f"clients.skip: expected less than the {len(held)} examples there are, got {skip}")
    held = held[skip:]
    if trial.clients.partition == "stored":
        each = each or max(1, len(held) // count)
        if count * each > len(held):
            raise SpecError(
                f"clients: expected at most {len(held)} examples in all, "
                f"got {count} clients with {each} each; lower `count` or `examples`"
            )
        return [held[i * each : (i + 1) * each] for i in range(count)]
    owner = dataset.train_owner if trial.data.split == "train" else dataset.test_owner
    owner = None if owner is None else owner[skip:]
    ways: dict[str, Partition] = {
        "distinct": DistinctLabels(),
        "iid": IID(),
        "dirichlet": Dirichlet(trial.clients.alpha),
        "owner": ByOwner(),
    }
    try:
        how, fewer = ways[trial.clients.partition], trial.clients.fewer
        return [held[which] for which in partition(held, owner, how, count, each, fewer=fewer, rng=rng)]
    except ValueError as error:
        raise SpecError(f"clients: {error}") from error


def played(scene: Scene) -> list[tuple[Capture, Secret]]:
    """What was visible in the watched rounds of those who answered in the last of them, and the secrets behind it."""
    seen = scene.trial.watch.rounds
    rounds = [r for r in islice(scene.rounds(measured=False), seen.stop) if r.number in seen]
    joined = {capture.client: capture for capture in join_rounds([c for r in rounds for c in r.captures])}
    last = rounds[-1]
    return [(joined[c.client], secret) for c, secret in zip(last.captures, last.secrets, strict=True)]


def captured(scene: Scene, folder: Path, only: slice = slice(None)) -> list[tuple[Capture, Secret]]:
    """What `played` gives, or `only` some of it; played once, then read from `folder`."""
    home, which = folder / scene.trial.scene, range(scene.trial.messages)[only]
    if scene.one_by_one and len(which) < scene.trial.messages and not home.exists():
        home, only = home.with_name(f"{home.name}-{which.start}-{which.stop}"), slice(None)
        if not home.exists():
            _keep(scene.messages(which), home)
    elif not home.exists():
        _keep(played(scene), home)
    secrets = sorted((home / "secrets").iterdir())[only]
    return [(c, read_secret(s)) for c, s in zip(read_capture(home / "capture", only), secrets, strict=True)]


def _keep(pairs: Sequence[tuple[Capture, Secret]], home: Path) -> None:
    """Write them under `home`, whole or not at all."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".") as scratch:
        building = Path(scratch) / "scene"
        write_capture(building / "capture", [capture for capture, _ in pairs])
        for i, (_, secret) in enumerate(pairs):
            write_secret(building / "secrets" / f"{i:08d}.safetensors", secret)
        try:
            os.rename(building, home)
        except OSError:
            if not home.exists():  # another process may have been first, with the same bytes
                raise

"""The one loop of training: steps, checkpoints from which it goes on, and reports."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from seepage.perceptual import LpipsWeights
from seepage.streams import Stream
from seepage.train.patch_gan import PatchGan

__all__ = ["CheckpointBroken", "Learners", "Lesson", "Listener", "Training", "halves", "some", "train"]

Listener = Callable[[int, int, dict[str, float]], None]


class CheckpointBroken(ValueError):
    """A checkpoint that does not belong to this training."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a network that makes images is trained; each kind adds knobs of its own.

    Args:
        steps: of Adam.
        batch: images per step.
        lr: first learning rate; it falls as half a cosine to a hundredth.
        perceptual: weight of LPIPS beside the mean absolute error.
        adversarial: weight of a PatchGAN's verdict.
        seed: of everything random.
    """

    steps: int = 8000
    batch: int = 32
    lr: float = 1e-3
    perceptual: float = 0.0
    adversarial: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1 or self.lr <= 0:
            raise ValueError(
                "expected `steps` and `batch` of at least 1 and `lr` above 0, "
                f"got {self.steps}, {self.batch} and {self.lr}"
            )
        if self.perceptual < 0 or self.adversarial < 0:
            raise ValueError(
                f"expected weights of at least 0, got `perceptual` {self.perceptual}, `adversarial` {self.adversarial}"
            )


Net = TypeVar("Net", bound=nn.Module)


class Learners(Generic[Net]):
    """A network and its judge with their optimisers: all that a training changes, and all that a checkpoint holds.

    Args:
        how: knobs.
        name: of what is learnt; its random numbers depend on it and on the seed alone.
        make: the network with its first weights.
        device: where they learn.
        lpips: weights of LPIPS, for a `perceptual` above 0.
    """

    def __init__(
        self, how: Training, name: str, make: Callable[[], Net], device: torch.device, lpips: LpipsWeights | None
    ) -> None:
        if how.perceptual and lpips is None:
            raise ValueError("expected `lpips` weights for a `perceptual` above 0, got none; run `seepage fetch lpips`")
        self.how, self.device = how, device
        self.lpips = None if lpips is None else lpips.to(device)
        self.rng = Stream.from_seed(how.seed) / name
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed((self.rng / "weights").seed)
            self.net, self.judge = make().to(device), PatchGan().to(device)
        self.modules: dict[str, nn.Module] = {"net": self.net, "judge": self.judge}
        # Adversaries chase each other with less momentum.
        self.optimisers = {
            name: torch.optim.Adam(module.parameters(), how.lr, betas=(0.5 if name == "judge" else 0.9, 0.99))
            for name, module in self.modules.items()
        }

    def draw(self, name: str | int) -> torch.Generator:
        """Random numbers of that name, on the device."""
        return torch.Generator(self.device).manual_seed((self.rng / name).seed)

    def begin(self, step: int) -> None:
        """Set the learning rate of a step."""
        lr = self.how.lr * (0.01 + 0.99 * (1 + math.cos(math.pi * step / self.how.steps)) / 2)
        for optimiser in self.optimisers.values():
            for group in optimiser.param_groups:
                group["lr"] = lr

    def step(self, name: str, loss: Tensor) -> None:
        """One network makes a step down a loss."""
        optimiser = self.optimisers[name]
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(optimiser.param_groups[0]["params"], 1.0)
        optimiser.step()

    def write(self, path: Path, done: int, about: dict[str, str]) -> None:
        """Everything as plain tensors: a checkpoint can be read without running what is in it."""
        tensors: dict[str, Tensor] = {}
        for name, module in self.modules.items():
            tensors |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
            for i, slots in self.optimisers[name].state_dict()["state"].items():
                tensors |= {f"{name}-optimiser.{i}.{key}": value for key, value in slots.items()}
        scratch = path.with_name(f".{path.name}")
        save_file(
            {key: value.detach().cpu().contiguous() for key, value in tensors.items()},
            scratch,
            metadata={**about, "done": str(done)},
        )
        scratch.replace(path)

    def read(self, path: Path, about: dict[str, str]) -> int:
        """Go on where a checkpoint ended; how many steps that was."""
        try:
            with safe_open(path, framework="pt") as file:
                found = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (no mapping)
        except (SafetensorError, OSError) as error:
            raise CheckpointBroken(f"expected a checkpoint in {path}, got: {error}; delete it to begin anew") from error
        if any(found.get(key) != value for key, value in about.items()):
            raise CheckpointBroken(
                f"expected {path} to be of a training with {about}, got {found}; choose another --out, or delete it"
            )
        for name, module in self.modules.items():
            begin = f"{name}."
            module.load_state_dict({k.removeprefix(begin): v for k, v in tensors.items() if k.startswith(begin)})
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
                if key.startswith(f"{name}-optimiser."):
                    _, i, slot = key.split(".")
                    state.setdefault(int(i), {})[slot] = value
            groups = self.optimisers[name].state_dict()["param_groups"]
            self.optimisers[name].load_state_dict({"state": state, "param_groups": groups})
        return int(found["done"])


@dataclass(frozen=True, eq=False)
class Lesson:
    """What is learnt.

    Args:
        learners: what learns.
        advance: one step with the random numbers that it is given; its losses.
        examine: numbers about what was held out, asked for at checkpoints; none where nothing was.
        save: writes the file of weights, with the header that it is given.
    """

    learners: Learners[Any]
    advance: Callable[[torch.Generator], dict[str, Tensor]]
    examine: Callable[[], dict[str, float]]
    save: Callable[[Path, dict[str, str]], None]


def train(
    lesson: Lesson,
    out: Path,
    *,
    source: str,
    checkpoint_every: int = 1000,
    report_every: int = 100,
    listener: Listener | None = None,
) -> nn.Module:
    """Make all steps, with a checkpoint beside `out` from which the same call goes on.

    Args:
        lesson: what is learnt.
        out: the file of weights that is written at the end.
        source: where the images are from, for the header of the file.
        checkpoint_every: steps between two checkpoints.
        report_every: steps between two calls of the listener.
        listener: called with the step, the number of steps, and losses: of training, or what is said of held-out
            images at checkpoints.

    Returns:
        The network.

    Raises:
        CheckpointBroken: when the checkpoint beside `out` is of another training.
    """
    learners = lesson.learners
    steps = learners.how.steps
    about = {"training": json.dumps(asdict(learners.how), sort_keys=True), "source": source}
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    out.parent.mkdir(parents=True, exist_ok=True)
    first = learners.read(checkpoint, about) if checkpoint.exists() else 0
    for step in range(first, steps):
        learners.begin(step)
        # A stream for each step, so that a resumed training sees what an undisturbed one would have seen.
        losses = lesson.advance(learners.draw(step))
        done = step + 1
        if listener is not None and (done % report_every == 0 or done == steps):
            listener(done, steps, {name: float(value.detach()) for name, value in losses.items()})
        if done % checkpoint_every == 0 or done == steps:
            learners.write(checkpoint, done, about)
            if listener is not None and (held := lesson.examine()):
                listener(done, steps, held)
    lesson.save(out, about)
    checkpoint.unlink(missing_ok=True)
    return learners.modules["net"].eval()


def halves(count: int) -> tuple[slice, slice]:
    """What is learnt from, and what is held out: the last ones, a sixteenth of all and at most 64.

    Example:
        >>> halves(160)
        (slice(0, 150, None), slice(150, 160, None))
    """
    held = min(64, count // 16)
    return slice(0, count - held), slice(count - held, count)


def some(pictures: Tensor, size: int, draw: torch.Generator, upside_down: float = 0.1) -> tuple[Tensor, Tensor]:
    """Pictures at random in [0, 1], half of them mirrored and some of them turned over, and which ones.

    Args:
        pictures: bytes, (n, 3, height, width).
        size: how many.
        draw: on the device of the pictures.
        upside_down: share of those turned over.
    """
    chosen = torch.randint(len(pictures), (size,), generator=draw, device=pictures.device)
    x = pictures[chosen].float().div_(255)
    for axis, share in ((-1, 0.5), (-2, upside_down)):
        turned = torch.rand((size, 1, 1, 1), generator=draw, device=x.device) < share
        x = torch.where(turned, x.flip(axis), x)
    return x, chosen

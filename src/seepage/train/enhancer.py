"""Training of the post-processor of ROG (yue2023, appendix A), from any images, resumable."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from seepage.enhance.degrade import Degradation, degrade
from seepage.enhance.network import Enhancer, enhance
from seepage.enhance.weights import save_enhancer
from seepage.metrics.perceptual import LpipsWeights, perceptual_distance
from seepage.streams import Stream
from seepage.train.patch_gan import PatchGan, fooling_loss, judging_loss

__all__ = ["CheckpointBroken", "EnhancerTraining", "train_enhancer"]

Listener = Callable[[int, int, dict[str, float]], None]


@dataclass(frozen=True)
class EnhancerTraining:
    """How an enhancer is trained.

    Args:
        degradation: what it learns to undo.
        steps: of Adam.
        batch: images per step.
        lr: first learning rate; it falls as half a cosine to a hundredth.
        perceptual: weight of LPIPS beside the mean absolute error.
        adversarial: weight of a PatchGAN's verdict.
        seed: of everything random.

    Note:
        yue2023 adds the verdict of a PatchGAN to the absolute error, with learning rates of 1e-5, and does not say with
        which weight.
    """

    degradation: Degradation = field(default_factory=Degradation)
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


class CheckpointBroken(ValueError):
    """A checkpoint that does not belong to this training."""


def train_enhancer(
    how: EnhancerTraining,
    pictures: Tensor,
    out: Path,
    *,
    source: str,
    lpips: LpipsWeights | None = None,
    checkpoint_every: int = 1000,
    report_every: int = 100,
    listener: Listener | None = None,
) -> Enhancer:
    """Train, with a checkpoint beside `out` from which the same call goes on.

    Args:
        how: knobs.
        pictures: bytes, (n, 3, height, width), on the device of the training; the last ones, a sixteenth of them and
            at most 64, are held out.
        out: the file of weights that is written at the end.
        source: where the pictures are from, for the header of the file.
        lpips: weights of LPIPS, for a `perceptual` above 0.
        checkpoint_every: steps between two checkpoints.
        report_every: steps between two calls of the listener.
        listener: called with the step, the number of steps, and losses: of training, or of held-out pictures at
            checkpoints (`psnr`, beside `psnr_before`).

    Raises:
        CheckpointBroken: when the checkpoint beside `out` is of another training.
    """
    if how.perceptual and lpips is None:
        raise ValueError("expected `lpips` weights for a `perceptual` above 0, got none; run `seepage fetch lpips`")
    device = pictures.device
    held = min(64, len(pictures) // 16)
    learnt, unseen = pictures[: len(pictures) - held], pictures[len(pictures) - held :]
    rng = Stream.from_seed(how.seed) / "enhancer"
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed((rng / "weights").seed)
        net, judge = Enhancer(), PatchGan()
    state = _State(
        net.to(device),
        judge.to(device),
        how,
    )
    weights = None if lpips is None else lpips.to(device)
    about = {"training": json.dumps(asdict(how), sort_keys=True), "source": source}
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    out.parent.mkdir(parents=True, exist_ok=True)
    first = state.read(checkpoint, about) if checkpoint.exists() else 0
    for step in range(first, how.steps):
        # A stream for each step, so that a resumed training sees what an undisturbed one would have seen.
        draw = torch.Generator(device).manual_seed((rng / step).seed)
        clean = _batch(learnt, how.batch, draw)
        losses = state.advance(step, clean, degrade(clean, how.degradation, draw), weights)
        done = step + 1
        if listener is not None and (done % report_every == 0 or done == how.steps):
            listener(done, how.steps, {name: float(value.detach()) for name, value in losses.items()})
        if done % checkpoint_every == 0 or done == how.steps:
            state.write(checkpoint, done, about)
            if listener is not None and held:
                listener(done, how.steps, _held_out(net, unseen, how.degradation, rng))
    save_enhancer(net, out, about)
    checkpoint.unlink(missing_ok=True)
    return net.eval()


class _State:
    """Networks and optimisers between two steps."""

    def __init__(self, net: Enhancer, judge: PatchGan, how: EnhancerTraining) -> None:
        self.net, self.judge, self.how = net, judge, how
        self.optimisers = {
            "net": torch.optim.Adam(net.parameters(), how.lr, betas=(0.9, 0.99)),
            "judge": torch.optim.Adam(judge.parameters(), how.lr, betas=(0.5, 0.99)),
        }

    def advance(self, step: int, clean: Tensor, blurred: Tensor, lpips: LpipsWeights | None) -> dict[str, Tensor]:
        how = self.how
        for optimiser in self.optimisers.values():
            for group in optimiser.param_groups:
                group["lr"] = how.lr * (0.01 + 0.99 * (1 + math.cos(math.pi * step / how.steps)) / 2)
        clean, blurred = (x.contiguous(memory_format=torch.channels_last) for x in (clean, blurred))
        with torch.autocast(clean.device.type, torch.bfloat16, enabled=clean.is_cuda):
            made = self.net(blurred).float()
            losses = {"l1": functional.l1_loss(made, clean)}
            if how.perceptual and lpips is not None:
                losses["lpips"] = perceptual_distance(made, clean, 0.0, 1.0, lpips).mean()
            if how.adversarial:
                losses["fooling"] = fooling_loss(self.judge, made)
        share = {"l1": 1.0, "lpips": how.perceptual, "fooling": how.adversarial}
        self._step("net", torch.stack([share[name] * loss for name, loss in losses.items()]).sum())
        if how.adversarial:
            with torch.autocast(clean.device.type, torch.bfloat16, enabled=clean.is_cuda):
                losses["judging"] = judging_loss(self.judge, clean, made)
            self._step("judge", losses["judging"])
        return losses

    def _step(self, name: str, loss: Tensor) -> None:
        optimiser = self.optimisers[name]
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(optimiser.param_groups[0]["params"], 1.0)
        optimiser.step()

    def write(self, path: Path, done: int, about: dict[str, str]) -> None:
        """Everything as plain tensors: a checkpoint can be read without running what is in it."""
        tensors: dict[str, Tensor] = {}
        for name, module in (("net", self.net), ("judge", self.judge)):
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
        for name, module in (("net", self.net), ("judge", self.judge)):
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


def _batch(pictures: Tensor, size: int, draw: torch.Generator) -> Tensor:
    """Pictures at random, some of them mirrored or turned, in [0, 1]."""
    chosen = torch.randint(len(pictures), (size,), generator=draw, device=pictures.device)
    x = pictures[chosen].float().div_(255)
    for axis in (-1, -2):
        turned = torch.rand((size, 1, 1, 1), generator=draw, device=x.device) < (0.5 if axis == -1 else 0.1)
        x = torch.where(turned, x.flip(axis), x)
    return x


def _held_out(net: Enhancer, pictures: Tensor, how: Degradation, rng: Stream) -> dict[str, float]:
    clean = pictures.float() / 255
    blurred = degrade(clean, how, torch.Generator(clean.device).manual_seed((rng / "held out").seed))

    def psnr(x: Tensor) -> float:
        return float(-10 * (x - clean).square().mean((1, 2, 3)).log10().mean())

    return {"psnr": psnr(enhance(net, blurred)), "psnr_before": psnr(blurred)}

"""The public half of the learning problem: the user's module as pure functions, the loss, and what the data look like.

>>> task = Task(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), DataSpec((1, 2, 2), classes=3))
>>> x, y = torch.zeros(5, 1, 2, 2), torch.zeros(5, dtype=torch.long)
>>> task.gradient(task.params, x, y)["1.weight"].shape
torch.Size([3, 4])
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional

from seepage.engine.compiled import Compiler
from seepage.engine.layers import Concern, Consequence, known_concerns
from seepage.engine.precision import arithmetic
from seepage.engine.twins import fresh_statistics, plain_attention, pure_dropout_rng, purify
from seepage.spec import DataSpec

__all__ = ["ModuleError", "Params", "Task", "TooFewOutputs"]

Params = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]

LOSSES: dict[str, Loss] = {
    "cross_entropy": functional.cross_entropy,
    "squared_error": lambda out, y: functional.mse_loss(out, y.reshape(out.shape)),
}


EMBEDDINGS = (nn.Embedding.__name__, nn.EmbeddingBag.__name__)


class ModuleError(ValueError):
    """The module cannot be attacked as it is; the message lists every layer, why, and the fix."""


class TooFewOutputs(ModuleError):
    """Some classes of the data have no output of the module, and their labels no loss."""


@dataclass(frozen=True, eq=False)
class Task:
    """A learning problem as every member of the federation knows it.

    Args:
        module: the user's own module, used as it is; it is copied and never changed.
        spec: shape, range and normalisation of the data.
        loss: `"auto"` (cross-entropy for classes, squared error for regression), one of those by name, or a
            function of (output, target) that returns the mean over the batch.

    Attributes:
        params: the trainable parameters as they are in the user's module (copies).
        buffers: everything else that the module's output depends on: its buffers and its frozen parameters (copies).
        concerns: what `check` found.
        batched: whether clients and restarts can run through one program; if not, a loop gives the same numbers.
        forward_mode: whether all layers have a forward-mode derivative, which makes the adjoint sweep cheaper.
    """

    module: nn.Module
    spec: DataSpec
    loss: str | Loss = "auto"
    params: Params = field(init=False, repr=False)
    buffers: Params = field(init=False, repr=False)
    concerns: tuple[Concern, ...] = field(init=False, repr=False)
    batched: bool = field(init=False, repr=False)
    forward_mode: bool = field(init=False, repr=False)
    _nets: dict[bool, nn.Module] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        refused = [c for c in self._known_concerns() if c.consequence is Consequence.REFUSE]
        if refused:
            raise ModuleError("the module cannot be attacked as it is:\n" + "\n".join(f"  - {c}" for c in refused))
        if isinstance(self.loss, str) and self.loss not in ("auto", *LOSSES):
            raise ValueError(f"expected `loss` to be one of {['auto', *LOSSES]} or a function, got {self.loss!r}")
        named = list(self.module.named_parameters())
        trained = {name: p.detach().clone() for name, p in named if p.requires_grad}
        if not trained:
            raise ModuleError(
                f"expected a module with at least one trainable parameter, got {len(named)} parameters, all frozen; "
                "set requires_grad on those that clients train"
            )
        rest = [*self.module.named_buffers(), *((name, p) for name, p in named if not p.requires_grad)]
        object.__setattr__(self, "params", trained)
        object.__setattr__(self, "buffers", {name: b.detach().clone() for name, b in rest})
        object.__setattr__(self, "_nets", {train: purify(self.module, train) for train in (True, False)})
        # Found out before any work, and outside of any transformation of torch.func, in which it could not be.
        object.__setattr__(self, "concerns", tuple(self.check()))
        object.__setattr__(self, "batched", not any(c.consequence is Consequence.LOOP for c in self.concerns))
        object.__setattr__(self, "forward_mode", self._has_forward_mode())

    @cached_property
    def compiler(self) -> Compiler:
        """What has been compiled of this task's module, for `local_update`."""
        return Compiler()

    @cached_property
    def tracer(self) -> Compiler:
        """What has been traced of it alone, which takes a second where compiling takes half a minute."""
        return Compiler(backend="none")

    @cached_property
    def head(self) -> str | None:
        """The last linear layer, if it gives the class scores: labels leak through its gradient."""
        linear: list[tuple[str, nn.Linear]] = [
            (name, layer) for name, layer in self.module.named_modules() if isinstance(layer, nn.Linear)
        ]
        if linear and linear[-1][1].out_features == self.spec.classes:
            return linear[-1][0]
        return None

    def fresh(self) -> Task:
        """The same task with copies of the module through which nothing has passed yet, and nothing compiled."""
        return copy.copy(self)  # by way of the two below

    def __getstate__(self) -> dict[str, object]:
        """What travels: compiled programs belong to one process, and pure copies of the module are made there."""
        return {name: v for name, v in self.__dict__.items() if name not in ("compiler", "tracer", "_nets")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        object.__setattr__(self, "_nets", {train: purify(self.module, train) for train in (True, False)})

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Task:
        """The same task with the module on another device or of another precision."""
        return Task(copy.deepcopy(self.module).to(device=device, dtype=dtype), self.spec, self.loss)

    def forward(
        self,
        params: Params,
        x: Tensor,
        *,
        buffers: Params | None = None,
        train: bool = False,
        rng: torch.Generator | None = None,
    ) -> tuple[Tensor, Params]:
        """The module's output, and its buffers afterwards; a pure function of its arguments."""
        net = self._nets[train]
        buffers = self.buffers if buffers is None else buffers
        pure_dropout_rng(net, rng)
        fresh: Params = {}
        try:
            with plain_attention():
                out = functional_call(net, {**buffers, **params}, (x,))
        finally:
            # A client's masks and statistics must not be left where an attacker could find them.
            pure_dropout_rng(net, None)
            fresh = fresh_statistics(net)
        return out, {**buffers, **fresh}

    @property
    def net(self) -> nn.Module:
        """The copy of the module that `forward` computes with, in eval mode."""
        return self._nets[False]

    def mean_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch."""
        if callable(self.loss):
            return self.loss(out, y)
        name = self.loss
        if name == "auto":
            name = "cross_entropy" if self.spec.classes is not None else "squared_error"
        return LOSSES[name](out, y)

    def gradient(
        self, params: Params, x: Tensor, y: Tensor, *, buffers: Params | None = None, train: bool = False
    ) -> Params:
        """The gradient of the batch loss with respect to the parameters; differentiable once more."""

        def loss(params: Params) -> Tensor:
            return self.mean_loss(self.forward(params, x, buffers=buffers, train=train)[0], y)

        return grad(loss)(params)  # type: ignore[no-any-return]

    def accuracy(self, params: Params, x: Tensor, y: Tensor, *, buffers: Params | None = None) -> float:
        """Share of examples classified right; for regression the coefficient of determination R²."""
        with torch.no_grad():
            out = torch.cat([self.forward(params, part, buffers=buffers)[0] for part in x.split(500)])
        if self.spec.classes is not None:
            return float((out.argmax(-1) == y).double().mean())
        error = ((out - y.reshape(out.shape)) ** 2).sum()
        return float(1 - error / ((y - y.mean()) ** 2).sum())

    def check(self, train: bool = True) -> list[Concern]:
        """What stands in the way of attacking this module, found by looking at its layers and by trying it.

        Args:
            train: whether clients run the module in train mode.

        Returns:
            One concern per layer, empty when everything batches and differentiates twice.

        Raises:
            ModuleError: when the module cannot be attacked at all.
        """
        concerns = self._known_concerns()
        try:
            alone = self._double_gradient(train)
        except Exception as error:
            layer = self._entered_last(train)
            raise ModuleError(
                f"expected a module whose gradient can be differentiated once more on inputs of shape "
                f"{self.spec.shape}, got: {_first_line(error)} (last layer entered: {layer}); "
                "check `spec.shape`, and replace layers without a second derivative"
            ) from error
        self._check_outputs()
        if any(c.consequence is Consequence.LOOP for c in concerns):
            return concerns
        try:
            alone, together = self._compared(train)
        except Exception as error:
            why = f"it does not batch over clients ({_first_line(error)})"
        else:
            sound = alone.isfinite()
            # Far above rounding, and far below what a batching rule with a wrong second derivative gives.
            if all((lane - alone)[sound].norm() <= 0.01 * alone[sound].norm() for lane in together):
                return concerns
            why = "its second derivative, batched over clients, differs from the plain one"
        fix = "Accept the slower loop, whose numbers are right, or replace the operation behind it"
        return [*concerns, Concern("", type(self.module).__name__, Consequence.LOOP, why, fix)]

    def _check_outputs(self) -> None:
        """Made-up examples are all of class 0: that another has no output would show at the first one that has it."""
        if self.spec.classes is None or callable(self.loss):  # a loss of the user's own may read outputs otherwise
            return
        with torch.no_grad():
            outputs = self.forward(self.params, self._probe()[0])[0].shape[1]
        if outputs < self.spec.classes:
            raise TooFewOutputs(
                f"expected at least {self.spec.classes} outputs of the module, one for each class, got {outputs}; "
                f"give its last layer {self.spec.classes}"
            )

    def _known_concerns(self) -> list[Concern]:
        # That no derivative reaches a token id speaks against attacks that need one, not against training.
        return [c for c in known_concerns(self.module) if not (self.spec.is_text and c.kind in EMBEDDINGS)]

    def _has_forward_mode(self) -> bool:
        x, y = self._probe()
        try:
            grads = grad(lambda params, x: self.mean_loss(self.forward(params, x)[0], y), argnums=(0, 1))
            with warnings.catch_warnings():
                # torch 2.13 compiles its own forward-mode rules on first use, and warns of the compiler it uses.
                warnings.filterwarnings("ignore", "`torch.jit.script`", DeprecationWarning)
                jvp(lambda params: grads(params, x), (self.params,), (self.params,))
        except (RuntimeError, NotImplementedError):
            return False
        return True

    def _probe(self) -> tuple[Tensor, Tensor]:
        """Two made-up examples of the right shape."""
        like = next(iter(self.params.values()))
        x = torch.linspace(-1, 1, 2 * math.prod(self.spec.shape), dtype=like.dtype, device=like.device)
        if self.spec.classes is None:
            y = torch.zeros(2, self.spec.targets, dtype=like.dtype, device=like.device)
        else:
            y = torch.zeros(2, dtype=torch.long, device=like.device)
        if self.spec.vocabulary is not None:
            x = torch.arange(1, len(x) + 1, device=like.device) % self.spec.vocabulary
        return x.reshape(2, *self.spec.shape), y

    def _compared(self, train: bool) -> tuple[Tensor, Tensor]:
        """The plain derivative and that of two lanes, in double precision where the module can.

        A wrong rule is wrong in every precision; in float32 a kink or a small variance could look like one.
        """
        try:
            return self._double_gradient(train, dtype=torch.float64), self._double_gradient(train, 2, torch.float64)
        except Exception:  # for instance a constant of its own type inside of `forward`
            return self._double_gradient(train), self._double_gradient(train, 2)

    def _double_gradient(self, train: bool, lanes: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The derivative of a gradient's length on made-up examples, taken as attacks take it: outside of `vmap`."""
        x, y = self._probe()
        params, buffers = self.params, self.buffers
        if dtype is not None:
            x, y = (part.to(dtype) if part.is_floating_point() else part for part in (x, y))
            params, buffers = (
                {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}
                for tensors in (params, buffers)
            )

        def steepness(x: Tensor, params: Params) -> Tensor:
            gradient = self.gradient(params, x, y, train=train, buffers=buffers)
            return torch.stack([(g**2).sum() for g in gradient.values()]).sum()

        function: Callable[..., Tensor] = steepness
        if lanes is not None:
            function = vmap(steepness)
            x = x.expand(lanes, *x.shape)
            params = {name: p.expand(lanes, *p.shape) for name, p in params.items()}
        devices = [x.device] if x.is_cuda else []
        # What a layer draws here is given back.
        with torch.random.fork_rng(devices), torch.enable_grad(), arithmetic("fp32"):
            if self.spec.is_text:  # of the parameters, as nothing else has a derivative
                params = {name: p.detach().requires_grad_() for name, p in params.items()}
                slopes = torch.autograd.grad(function(x, params).sum(), list(params.values()), allow_unused=True)
                parts = [s.flatten(0 if lanes is None else 1) for s in slopes if s is not None]
                return torch.cat(parts, dim=-1)
            x = x.detach().requires_grad_()
            return torch.autograd.grad(function(x, params).sum(), x)[0]

    def _entered_last(self, train: bool) -> str:
        net, last = self._nets[train], "none"

        def remember(name: str) -> Callable[..., None]:
            def hook(*_: object) -> None:
                nonlocal last
                last = name

            return hook

        hooks = [m.register_forward_pre_hook(remember(name)) for name, m in net.named_modules() if name]
        with contextlib.suppress(Exception):
            self._double_gradient(train)
        for hook in hooks:
            hook.remove()
        return last


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

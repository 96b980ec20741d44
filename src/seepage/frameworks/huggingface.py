"""Captures from the Trainer of Hugging Face transformers (https://huggingface.co/docs/transformers).

```python
trainer = Trainer(model, args, train_dataset=mine, callbacks=[CaptureCallback("captures/round-1", client="ward 3")])
```

`text_task(model, length)` is the same model as `seepage attack --model` wants it.
"""

from __future__ import annotations

import copy
import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seepage.frameworks.record import Recorder, record
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec
from seepage.task import Task

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        f"seepage.frameworks.huggingface needs transformers ({error}); pip install 'seepage[huggingface]'"
    ) from error

__all__ = ["CaptureCallback", "recipe_of", "text_task"]

log = logging.getLogger(__name__)


class CaptureCallback(TrainerCallback):
    """Captures the model at the beginning and at the end of `Trainer.train`; training goes on as without it.

    Args:
        folder: where the capture goes; it must not exist yet.
        client: its name.
        number: of the round.
        secret: file for the client's texts and labels, for scoring alone, outside of `folder`. They are taken from the
            training data by the Trainer's own collator, once, before training.

    Note:
        The folder gets a `recipe.toml` where the training arguments can be said in one; see `recipe_of`.
    """

    def __init__(
        self, folder: Path | str, *, client: str = "client", number: int = 0, secret: Path | str | None = None
    ) -> None:
        self.folder, self.client, self.number = Path(folder), client, number
        self.secret = None if secret is None else Path(secret)
        self._open: AbstractContextManager[Recorder] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take down what came in."""
        del state, control
        loader = given["train_dataloader"]
        told = recipe_of(args)
        if isinstance(told, str):
            log.warning("seepage: no recipe is written: %s", told)
        self._open = record(
            given["model"],
            self.folder,
            client=self.client,
            number=self.number,
            examples=len(loader.dataset) if hasattr(loader.dataset, "__len__") else None,
            recipe=None if isinstance(told, str) else told,
            secret=self.secret,
        )
        recorder = self._open.__enter__()
        if self.secret is not None:
            # Not by iterating the loader, which would draw an order and with it change the training.
            batch = loader.collate_fn([loader.dataset[i] for i in range(len(loader.dataset))])
            recorder.seal(batch["input_ids"], batch["labels"])

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take down what goes out."""
        del args, state, control, given
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


def recipe_of(args: Any) -> Recipe | str:
    """What `TrainingArguments` come to as a recipe, or why they come to none.

    Args:
        args: the Trainer's.
    """
    unlike = {
        f"optim = {str(args.optim.value)!r} (only 'sgd' is the same in a recipe)": args.optim.value != "sgd",
        f"max_grad_norm = {args.max_grad_norm} (0 leaves gradients as they are)": bool(args.max_grad_norm),
        f"lr_scheduler_type = {args.lr_scheduler_type.value!r}": args.lr_scheduler_type.value != "constant",
        "gradient accumulation": args.gradient_accumulation_steps > 1,
        "max_steps": args.max_steps > 0,
        "a fraction of an epoch": args.num_train_epochs != int(args.num_train_epochs),
        # The Trainer spares biases and normalisation, a recipe does not.
        "weight decay": args.weight_decay != 0,
    }
    reasons = [what for what, holds in unlike.items() if holds]
    if reasons:
        return "a recipe cannot say " + ", ".join(reasons)
    return Recipe(
        SGD(float(args.learning_rate)),
        epochs=int(args.num_train_epochs),
        batch_size=int(args.train_batch_size),
        sends="weights",
    )


def text_task(model: nn.Module, length: int) -> Task:
    """A model of transformers for classifying sequences, as a task on token ids.

    Args:
        model: such as `BertForSequenceClassification`; it is copied, and its parameters keep their names.
        length: tokens of a text; shorter ones are filled up with the id that the model's configuration names.

    Raises:
        ValueError: where texts are not filled up with id 0, which is what Seepage takes for no token.
    """
    config: Any = model.config
    if config.pad_token_id != 0:
        raise ValueError(
            f"expected `model.config.pad_token_id` to be 0, which fills up texts, got {config.pad_token_id}; "
            "renumber the tokens, or set it to 0 if id 0 does not occur"
        )
    kind: Any = type(model)

    class Scores(kind):  # type: ignore[misc]
        """The same model, from token ids to class scores."""

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = super().forward(input_ids=x, attention_mask=(x != 0).long()).logits
            return scores

    scores = copy.deepcopy(model)
    scores.__class__ = Scores
    return Task(scores, DataSpec((length,), classes=int(config.num_labels), vocabulary=int(config.vocab_size)))

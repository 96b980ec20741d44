"""`seepage tags`: what the tagger sees in images whose classes are known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from seepage.audit.tagger import TaggerMissing, load_tagger
from seepage.audit.values import SpecError
from seepage.data import DataBroken, DataMissing, load
from seepage.metrics.tags import Tagging

__all__ = ["tags"]

FIRST = 5


def tags(
    name: Annotated[str, typer.Argument(help="A data set of images.")] = "imagenet",
    split: Annotated[str, typer.Option("--split", help="train or test.")] = "test",
    count: Annotated[int | None, typer.Option("--count", min=1, help="Most images; default: all.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of data sets; default: $SEEPAGE_DATA.")] = None,
) -> None:
    """Show which tags the metric `tag_jaccard` goes by, and how often they are right.

    The tagger is EfficientNet-Lite0, whose tags are the 1000 classes of ImageNet.
    """
    say = Console(highlight=False)
    try:
        if split not in ("train", "test"):
            raise ValueError(f"--split: expected train or test, got {split!r}")
        dataset = load(name, data)
        if not dataset.spec.is_image:
            raise ValueError(f"expected a data set of images, got {name!r}")
        tagger = load_tagger(Tagging())
    except (ValueError, SpecError, TaggerMissing, DataMissing, DataBroken) as error:
        Console(stderr=True).print(f"[bold red]error:[/bold red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from None
    examples = (dataset.train if split == "train" else dataset.test)[:count]
    spec = dataset.spec
    chances = tagger.probabilities((spec.pixels(examples.x) - spec.low) / (spec.high - spec.low))
    # Names of the tags are known where the data have the same classes.
    names = dataset.classes if len(dataset.classes) == chances.shape[1] else ()
    best = chances.topk(FIRST, 1)
    kept = (best.values >= tagger.how.threshold).sum(1).clamp(1, tagger.how.most).tolist()
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for column in ("image", "class", "tags"):
        grid.add_column(column)
    for i, (y, several) in enumerate(zip(examples.y.tolist(), kept, strict=True)):
        words = [
            f"{names[tag] if names else tag} {chance:.2f}"
            for tag, chance in zip(best.indices[i, :several].tolist(), best.values[i].tolist(), strict=False)
        ]
        grid.add_row(str(i), escape(dataset.classes[y] if dataset.classes else str(y)), escape(", ".join(words)))
    say.print(grid)
    if names:
        hits = best.indices == examples.y[:, None]
        first, among = float(hits[:, 0].float().mean()), float(hits.any(1).float().mean())
        say.print(f"own class first: {first:.1%}, among the first {FIRST}: {among:.1%} of {len(examples)} images")

"""Every number that scoring can give, in words: the names a policy, a table and the report may use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from seepage.metrics.baselines import BASELINES

__all__ = ["BASELINE_METRICS", "METRICS", "Metric", "PaperMetrics"]

PaperMetrics: TypeAlias = Literal["dimitrov2022", "yue2023", "zhao2023"]
"""Papers whose own metrics differ from the usual ones; they are measured where an experiment asks for them."""


@dataclass(frozen=True)
class Metric:
    """What one measured number means.

    Args:
        name: as it stands in tables, experiments and policies.
        unit: empty for a pure number.
        higher_is_more_leakage: whether a larger value means that more leaked.
        about: one sentence for somebody who has never met it.
        per: whether there is one value per example ("image", which includes rows of a table) or one per client.

    Example:
        >>> METRICS["lpips"].higher_is_more_leakage
        False
    """

    name: str
    unit: str
    higher_is_more_leakage: bool
    about: str
    per: Literal["image", "client"]


_MEASURED = (
    Metric(
        "mse",
        "range²",
        False,
        "Mean squared difference of the pixels: 0 is the same image, 1 is black for white.",
        "image",
    ),
    Metric(
        "psnr",
        "dB",
        True,
        "The same error on a logarithmic scale: above 20 dB the picture is usually recognisable, 100 dB is identical.",
        "image",
    ),
    Metric(
        "ssim",
        "",
        True,
        "Likeness of local structure such as edges and texture: 1 is the same image, about 0 is unrelated.",
        "image",
    ),
    Metric(
        "lpips",
        "",
        False,
        "Difference as a network trained on human judgements sees it: 0 is the same image, about 0.7 is unrelated.",
        "image",
    ),
    Metric(
        "tag_jaccard",
        "",
        True,
        "Share of the tags that a network gives the guessed or the true image which it gives both: 1 is the same "
        "tags, 0 is none in common.",
        "image",
    ),
    Metric(
        "recovered",
        "share",
        True,
        "Share of the client's images whose PSNR is above the threshold (20 dB unless set otherwise).",
        "client",
    ),
    Metric(
        "label_accuracy",
        "share",
        True,
        "Share of the client's labels that were found, counting how often each occurs.",
        "client",
    ),
    Metric(
        "label_count_error",
        "labels",
        False,
        "How many of the guessed labels would have to be changed to get the client's label counts.",
        "client",
    ),
    Metric(
        "label_count", "labels", False, "How many labels the client has: what the wrong ones are counted of.", "client"
    ),
    Metric(
        "mae",
        "std",
        False,
        "Mean absolute error over the features of a row, in standard deviations where the data are normalised.",
        "image",
    ),
    Metric(
        "exact_match",
        "share",
        True,
        "Share of an example's features that were found to within the tolerance; of a category each choice is one, so "
        "that zeros are easy to find.",
        "image",
    ),
    Metric(
        "cell_accuracy",
        "share",
        True,
        "Share of a row's cells that were found: the right category, or a number within 0.319 standard deviations.",
        "image",
    ),
    Metric("category_accuracy", "share", True, "The same for the columns of categories alone.", "image"),
    Metric("number_accuracy", "share", True, "The same for the columns of numbers alone.", "image"),
    Metric(
        "sure_cell_accuracy",
        "share",
        True,
        "The same for the half of all cells that the attack itself is surest of.",
        "client",
    ),
    Metric("rows_found", "share", True, "Share of the client's rows of which every cell was found.", "client"),
    Metric(
        "column_count",
        "columns",
        False,
        "How many columns the table has: what the cells of a row are counted of.",
        "client",
    ),
    Metric(
        "token_accuracy",
        "share",
        True,
        "Share of a text's places at which the right token was named.",
        "image",
    ),
    Metric(
        "rouge1",
        "",
        True,
        "Share of tokens that the guessed and the true text have in common, wherever they stand (ROUGE-1, F1).",
        "image",
    ),
    Metric(
        "rouge2",
        "",
        True,
        "Share of neighbouring pairs of tokens that the guessed and the true text have in common (ROUGE-2, F1).",
        "image",
    ),
    Metric(
        "token_bag",
        "",
        True,
        "Agreement of the tokens said to occur in the client's texts with those that do (F1): 1 is the same set; "
        "nothing about order or number.",
        "client",
    ),
    Metric(
        "relative_error",
        "",
        False,
        "Size of the error over the size of the truth, which is what the network was fed, or the model that a client "
        "would have trained alone: 0 is exact, 1 is no better than a guess of zeros.",
        "image",
    ),
    Metric(
        "relative_error_of_last_answer",
        "",
        False,
        "What the model that the client returned last scores in relative_error, taken as it stands for the client's "
        "own.",
        "client",
    ),
    Metric(
        "feature_error",
        "",
        False,
        "The same for an attack that finds what enters a layer inside the network instead of the inputs themselves.",
        "image",
    ),
    Metric(
        "label_confidence",
        "",
        True,
        "How sure the attack itself is of the labels it names, from 0 to 1; this is its own word, not a measurement.",
        "client",
    ),
    Metric(
        "update_explained",
        "",
        True,
        "Cosine between the update that was sent and the one that training on the attack's answer gives; 1 is the same "
        "direction, which other data may have, too.",
        "client",
    ),
    Metric(
        "restart_psnr",
        "dB",
        True,
        "PSNR between what two restarts of the attack came to: what comes out twice the same is more than chance.",
        "client",
    ),
    Metric(
        "wire_bytes",
        "bytes",
        False,
        "What the client put on the wire, compressed as its defence allows; nothing about leakage.",
        "client",
    ),
    Metric(
        "epsilon",
        "",
        True,
        "The ε of differential privacy that the client's defence promises at δ = 1e-5 after the rounds so far; what is "
        "measured beside it may be far less.",
        "client",
    ),
    Metric(
        "psnr_dimitrov2022",
        "dB",
        True,
        "PSNR as dimitrov2022 computes it, of pixels that are not clipped to their range, which lowers it.",
        "image",
    ),
    Metric(
        "recovered_dimitrov2022",
        "share",
        True,
        "Share of the client's images that dimitrov2022 counts as recovered: its own PSNR is above the threshold.",
        "client",
    ),
    Metric(
        "psnr_yue2023",
        "dB",
        True,
        "PSNR as yue2023 computes it, of images rounded to bytes: the usual PSNR but for rounding.",
        "image",
    ),
    Metric(
        "ssim_yue2023",
        "",
        True,
        "SSIM as yue2023 computes it, with one window over the whole image: above 0.9 for blurred images too.",
        "image",
    ),
    Metric(
        "attribute_accuracy",
        "share",
        True,
        "Share of the client's records whose sensitive value was found.",
        "client",
    ),
    Metric(
        "attribute_ceiling",
        "share",
        True,
        "What nobody can beat who has the public columns: records that are equal in these and in their label, and "
        "differ in the sensitive value, cannot be told apart.",
        "client",
    ),
    Metric(
        "attribute_accuracy_of_optimum",
        "share",
        True,
        "What attribute_accuracy is for the model that the client would have trained alone, were it known.",
        "client",
    ),
    Metric(
        "attribute_accuracy_bound",
        "share",
        True,
        "What attribute_accuracy_of_optimum is at least, by Proposition 4 of driouich2023; for least squares and a "
        "column of two values. Below 0 it says nothing.",
        "client",
    ),
    Metric(
        "model_accuracy_of_optimum",
        "share",
        True,
        "What model_accuracy is for the model that the client would have trained alone.",
        "client",
    ),
    Metric(
        "source_accuracy",
        "share",
        True,
        "Share of the client's target records that were said to be the client's.",
        "client",
    ),
    Metric(
        "class_ssim",
        "",
        True,
        "Structural similarity of the client's images to what was said that their class looks like, mean over them.",
        "client",
    ),
    Metric(
        "class_ssim_of_optimum",
        "",
        True,
        "What class_ssim is for the model that the client would have trained alone, were it known.",
        "client",
    ),
    Metric(
        "prediction_distance",
        "",
        False,
        "Mean distance between the probabilities that a model gives to the classes of the client's records and those "
        "of the model that the client would have trained alone: 0 is the same, 1 is certain of another class always.",
        "client",
    ),
    Metric(
        "zest",
        "",
        True,
        "Likeness of the reasons that a model has for its answers to those of the model that the client would have "
        "trained alone: the cosine between their LIME explanations, 1 is the same.",
        "client",
    ),
    Metric(
        "model_accuracy",
        "share",
        True,
        "Share of the client's own records that the model classifies right; R² for regression.",
        "client",
    ),
    Metric(
        "psnr_zhao2023",
        "dB",
        True,
        "PSNR as zhao2023 computes it, with the peak 1/std of CIFAR-100: 11.5 dB more than the usual PSNR.",
        "image",
    ),
    Metric(
        "ssim_zhao2023",
        "",
        True,
        "SSIM as zhao2023 computes it, told a range of 255 for pixels up to 1: nearly 1 for any two images.",
        "image",
    ),
    Metric(
        "lpips_zhao2023",
        "",
        False,
        "LPIPS as zhao2023 computes it, on pixels from 0 to 1 where the network expects -1 to 1: smaller than usual.",
        "image",
    ),
    Metric(
        "recovered_zhao2023",
        "share",
        True,
        "Share of the client's images that zhao2023 counts as recovered: its own PSNR is at least 30 dB.",
        "client",
    ),
    Metric(
        "psnr_zhao2023_table",
        "dB",
        True,
        "As zhao2023 averages: its PSNR where the image counts as recovered, and 0 where not.",
        "image",
    ),
    Metric(
        "ssim_zhao2023_table",
        "",
        True,
        "As zhao2023 averages: its SSIM where the image counts as recovered, and 0 where not.",
        "image",
    ),
    Metric(
        "lpips_zhao2023_table",
        "",
        False,
        "As zhao2023 averages: its LPIPS where the image counts as recovered, and 0, which is perfect, where not.",
        "image",
    ),
)

BASELINE_METRICS = {
    "constant": ("psnr", "ssim", "recovered", "class_ssim", "tag_jaccard"),
    "public_mean": ("psnr", "ssim", "recovered", "mae", "exact_match", "cell_accuracy", "class_ssim", "tag_jaccard"),
    "class_mean": ("psnr", "ssim", "recovered", "mae", "exact_match", "cell_accuracy", "tag_jaccard"),
    "even": ("label_accuracy",),
    "global_model": ("relative_error",),
    "public_texts": ("token_accuracy", "rouge1", "rouge2"),
    "majority": ("attribute_accuracy", "cell_accuracy", "category_accuracy", "number_accuracy"),
    "chance": ("source_accuracy",),
}
"""Which metrics each baseline is measured with; the result is called `<metric>_of_<baseline>`."""


def _of_baselines(measured: dict[str, Metric]) -> dict[str, Metric]:
    return {
        f"{name}_of_{baseline}": replace(
            measured[name],
            name=f"{name}_of_{baseline}",
            about=f"What a guess without any leak scores in {name}; the guess is {BASELINES[baseline]}.",
        )
        for baseline, names in BASELINE_METRICS.items()
        for name in names
    }


_BY_NAME = {metric.name: metric for metric in _MEASURED}

METRICS: dict[str, Metric] = {**_BY_NAME, **_of_baselines(_BY_NAME)}
"""Every metric by its name, those of the baselines included."""

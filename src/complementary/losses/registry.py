"""Every method and what it assumes, in one table: for the options, `cll methods`, the documentation and error messages.

This module does not import torch.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from complementary.config import Config
from complementary.errors import UserError, load_plugin, one_of, plugin_names

NOT_UNIFORM = ("biased", "matrix")  # kinds of labels
Matrix = Literal["not used", "required", "inverted", "for decoding", "learned"]


@dataclass(frozen=True)
class Method:
    """A loss or a training recipe.

    Attributes:
        name: Value of the option ``loss`` or ``recipe``.
        title: Name in the literature.
        paper: Where it was published.
        kind: Whether the option is ``loss`` or ``recipe``.
        matrix: What the transition matrix is for. ``inverted``: it must be invertible. ``learned``: training starts
            with it.
        prior: Whether the class prior is needed; it is estimated from the training labels.
        adjusted: Whether its logits describe classes of equal size, because it adds the logarithm of the prior to them.
        labels: What it assumes about labels. ``uniform``: every wrong class is equally likely. ``random``: the label k
            is equally likely for all examples of other classes (selected completely at random).
        several: How several labels of an example are used: added up, averaged, or as a set.
        unbiased: Whether its expectation is an ordinary loss of the true labels, under its assumptions.
        batch: Whether it uses statistics of the batch, which should then have at least a few examples of each label.
        mixers: Values of the option ``mix`` that it works with; empty: all.
        decoding: How outputs of the network become a class.
        needs: What else it needs, in words.
    """

    name: str
    title: str
    paper: str
    kind: Literal["loss", "recipe"] = "loss"
    matrix: Matrix = "not used"
    prior: bool = False
    adjusted: bool = False
    labels: Literal["uniform", "random", "any"] = "any"
    several: Literal["sum", "mean", "set"] = "sum"
    unbiased: bool = False
    batch: bool = False
    mixers: tuple[str, ...] = ()
    decoding: Literal["largest logit", "nearest row"] = "largest logit"
    needs: str = ""


_ISHIDA = "Ishida et al. 2019"
_FENG = "Feng et al. 2020"
_CHOU = "Chou et al. 2020"
_LIN = "Lin and Lin 2023"


def _table() -> Iterator[Method]:
    yield Method("s-nl", "SCL-NL", f"Kim et al. 2019, {_CHOU}", labels="uniform")
    yield Method("s-exp", "SCL-EXP", _CHOU, labels="uniform")
    yield Method("fwd", "FWD", "Yu et al. 2018", matrix="required")
    yield Method("dm", "L-W", "Gao and Zhang 2021", labels="uniform")
    yield Method("l-uw", "L-UW", "Gao and Zhang 2021", labels="uniform")
    yield Method("s-lin", "SCL-LIN", _CHOU, labels="uniform", unbiased=True)
    yield Method("s-gce", "GCE of 1 - p", "Zhang and Sabuncu 2018", labels="uniform")
    yield Method("pc", "PC", "Ishida et al. 2017", labels="uniform", unbiased=True)
    yield Method("op", "OP", "Liu et al. 2023", labels="uniform")
    yield Method("op-w", "OP-W", "Liu et al. 2023", labels="uniform")
    yield Method("mcl-mae", "MCL-MAE", _FENG, labels="uniform", several="set", unbiased=True)
    yield Method("mcl-exp", "MCL-EXP", _FENG, labels="uniform", several="set")
    yield Method("mcl-log", "MCL-LOG", _FENG, labels="uniform", several="set")
    for name, title, batch in (("ure", "free", False), ("ure-nn", "NN", True), ("ure-ga", "GA", True)):
        yield Method(
            name,
            title,
            _ISHIDA,
            labels="uniform",
            several="mean",
            unbiased=not batch,
            batch=batch,
        )
    for name, title, batch in (("ure-t", "free, T", False), ("ure-tnn", "TNN", True), ("ure-tga", "TGA", True)):
        yield Method(
            name,
            title,
            _ISHIDA,
            matrix="inverted",
            several="mean",
            unbiased=not batch,
            batch=batch,
        )
    yield Method("cpe-i", "CPE-I", _LIN, matrix="for decoding", decoding="nearest row")
    yield Method("cpe-f", "CPE-F", _LIN, matrix="required", decoding="nearest row")
    yield Method("cpe-t", "CPE-T", _LIN, matrix="learned", decoding="nearest row")
    yield Method("scarce", "SCARCE", "Wang et al. 2024", labels="random", prior=True, several="set", batch=True)
    yield Method("s-nl-w", "weighted NL", "after Wei et al. 2023", labels="random")
    yield Method(
        "fwd-la",
        "FWD, logit-adjusted",
        "Yu et al. 2018, Menon et al. 2021",
        matrix="required",
        prior=True,
        adjusted=True,
        needs="classes of different size",
    )
    yield Method(
        "self-training",
        "self-training",
        "this package",
        kind="recipe",
        matrix="required",
        prior=True,
        mixers=("none", "mixup", "icm", "micm"),
        needs="an encoder, or a network to start from",
    )
    yield Method(
        "pocr",
        "POCR",
        "Wang et al. 2021",
        kind="recipe",
        labels="uniform",
        mixers=("none",),
        needs="images",
    )
    yield Method("plnl", "PLNL", "Li et al. 2025", kind="recipe", labels="uniform", mixers=("none",), needs="images")


METHODS: dict[str, Method] = {method.name: method for method in _table()}
"""Every method by its name, losses first."""

LOSS_METHODS: dict[str, Method] = {name: method for name, method in METHODS.items() if method.kind == "loss"}
"""The losses of the package."""


RECIPE_METHODS: dict[str, Method] = {name: method for name, method in METHODS.items() if method.kind == "recipe"}
"""The recipes that are methods of their own."""


def method_of(loss: str) -> Method:
    """What is known about a loss.

    Args:
        loss: A name of the table, the name of an entry point, or ``module:function``. A loss from outside the package
            may have an attribute ``method``, a `Method`, that says what it assumes; without it, nothing is assumed.
    """
    if loss in LOSS_METHODS:
        return LOSS_METHODS[loss]
    one_of("The loss", loss, [*LOSS_METHODS, *plugin_names("losses", loss)], "loss")
    declared = getattr(load_plugin("losses", loss), "method", None)
    return declared if isinstance(declared, Method) else Method(loss, loss, "not of this package")


def check(config: Config, labels: str = "") -> str | None:
    """Check that the options of a run fit its loss.

    Args:
        config: The configuration.
        labels: The resolved option ``labels`` (``uniform``, ``biased:10``, ``given`` …).

    Returns:
        A warning, if an assumption of the loss does not hold; None otherwise.

    Raises:
        UserError: The combination makes no sense.
    """
    method = method_of(config.training.loss)
    if method.mixers and config.mixing.mix not in method.mixers:
        raise UserError(
            f"{method.name} does not work with mix = {config.mixing.mix}; use {' or '.join(method.mixers)}.", "mix"
        )
    recipe = "self-training" if config.pseudo_labels.self_training else config.training.recipe
    if method.decoding == "nearest row" and recipe in RECIPE_METHODS:
        raise UserError(
            f"{RECIPE_METHODS[recipe].title} needs probabilities of classes, but {method.name} estimates those of "
            f"labels; use {_alternatives('required', 'largest logit')} or s-nl.",
            "loss",
        )
    if method.labels == "uniform" and (method.unbiased or method.batch) and labels.partition(":")[0] in NOT_UNIFORM:
        return (
            f"{method.name} is unbiased for uniform labels only, but labels = {labels}; losses that use the matrix: "
            f"{_alternatives('required')}, {_alternatives('inverted')}."
        )
    return None


def _alternatives(matrix: Matrix, decoding: str | None = None) -> str:
    found = [m.name for m in LOSS_METHODS.values() if m.matrix == matrix and decoding in (None, m.decoding)]
    return ", ".join(found)


# --- the table as text --------------------------------------------------------------------------------------------

HEADER = ("name", "method", "paper", "labels", "matrix", "prior", "several labels", "unbiased", "mixers", "class")


def row(method: Method) -> tuple[str, ...]:
    """A line of the table: cells for `HEADER`."""
    return (
        method.name,
        method.title,
        method.paper,
        method.labels,
        method.matrix if method.matrix != "not used" else "",
        "estimated" if method.prior else "",
        method.several,
        "yes" if method.unbiased else "",
        ", ".join(method.mixers) or "all",
        method.decoding,
    )


def markdown(kind: Literal["loss", "recipe"]) -> str:
    """The table of all losses or recipes in Markdown, as in the documentation."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    for method in METHODS.values():
        if method.kind == kind:
            first, *rest = row(method)
            lines.append("| " + " | ".join([f"`{first}`", *rest]) + " |")
    return "\n".join(lines) + "\n"


def as_json() -> list[dict[str, Any]]:
    """Every method as a dictionary."""
    return [asdict(method) for method in METHODS.values()]

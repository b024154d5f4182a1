"""Which examples are learnt from, and what is said of them: subset, complementary labels, transition matrices."""

from torch import Tensor

from complementary import labels, long_tail, transitions
from complementary.config import Config
from complementary.data import Dataset
from complementary.data.registry import TABLE
from complementary.errors import UserError


def supervise(config: Config, dataset: Dataset) -> tuple[Tensor, Tensor | None, Tensor]:
    """Choose the examples and their labels -> (index int [M], generating matrix [K, K] or None, excluded [M, K])."""
    source, classes, train = config.dataset, len(dataset.classes), dataset.train
    if train.truth is None and train.excluded is None:
        raise UserError(
            f"The set {dataset.name} holds no labels at all, which is enough for cll pretrain only; give complementary "
            "ones (not_y in an .npz, or cll data import --labels)."
        )
    spec, ratio = resolve(config, dataset)
    seed = None if source.draws == "paper" or source.subset == "first" else config.seed
    chosen = long_tail.subset(train.truth, classes, len(train), ratio, source.head, dataset.head, seed)
    if spec == "given":
        if train.excluded is None:
            raise UserError(f"The set {dataset.name} comes without complementary labels; use --labels uniform.")
        return chosen, None, train.excluded[chosen]
    truth = truth_of(dataset, "drawing labels")[chosen]
    transition = transitions.parse(spec, classes)
    if source.draws == "paper":
        if spec != "uniform" or source.per_example != 1:
            raise UserError("--draws paper knows only one uniform label per example; drop it for other labels.")
        return chosen, transition, labels.draw_as_paper(truth, classes)
    excluded = labels.draw(truth, transition, source.per_example, config.seed)
    return chosen, labels.marginal(transition, source.per_example), excluded


def resolve(config: Config, dataset: Dataset) -> tuple[str, float]:
    """What --labels and --long-tail come to: (label spec without auto and setups, long-tail ratio)."""
    spec, ratio = config.dataset.labels, config.dataset.long_tail
    if spec == "auto":
        return ("uniform" if dataset.train.excluded is None else "given"), ratio
    if not spec.startswith("setup"):
        return spec, ratio
    tail, inner = long_tail.setup(spec)
    if ratio not in (1.0, tail):
        raise UserError(f"--labels {spec} sets the long tail to {tail:g}, but --long-tail says {ratio:g}.")
    return inner, tail


def truth_of(dataset: Dataset, purpose: str) -> Tensor:
    """The true labels int [N], or a sentence that says what needed them."""
    if dataset.train.truth is None:
        raise UserError(f"The set {dataset.name} has no true labels, which {purpose} needs; use --labels given.")
    return dataset.train.truth


def matrices(
    config: Config, truth: Tensor | None, excluded: Tensor, generating: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(matrix for SCEL and URE, matrix for the loss): only the second may be an oracle."""
    classes, spec = excluded.shape[1], config.training.transition
    known = transitions.uniform(classes) if generating is None else generating
    if spec in ("auto", "estimate"):  # the estimate needs a first training; it replaces this later
        return known, known
    if spec == "oracle":
        if truth is None:
            raise UserError("--transition oracle counts the true labels, but this set has none; use estimate.")
        return known, transitions.empirical_transition(truth, excluded)
    matrix = transitions.parse(spec, classes)
    return matrix, matrix


def count_examples(config: Config) -> int:
    """The number of training examples of a named dataset, before a validation split is held out."""
    chosen, named = config.dataset, TABLE[config.dataset.data]
    if chosen.long_tail == 1 and chosen.head is None:
        return named.train
    head = chosen.head or named.head or named.train // len(named.classes)
    return sum(long_tail.class_sizes(head, chosen.long_tail, len(named.classes)))


def same_for_all_seeds(config: Config) -> bool:
    """Whether runs with different seeds train on the same examples."""
    chosen = config.dataset
    everything = chosen.long_tail == 1 and chosen.head is None
    return everything or chosen.draws == "paper" or chosen.subset == "first"

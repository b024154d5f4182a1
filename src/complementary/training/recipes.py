"""Recipes: ``recipe = auto`` chooses one for the data and the device, and every recipe adapts to them.

| data | recipe = auto |
|---|---|
| vectors | ICM within clusters of the vectors, then self-training |
| vectors of more than ten classes | a discriminant from the labels of neighbors, then self-training of an MLP |
| images with an encoder (given, cached or stored), on a GPU | a linear layer on its features, then self-training |
| images with an encoder, on a CPU | a linear layer on its features: fine-tuning the encoder would take hours |
| images without one, on a GPU | the same after pretraining SimSiam |
| images without one, on a CPU | self-training of a linear layer on features of ``patches``, fitted in a minute |
| images of less than 16 pixels, or ``encoder = pixels`` | ICM within clusters of pixels, then self-training |

For more than ten classes, the layer on features of an encoder is a discriminant in closed form from the labels of
neighbors (``fit``), and self-training uses these labels, too. Neighbors by features of patches are not good enough.

If the labels came with the data and there are enough of them, the transition matrix is estimated, too. For images
without an encoder it is not: a classifier that is often wrong cannot tell a biased answer from a mistake of its own.
"""

import logging
import math
from typing import Any

import torch

from complementary.clusters.features import MIN_SIZE, find_encoder_of
from complementary.config import CLOSED_FORM, ONLY_ON_FEATURES, TAIL, Config, options_of
from complementary.data import Dataset
from complementary.data.selection import Subset, label_source, select
from complementary.encoders.patches import expected_seconds
from complementary.encoders.spec import OBJECTIVE_NAMES
from complementary.errors import UserError
from complementary.training.discriminant import MOST_FEATURES, usual_neighbors

log = logging.getLogger(__name__)
TUNED_CLASSES = 10  # the weight decay suits as many; gradients of complementary losses fall with the number of classes
TUNED_EXAMPLES = 3600  # of features of patches: more examples need less weight decay (docs/notes/self-training.md)
LOWEST_PATCHES_DECAY = 0.01  # of the weight decay for as many
LABELS_PER_ENTRY = 50  # of a transition matrix that is estimated
STEPS = {"vectors": (1500, 3000), "images": (700, 500)}  # of the first classifier and self-training, without encoder
PATCHES_STEPS = 640  # of self-training on features of patches
PRETRAINING_IMAGES = 40_000_000  # images seen in a pretraining: 800 epochs of 50,000


def resolve(config: Config, dataset: Dataset, device: torch.device) -> Config:
    """Replace ``recipe = auto`` by a recipe, and adapt recipes that need features to vectors.

    With ``recipe = auto``, options that were given (`Config.given`) stay as they are, unless they were given as
    ``auto``, and so do those that differ from their defaults. Other recipes adapt what they set for a layer on
    features: vectors have a network of their own, and the weight decay is too large for more than ten classes and for
    features of patches of many images. What was chosen, and why, is one line in the log.

    Args:
        config: The configuration.
        dataset: Its dataset.
        device: Where it is trained.
    """
    recipe, vectors = config.training.recipe, dataset.train.inputs.ndim == 2
    if recipe == "auto":
        config = _choose(config, dataset, device)
    elif vectors and recipe in ("features", "self-training") and config.dataset.inputs == "features":
        preset = config.of_recipe() | config.of_recipe("fit")
        flat, raw = config.flat(), Config.of(recipe=recipe, inputs="raw").flat()
        usual = {name: raw[name] for name in ONLY_ON_FEATURES if flat[name] == preset.get(name)}
        shown = "".join(f"; {name} = {value}" for name, value in usual.items())
        log.info("the inputs are vectors, so %s is used without an encoder%s", recipe, shown)
        config = config.with_(inputs="raw", **usual)
    if config.dataset.inputs == "features" and _has_usual_decay(config):
        classes = len(dataset.classes)
        factor = min(1.0, TUNED_CLASSES / classes)
        if config.cluster.encoder == "patches" and not config.is_balanced:
            examples = len(Subset.of(config).index(dataset))
            factor *= min(1.0, max(LOWEST_PATCHES_DECAY, (TUNED_EXAMPLES / examples) ** 1.5))
        if factor < 1:
            decay = config.training.weight_decay * factor
            log.info("weight_decay = %.2g, for the number of classes and examples", decay)
            config = config.with_(weight_decay=decay)
    return config


def _has_usual_decay(config: Config) -> bool:
    """Whether the weight decay is the one that the recipe sets for a layer on features."""
    return config.training.weight_decay == config.of_recipe("fit").get("weight_decay")


def _choose(config: Config, dataset: Dataset, device: torch.device) -> Config:
    given = _given(config)
    examples, _, excluded = select(config, dataset)
    count, classes = excluded.shape
    if count < classes:
        raise UserError(f"There are {count} examples of {classes} classes; at least one per class is needed.", "data")
    recipe = "self-training"
    options: dict[str, Any] = {"batch": given.get("batch", max(2, min(512, max(16, count // 16), count // 2)))}
    many = _wants_discriminant(config, given, dataset)
    if dataset.train.inputs.ndim == 2 and many:
        reason = f"vectors{' of many classes' if classes > TUNED_CLASSES else ''}: self-training of an MLP"
        options |= _raw(count, options["batch"], "vectors") | {"mix": "none", "model": "linear", "student": "mlp"}
    elif dataset.train.inputs.ndim == 2:
        reason, options = "vectors: ICM, then self-training", options | _raw(count, options["batch"], "vectors")
    else:
        encoder: str | None = config.cluster.encoder
        found: object = encoder
        small = min(dataset.train.inputs.shape[2:]) < MIN_SIZE
        if encoder in ("auto", "pixels", "patches"):
            found = find_encoder_of(config, dataset, examples) if encoder == "auto" else None
        if found is not None and device.type == "cuda":
            reason, options = f"images with the encoder {found}: self-training on it", options | {"encoder": str(found)}
        elif found is not None:
            reason = f"images with the encoder {found}, no GPU to fine-tune it: a linear layer on its features"
            recipe, options = "features", options | {"encoder": str(found)}
        elif device.type == "cuda" and encoder == "auto" and not small:
            epochs = given.get("pretrain_epochs", max(50, min(800, PRETRAINING_IMAGES // count)))
            reason = f"images and a GPU: {epochs} epochs of SimSiam, then self-training on it"
            options |= {"encoder": "simsiam", "pretrain_epochs": epochs}
        elif encoder != "pixels" and not small:
            seconds = expected_seconds(count, tuple(dataset.train.inputs.shape[1:])) / torch.get_num_threads()
            reason = (
                "images without an encoder, no GPU to pretrain one: self-training on features of patches, which "
                f"take about {math.ceil(seconds / 60)} min. An encoder that was pretrained elsewhere is more accurate"
            )
            steps = max(1, int(0.9 * count) // options["batch"])
            options |= {"encoder": "patches", "self_training": max(10, min(40, -(-PATCHES_STEPS // steps)))}
        else:
            reason = "images without an encoder: ICM in clusters of pixels, then self-training"
            options |= _raw(count, options["batch"], "images")
            options |= {"mix": "none", "model": "linear"} if given.get("fit") in CLOSED_FORM and many else {}
    on_encoder, on_vectors = options.get("encoder", "patches") != "patches", options.get("student") == "mlp"
    if many and (on_encoder or on_vectors):
        why = f"as fit = {given['fit']}" if "fit" in given else "because one label carries little information"
        own = " from the labels of neighbors" if given.get("fit", "neighbors") == "neighbors" else ""
        reason += f"; a discriminant{own} first, {why}"
        options["fit"] = "neighbors"
    if config.is_balanced and "inputs" in options:
        reason += "; a loss and neighbors for rare classes"
        options |= {"loss": TAIL["loss"], "neighbors": min(TAIL["neighbors"], usual_neighbors(count, classes))}
    preset = config.preset({"recipe": recipe})
    if (
        recipe == "self-training"
        and classes > TUNED_CLASSES
        and (on_encoder or on_vectors)
        and "neighbors" not in preset
    ):
        options["neighbors"] = usual_neighbors(count, classes)
    if options.get("encoder") in (*OBJECTIVE_NAMES, "patches") and config.cluster.encoder_seed is None:
        options["pretrain_images"] = "training"  # so that the estimated accuracy is for new images
    cheap = dataset.train.inputs.ndim == 2 or options.get("encoder", "patches") != "patches"
    if cheap and label_source(config, dataset) == "given" and int(excluded.sum()) >= LABELS_PER_ENTRY * classes**2:
        reason += "" if "transition" in given else "; the transition matrix is estimated"
        options |= {"transition": "estimate"} | ({} if config.is_balanced else {"loss": "fwd"})
    reason += _describe_given(given, preset | options)
    log.info("recipe = auto: %s", reason)
    return Config.of(**({"recipe": recipe} | options | given)).with_given(given)


def _describe_given(given: dict[str, Any], chosen: dict[str, Any]) -> str:
    """The end of the line in the log: the given options that replace what would be chosen."""
    replaced = [name for name in given if name not in ("fit", "batch") and chosen.get(name, given[name]) != given[name]]
    values = {name: str(given[name]) for name in replaced}
    shown = [f"{name} = {value if len(value) <= 40 else '…'}" for name, value in values.items()]  # not a whole matrix
    return f"; as given: {', '.join(shown)}" if shown else ""


def _wants_discriminant(config: Config, given: dict[str, Any], dataset: Dataset) -> bool:
    """Whether a discriminant is fitted, if the inputs of the classifier are features or vectors."""
    if given.get("model", "linear") != "linear" or given.get("mix", "none") != "none":
        return False
    if "fit" in given:
        return given["fit"] in CLOSED_FORM
    inputs = dataset.train.inputs
    possible = inputs.ndim > 2 or inputs.shape[1] <= MOST_FEATURES
    return possible and len(dataset.classes) > TUNED_CLASSES and not config.is_balanced


def _raw(count: int, batch: int, kind: str) -> dict[str, Any]:
    """Options of self-training without an encoder, with a number of epochs that suits ``count`` vectors or images."""
    steps = max(1, int(0.9 * count) // batch)
    epochs, self_training = (max(20, min(150, -(-wanted // steps))) for wanted in STEPS[kind])
    clusters = min(50, max(2, count // 20))
    return {
        "inputs": "raw",
        "loss": "s-nl",
        "mix": "icm",
        "clusters": clusters,
        "epochs": epochs,
        "self_training": self_training,
    }


def _given(config: Config) -> dict[str, Any]:
    """The options that were given or differ from what ``recipe = auto`` starts from, except for the recipe.

    An option that was given as ``auto`` is one to choose.
    """
    start, flat = Config.of(recipe="auto").flat(), config.flat()
    names = [name for name in options_of(Config) if name in config.given or flat[name] != start[name]]
    return {name: flat[name] for name in names if name != "recipe" and flat[name] != "auto"}

"""From examples to the unit vectors that are clustered: by an encoder, from raw pixels, or from a file."""

import functools
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from complementary import files
from complementary.clusters import cache
from complementary.clusters.kmeans import LARGE
from complementary.config import Config, PretrainConfig
from complementary.data import Dataset
from complementary.data.rows import Rows, rows_of
from complementary.data.selection import Subset, validation_split
from complementary.encoders import patches
from complementary.encoders.backbone import (
    build_backbone,
    default_backbone,
    extract_features,
    load_backbone,
    load_encoder,
)
from complementary.encoders.external import load_external
from complementary.encoders.pretrain import pretrain
from complementary.encoders.seen import image_digests, read_seen
from complementary.encoders.spec import EXTERNAL, WEIGHTS, EncoderSpec
from complementary.engine.backend import Engine, choose_device
from complementary.errors import UserError, load_plugin
from complementary.networks import Network
from complementary.reports.terminal import log_progress

log = logging.getLogger(__name__)

MIN_SIZE = 16  # pixels; raw pixels of smaller images are clustered without a warning
BLOCK = 4096  # images whose pixels are converted at a time
STORED = Path("results/encoders")  # encoders of the repository, if the working directory is a checkout


class FeatureExtractor:
    """Computes the features of the examples of one run.

    Everything is computed on first use. Features of many examples are cached on disk, and those of the training
    examples are also kept in memory.

    Attributes:
        config: The configuration of the run.
        dataset: Its dataset.
        chosen: Its training examples, int [M], an index into the training split.
        inputs: Their inputs, [M, ...].
        engine: The engine that pretrains the encoder, or the name of a device.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        chosen: Tensor,
        device: str | Engine = "auto",
        progress: Callable[[Any], None] | None = None,
    ) -> None:
        self.config, self.dataset, self.chosen, self.engine = config, dataset, chosen, device
        self.inputs = rows_of(dataset.train.inputs, chosen)
        self.mirror = config.cluster.mirror
        self._progress = progress

    @property
    def device(self) -> torch.device:
        """Where networks compute."""
        return self.engine.device if isinstance(self.engine, Engine) else choose_device(self.engine)

    @functools.cached_property
    def encoder(self) -> EncoderSpec:
        """The encoder of the configuration; ``auto`` is resolved on first use, with a line in the log."""
        spec = EncoderSpec.parse(self.config.cluster.encoder)
        spec = self._resolve_auto() if spec.kind == "auto" else spec
        if self.mirror:
            self._check_mirror(spec)
        if self.config.dataset.inputs == "features":
            self._check_network(spec)
        return spec

    @functools.cached_property
    def train(self) -> Tensor:
        """Unit vectors of the training examples, float32 [M, D], on the CPU; float16 for pixels of many images."""
        if self.encoder.kind == "embeddings":
            return F.normalize(read_embeddings(self.encoder, len(self.dataset.train))[self.chosen])
        return self._extract(self.inputs)

    def test(self) -> Tensor | None:
        """Unit vectors of the test examples, float32 [T, D]; None if there are none or vectors come from a file."""
        if self.dataset.test is None or self.encoder.kind == "embeddings":
            return None
        return self._extract(Rows(self.dataset.test.inputs))

    def backbone(self) -> Network:
        """The network that computes the features; it is pretrained if necessary."""
        inputs, spec = self.dataset.train.inputs, self.encoder
        if inputs.ndim != 4:
            raise UserError(
                f"The dataset {self.dataset.name} holds vectors, but the encoder {spec} needs images; use pixels.",
                "encoder",
            )
        shape = tuple(inputs.shape[1:])
        if spec.kind == "random":
            return build_backbone(default_backbone(shape), shape, self.pretraining.seed, True)[0]
        if spec.kind == "patches":
            return self._patches
        if spec.kind in EXTERNAL:
            return load_external(spec.kind, spec.name, torch.tensor(self.dataset.mean), torch.tensor(self.dataset.std))
        if spec.weights is not None:
            return load_backbone(spec, shape)
        folder = cached_encoder(self.pretraining, self.dataset, self.engine, self._progress)
        return load_encoder(folder / WEIGHTS, shape)

    def seen(self) -> Tensor | None:
        """Digests of the images that the network was pretrained on, int64 [P] (see `encoders.seen`).

        None: not known, because the encoder was made elsewhere, or by a version that did not note it.
        """
        spec = self.encoder
        if spec.kind == "random":
            return torch.zeros(0, dtype=torch.int64)
        if spec.kind == "patches":
            return image_digests(patches.chosen_images(self._pretraining_images, self.pretraining.seed))
        if spec.is_pretrained_here:
            return read_seen(encoder_folder(self.pretraining, self.dataset) / WEIGHTS)
        return None if spec.weights is None else read_seen(spec.weights)

    @functools.cached_property
    def _patches(self) -> Network:
        """The encoder ``patches``, fitted to the images of `_pretraining_images`."""
        images = self._pretraining_images
        log.info("fitting the encoder patches to images, %s at most", f"{patches.IMAGES:,}")
        mean, std = (torch.tensor(t, device=self.device) for t in (self.dataset.mean, self.dataset.std))
        return patches.fit_patches(images, mean, std, self.pretraining.seed)

    @property
    def _pretraining_images(self) -> Rows:
        """The images that an encoder of this run is pretrained on, [P, C, H, W]."""
        return rows_of(self.dataset.train.inputs, Subset.of(self.pretraining).index(self.dataset))

    @functools.cached_property
    def pretraining(self) -> PretrainConfig:
        """The pretraining of this run's encoder: on the images of the run, with or without the held-out ones."""
        cluster, subset = self.config.cluster, Subset.of(self.config)
        seed = self.config.seed if cluster.encoder_seed is None else cluster.encoder_seed
        held_out = cluster.pretrain_images == "training"
        if held_out and seed != self.config.seed:
            raise UserError(
                f"pretrain_images = training leaves out the held-out images of seed {self.config.seed}, but "
                f"encoder_seed is {seed}; leave out one of the two.",
                "encoder_seed",
            )
        pretraining = PretrainConfig(
            data=self.dataset.name,
            long_tail=subset.long_tail,
            head=subset.head,
            subset=subset.order,
            encoder=self.encoder.kind if self.encoder.is_pretrained_here else "simsiam",  # type: ignore[arg-type]
            epochs=cluster.pretrain_epochs,
            seed=seed,
            holdout=self.config.dataset.holdout if held_out else 0.0,
        )
        return replace(pretraining, batch=min(pretraining.batch, len(Subset.of(pretraining).index(self.dataset))))

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the training inputs."""
        return files.fingerprint_rows(self.inputs)

    def key(self) -> dict[str, Any] | None:
        """Everything that determines `train`, JSON-able; None if the encoder cannot be read.

        Files count by their content, not by their name.
        """
        return self._key(self.fingerprint)

    def _encoder_identity(self) -> str:
        """A text that differs whenever the encoder does."""
        spec = self.encoder
        if spec.kind in ("pixels", "random"):
            return f"{spec.kind} {self.pretraining.seed if spec.kind == 'random' else ''}"
        if spec.kind == "patches":
            images = files.fingerprint_rows(self._pretraining_images)
            return f"{spec.kind} {patches.VERSION} {self.pretraining.seed} {images}"
        if spec.kind == "embeddings":
            vectors = read_embeddings(spec, len(self.dataset.train))[self.chosen]
            return f"{spec.kind} {files.fingerprint_rows(vectors)}"
        if spec.kind == "plugin":
            return f"{spec.kind} {files.fingerprint_rows(self.train)}"
        if spec.kind in EXTERNAL:
            return f"{spec} {files.fingerprint(self.backbone().state_dict())}"
        if spec.weights is not None:
            return f"{spec.kind} {files.fingerprint_file(spec.weights)}"
        return encoder_folder(self.pretraining, self.dataset).name

    # --- auto ---------------------------------------------------------------------------------------------------------

    def _resolve_auto(self) -> EncoderSpec:
        wants_network = self.config.dataset.inputs == "features"
        small = self.inputs.ndim != 4 or min(self.inputs.shape[2:]) < MIN_SIZE
        if small and not wants_network:
            return EncoderSpec("pixels")
        found = _find_encoder(self.fingerprint, _without_held_out(self.config, self.inputs))
        if found is not None:
            log.info("encoder = auto: using %s", found)
            return found
        if not wants_network:
            log.warning(
                "%s mixes within clusters of raw pixels, because encoder = auto found no pretrained encoder for these "
                "images. On CIFAR-10, 17.1 %% of such mixes carry a wrong label, against 3.7 to 6 %% with an encoder. "
                "Set encoder = simsiam to pretrain one first (once, best on a GPU), or encoder = run:FOLDER after "
                "`cll pretrain`; encoder = pixels silences this warning.",
                self.config.mixing.mix,
            )
        return EncoderSpec("pixels")

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check_network(self, spec: EncoderSpec) -> None:
        if self.dataset.train.inputs.ndim != 4:
            raise UserError(
                f"The dataset {self.dataset.name} holds vectors, but inputs = features needs images; use raw.", "inputs"
            )
        if not spec.is_network:
            wanted = self.config.cluster.encoder
            found = f"{wanted}, which found none in the cache" if wanted == "auto" else str(spec)
            raise UserError(
                f"inputs = features needs a pretrained encoder, but encoder is {found}; use simsiam, run:FOLDER or "
                "file:WEIGHTS. (To train on vectors computed elsewhere, use them as the dataset: an .npz file.)",
                "encoder",
            )

    def _check_mirror(self, spec: EncoderSpec) -> None:
        flip = self.config.training.flip
        if flip is False:
            raise UserError("mirror contradicts flip = False, which says that flips change the class.", "mirror")
        if not (self.dataset.flip or flip):
            name = self.dataset.name
            raise UserError(f"Horizontal flips may change the class of images of {name}; do not use mirror.", "mirror")
        if not spec.is_network:
            raise UserError(f"mirror needs an encoder that is a network, such as simsiam, not {spec.kind}.", "mirror")

    # --- computation --------------------------------------------------------------------------------------------------

    def _extract(self, inputs: Rows) -> Tensor:
        """Inputs [N, ...] -> unit vectors float32 [N, D], on the CPU."""
        if self.encoder.kind == "pixels":
            return _unit_pixels(inputs)
        if self.encoder.kind == "plugin":
            return F.normalize(self._compute_own(inputs))
        slow = self.encoder.kind in ("patches", *EXTERNAL)  # on a CPU some 15 ms per image, and more
        many = len(inputs) >= (cache.MIN_SLOW if slow else cache.MIN_EXAMPLES)
        key = None
        if many:
            key = self._key(self.fingerprint if inputs is self.inputs else files.fingerprint_rows(inputs))
        return cache.cached_vectors("features", key, lambda: self._compute(inputs, many))

    def _compute_own(self, inputs: Rows) -> Tensor:
        """Vectors of a function from outside the package, float32 [N, D]; not cached, because it may change."""
        vectors = torch.as_tensor(load_plugin("encoders", self.encoder.name)(inputs.whole())).float().cpu()
        if vectors.ndim != 2 or len(vectors) != len(inputs):
            raise UserError(
                f"The encoder {self.encoder} returned shape {list(vectors.shape)}, but one vector per image is needed: "
                f"[{len(inputs)}, D].",
                "encoder",
            )
        return vectors

    def _compute(self, inputs: Rows, many: bool) -> Tensor:
        device, count = self.device, len(inputs)
        backbone = self.backbone().to(device)
        backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the fastest layout
        if many:
            log.info("computing features of %s images with %s", f"{count:,}", self.encoder)
        mean, std = (torch.tensor(t, device=device) for t in (self.dataset.mean, self.dataset.std))

        def progress(done: int) -> None:
            log_progress(log, f"features of {count:,} images", done, count)

        return extract_features(backbone, inputs, mean, std, mirror=self.mirror, progress=progress).cpu()

    def _key(self, fingerprint: str) -> dict[str, Any] | None:
        try:
            encoder = self._encoder_identity()
        except (OSError, UserError):
            return None  # computing the features will raise the right error
        dataset = self.dataset
        key = {"encoder": encoder, "inputs": fingerprint, "mean": list(dataset.mean), "std": list(dataset.std)}
        return key | ({"mirror": True} if self.mirror else {})


def _unit_pixels(inputs: Rows) -> Tensor:
    """Raw inputs [N, ...] as unit vectors [N, D], converted in blocks; float16 for many images, to save memory."""
    kind = torch.float16 if inputs.ndim == 4 and len(inputs) > LARGE else torch.float32
    vectors, done = torch.empty(len(inputs), inputs.shape[1:].numel(), dtype=kind), 0
    for part in inputs.split(BLOCK):
        vectors[done : done + len(part)] = F.normalize(part.flatten(1).float())
        done += len(part)
    return vectors


# --- pretrained encoders ---------------------------------------------------------------------------------------------


def cached_encoder(
    config: PretrainConfig,
    dataset: Dataset,
    device: str | Engine = "auto",
    progress: Callable[[Any], None] | None = None,
) -> Path:
    """Pretrain an encoder in the cache unless it is there: resume its pretraining, or wait for another process.

    Args:
        config: The pretraining.
        dataset: The dataset.
        device: The device, or the engine that computes.
        progress: Called after every step.

    Returns:
        The folder of the encoder.
    """
    folder = encoder_folder(config, dataset)
    result = folder / "result.json"
    if result.exists():
        return folder
    with cache.stage_lock(folder.name, f"pretraining {config.encoder} on the same images"):
        if not result.exists():
            log.info("pretraining %s on %s, %d epochs, in %s", config.encoder, config.data, config.epochs, folder)
            pretrain(config, folder, resume=True, device=device, progress=progress, dataset=dataset)
    return folder


def encoder_folder(config: PretrainConfig, dataset: Dataset) -> Path:
    """Folder of an encoder in the cache: named by its configuration and by the content of its training images."""
    images = rows_of(dataset.train.inputs, Subset.of(config).index(dataset))
    return cache.stage_path(f"pretrain-{config.hash()[:16]}-{files.fingerprint_rows(images)[:16]}")


def find_encoder_of(config: Config, dataset: Dataset, examples: Tensor) -> EncoderSpec | None:
    """An encoder that was pretrained on the images of a run (see `_find_encoder`); None if there is none.

    Args:
        config: The configuration of the run.
        dataset: The dataset, of images.
        examples: Positions of the examples in its training split, int [M].
    """
    if min(dataset.train.inputs.shape[2:]) < MIN_SIZE:
        return None
    images = rows_of(dataset.train.inputs, examples)
    return _find_encoder(files.fingerprint_rows(images), _without_held_out(config, images))


def _without_held_out(config: Config, images: Rows) -> str:
    """SHA-256 of the images [M, ...] of a run without its validation split."""
    train, _ = validation_split(len(images), config.dataset.holdout, config.seed)
    return files.fingerprint_rows(images.take(train))


def _find_encoder(fingerprint: str, without_held_out: str) -> EncoderSpec | None:
    """Find an encoder that was pretrained on exactly these images; the one with the most epochs.

    Of two with the same number of epochs, the one that has not seen the held-out images is preferred.

    It is searched in the cache and, in a checkout of the repository, in results/encoders, where index.json lists the
    encoders and their images.

    Args:
        fingerprint: SHA-256 of the images.
        without_held_out: SHA-256 of those that are not held out.

    Returns:
        The encoder, ``run:FOLDER`` or ``file:WEIGHTS``; None if there is none.
    """
    found: list[tuple[int, bool, str, EncoderSpec]] = []
    for new, images in enumerate((fingerprint, without_held_out)):
        for folder in cache.stage_path("").glob(f"pretrain-*-{images[:16]}"):
            record = files.read_record(folder / WEIGHTS)
            if (folder / "result.json").exists() and record:
                found.append((record.get("epochs", 0), bool(new), folder.name, EncoderSpec("run", folder)))
    index = STORED / "index.json"
    for entry in json.loads(index.read_text(encoding="utf-8")) if index.exists() else []:
        path = STORED / entry["file"]
        if entry["images_sha256"] == fingerprint and path.exists():
            found.append((entry["epochs"], False, path.name, EncoderSpec("file", path)))
    return max(found, key=lambda one: one[:3])[3] if found else None


def read_embeddings(encoder: EncoderSpec, count: int) -> Tensor:
    """Read a .npy table of vectors, float [N, D], with one row for each of ``count`` training examples."""
    path = encoder.path
    assert path is not None
    if not path.exists():
        raise UserError(f"There is no file {path} of embeddings.", "encoder")
    advice = "save a .npy table of numbers with numpy.save"
    # np.load does not close a broken archive that it opened itself
    with files.reading(f"The embeddings {path}", advice, "encoder"), path.open("rb") as file:
        table = torch.from_numpy(np.load(file, allow_pickle=False)).float()
    if table.ndim != 2 or len(table) != count:
        raise UserError(
            f"The embeddings {path} have shape {list(table.shape)}, but one row per training example is needed: "
            f"[{count}, D].",
            "encoder",
        )
    return table

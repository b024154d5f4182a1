"""The study of noise ratios. They are known before any training, so no classifier is trained. An oracle study.

Each setting and seed is a small file in the store, beside those of the trainings.
"""

import contextlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from complementary import data
from complementary.clusters.features import FeatureExtractor, encoder_folder
from complementary.config import Config
from complementary.data import Dataset
from complementary.data.selection import Subset
from complementary.encoders.spec import EncoderSpec
from complementary.engine.backend import choose_device, device_name, one_thread, versions
from complementary.errors import UserError
from complementary.files import atomic_write
from complementary.paper.store import measurement_files, read_measurement
from complementary.paper.studies import Protocol
from complementary.sweeps.grid import Cell
from complementary.training.task import build_task

log = logging.getLogger(__name__)


def run(
    cells: Sequence[Cell], store: Path, protocol: Protocol, pretrain: bool = False, device: str = "auto"
) -> dict[str, list[str]]:
    """Count the noise ratio of each cell that is not in the store yet.

    Args:
        cells: the settings.
        store: where the files are written.
        protocol: recorded in the files.
        pretrain: train an encoder that is neither stored nor cached; otherwise settings that need it are skipped.
        device: where an encoder computes.

    Returns:
        Why settings were skipped -> the names of these settings.
    """
    folder = store / "noise"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be created ({error.strerror}); name another one.", "out") from None
    known, source, skipped = done(store), _Datasets(), dict[str, list[str]]()
    for cell in cells:
        if cell.config.hash() in known:
            continue
        try:
            content = _count(cell.config, source.load(cell.config.dataset.data), pretrain, device)
        except UserError as error:
            names, name = skipped.setdefault(str(error), []), _setting_name(cell.config)
            names += [name] if name not in names else []
            continue
        path = folder / _file_name(cell.config, protocol)
        atomic_write(path, json.dumps(content | {"protocol": protocol}, sort_keys=True) + "\n")
        log.info("%s: %.2f %% noisy mixes", cell.name, 100 * content["oracle_noise_ratio"])
    return skipped


def done(store: Path) -> set[str]:
    """The hashes of the configurations whose noise ratio is in a store."""
    return {read_measurement(path)["config_hash"] for path in measurement_files([store], "noise")}


def _count(config: Config, dataset: Dataset, pretrain: bool, device: str) -> dict[str, Any]:
    started, where = time.time(), choose_device(device)
    if not pretrain:
        _check_encoder(config, dataset)
    with one_thread() if _has_clusters(config) else contextlib.nullcontext():
        facts = dict(build_task(config, dataset, str(where)).data_summary)
    return {
        "oracle_noise_ratio": facts.pop("oracle_noise_ratio"),
        "data": facts,
        "config": asdict(config),
        "seconds": round(time.time() - started, 3),
        "device": device_name(where),
        "versions": versions(),
    }


def _has_clusters(config: Config) -> bool:
    """Whether no clusters have to be computed."""
    return config.mixed_within != "clusters" or config.cluster.assignments is not None


def needs_pretraining(config: Config, dataset: Dataset) -> bool:
    """Whether an encoder would have to be pretrained first: it is neither stored nor cached."""
    if _has_clusters(config) or not EncoderSpec.parse(config.cluster.encoder).is_pretrained_here:
        return False
    extractor = FeatureExtractor(config, dataset, Subset.of(config).index(dataset))
    return not (encoder_folder(extractor.pretraining, dataset) / "result.json").exists()


def _check_encoder(config: Config, dataset: Dataset) -> None:
    """Raise if an encoder would have to be pretrained first."""
    cluster = config.cluster
    if needs_pretraining(config, dataset):
        raise UserError(
            f"no clusters of {cluster.encoder} for these images are stored, and {cluster.encoder} was not pretrained "
            f"on them for {cluster.pretrain_epochs} epochs; name a folder of assignments, or allow pretraining, which "
            "needs a GPU",
            "pretrain",
        )


class _Datasets:
    """Loads each dataset once; also remembers that one is not available."""

    def __init__(self) -> None:
        self._known: dict[str, Dataset | UserError] = {}

    def load(self, name: str) -> Dataset:
        if name not in self._known:
            try:
                self._known[name] = data.load(name)
            except UserError as error:
                self._known[name] = error
        found = self._known[name]
        if isinstance(found, UserError):
            raise found
        return found


def _file_name(config: Config, protocol: Protocol) -> str:
    """``noise-cifar10-rho100-icm-ours-3f2a91c0d4e5-seed0.json``; the digits are those of the configuration's hash."""
    place = f"{config.dataset.data}-rho{config.dataset.long_tail:g}-{config.mixing.mix}-{protocol}"
    return f"noise-{place}-{config.hash()[:12]}-seed{config.seed}.json"


def _setting_name(config: Config) -> str:
    """A setting without its seed: ``cifar10 ρ=100 icm``."""
    tail = config.dataset.long_tail
    return " ".join([config.dataset.data, *[f"ρ={tail:g}"] * (tail > 1), config.mixing.mix])

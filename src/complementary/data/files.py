"""Reading files that others made, safely: folders, archives, pickles, text.

Archives are never unpacked on the disk: the wanted members are read by name, and an archive with a name
that would leave its folder is refused as a whole. A pickle is a program, and loading one with the standard
library runs whatever its author put in; here only a short list of what may be named is known.
"""

import csv
import gzip
import io
import pickle
import subprocess
import tarfile
import unicodedata
import zlib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from complementary.errors import UserError

Files = dict[str, bytes]
Lines = list[tuple[int, list[str]]]
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".deb")


def gather(place: Path, needs: tuple[str, ...]) -> Files | None:
    """Read the files that ``needs`` names from ``place``; None unless every one of them is there.

    ``needs``: name patterns such as ``data_batch_*`` or ``cifar100-train/*``, each also matched with
    ``.gz`` at its end. The result maps names (folder part as in the pattern, without ``.gz``) to content.
    """
    if place.is_dir():
        return _from_folder(place, needs)
    if place.name.endswith(ARCHIVES):
        return _from_archive(place, needs)
    if not place.is_file() or any(_match(place.name, need) is None for need in needs):
        return None
    return {_plain_name(place.name): _unzip(place.name, read_bytes(place))}


def _from_folder(folder: Path, needs: tuple[str, ...]) -> Files | None:
    found: Files = {}
    for need in needs:
        paths = _only_files(folder.glob(need)) or _only_files(folder.glob(need + ".gz"))
        if not paths:
            return None
        for path in paths:
            name = path.relative_to(folder).as_posix()
            found[_plain_name(name)] = _unzip(str(path), read_bytes(path))
    return found


def _only_files(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_file())


def _from_archive(path: Path, needs: tuple[str, ...]) -> Files | None:
    content = _debian_tar(path) if path.name.endswith(".deb") else None
    found: Files = {}
    met: set[str] = set()
    try:
        with tarfile.open(path) if content is None else tarfile.open(fileobj=io.BytesIO(content)) as archive:
            members = archive.getmembers()
            _refuse_unsafe(path, (member.name for member in members))
            for member in members:
                for need in needs:
                    name = _match(member.name, need) if member.isfile() else None
                    stream = archive.extractfile(member) if name is not None else None
                    if name is not None and stream is not None:
                        found[_plain_name(name)] = _unzip(f"{path}:{member.name}", stream.read())
                        met.add(need)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as problem:
        raise UserError(f"{path} is damaged or cut short ({problem}). Get the file again.") from None
    return found if met == set(needs) else None


def _refuse_unsafe(path: Path, names: Iterable[str]) -> None:
    for name in names:
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise UserError(
                f"{path} holds the name {name!r}, which points outside the archive; no official file does. "
                "Nothing was read from it: get the file again from its official source."
            )


def _match(path: str, need: str) -> str | None:
    """The last parts of ``path``, as many as ``need`` has, if they match it with or without ``.gz``."""
    tail = "/".join(PurePosixPath(path).parts[-len(PurePosixPath(need).parts) :])
    return tail if fnmatchcase(tail, need) or fnmatchcase(tail, need + ".gz") else None


def _plain_name(name: str) -> str:
    return name.removesuffix(".gz")


def read_bytes(path: Path) -> bytes:
    """The content of a file, or a sentence that says why it cannot be had."""
    try:
        return path.read_bytes()
    except OSError as problem:
        raise UserError(f"{path} cannot be read ({problem.strerror or problem}).") from None


def _unzip(name: str, content: bytes) -> bytes:
    if not name.endswith(".gz"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as problem:
        raise UserError(f"{name} is damaged or cut short ({problem}). Get the file again.") from None


def _debian_tar(path: Path) -> bytes:
    """The files of a Debian package as one tar archive."""
    try:
        done = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(path)], capture_output=True, check=False)
    except FileNotFoundError:
        raise UserError(f"{path} is a Debian package, and dpkg-deb, which reads those, is not installed.") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise UserError(f"{path} cannot be read by dpkg-deb ({reason[0]}).")
    return done.stdout


# --- text ----------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """UTF-8 text, with or without a byte order mark, accents in their composed form (macOS splits them)."""
    try:
        return unicodedata.normalize("NFC", read_bytes(path).decode("utf-8-sig"))
    except UnicodeDecodeError as problem:
        raise UserError(f"{path} is not UTF-8 text ({problem}); save it as UTF-8.") from None


def read_rows(path: Path) -> Lines:
    """The lines of a CSV with commas or tabs, each with its number; empty ones are left out."""
    text = read_text(path)
    first = text.partition("\n")[0]
    stream = io.StringIO(text, newline="")  # a quoted cell may hold line ends
    reader = csv.reader(stream, delimiter="\t" if "\t" in first and "," not in first else ",")
    rows, number = [], 1
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append((number, row))
            number = reader.line_num + 1
    except csv.Error as problem:
        raise UserError(f"{path}, line {number}, is not CSV ({problem}).") from None
    return rows


# --- pickles -------------------------------------------------------------------------------------


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Stands in for ``_codecs.encode``, which Python 2 compatible pickles use to carry bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes written as {encoding!r}")
    return text.encode("latin1")


def _allowed() -> dict[tuple[str, str], Callable[..., Any]]:
    # asked of NumPy itself, since the modules they live in are private and were renamed in NumPy 2
    numpy_names: dict[tuple[str, str], Any] = {
        ("multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
        ("multiarray", "scalar"): np.float64(0).__reduce__()[0],
        ("numeric", "_frombuffer"): np.zeros(1).__reduce_ex__(5)[0],
    }
    names: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,
    }
    for core in ("numpy.core", "numpy._core"):
        names |= {(f"{core}.{module}", name): made for (module, name), made in numpy_names.items()}
    return names


class _PlainUnpickler(pickle.Unpickler):
    allowed = _allowed()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return self.allowed[module, name]


def unpickle(content: bytes, name: str) -> Any:
    """Return the plain value pickled in ``content``; ``name`` is what errors call the file.

    Strings of Python 2 are read as Latin-1. Anything but plain values and NumPy arrays is refused
    before it can run.
    """
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as problem:
        raise UserError(
            f"{name} is not a plain pickle of numbers, texts and arrays ({problem}), so it was not read: "
            "it could run code. Get the file again from its official source."
        ) from None
    except Exception as problem:  # a damaged pickle can fail in any way at all
        raise UserError(f"{name} is damaged ({type(problem).__name__}: {problem}). Get the file again.") from None

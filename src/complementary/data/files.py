"""Collect the files of a dataset into memory, from a folder, an archive or a single file.

Archives are never unpacked on the disk: the wanted members are read by name, and an archive with a name
that would leave its folder is refused as a whole.
"""

import gzip
import io
import subprocess
import tarfile
import zlib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from complementary.errors import UserError

Files = dict[str, bytes]
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
    return {_plain_name(place.name): _unzip(place.name, _read(place))}


def _from_folder(folder: Path, needs: tuple[str, ...]) -> Files | None:
    found: Files = {}
    for need in needs:
        paths = sorted(folder.glob(need)) or sorted(folder.glob(need + ".gz"))
        if not paths:
            return None
        for path in paths:
            name = path.relative_to(folder).as_posix()
            found[_plain_name(name)] = _unzip(str(path), _read(path))
    return found


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


def _read(path: Path) -> bytes:
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

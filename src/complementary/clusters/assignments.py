"""Cluster assignments as files: small, verified, bound to the images they belong to.

With such a file a classifier can be trained without the encoder: ``cll train --assignments FILE``.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import files
from complementary.data.rows import Rows
from complementary.errors import UserError

VERSION = 1


def write(path: Path, assignment: Tensor, clusters: int, inputs: Tensor | Rows, made_by: dict[str, Any]) -> None:
    """Store ``assignment`` int [M] of the examples ``inputs`` [M, ...], and the configuration that made it."""
    if len(assignment) != len(inputs) or int(assignment.max()) >= clusters:
        raise UserError(
            f"{len(assignment)} assignments, up to cluster {int(assignment.max())}, do not fit {len(inputs)} examples "
            f"and {clusters} clusters; nothing was written."
        )
    small = assignment.to(torch.uint8 if clusters <= 256 else torch.int32)
    record = {
        "version": VERSION,
        "clusters": clusters,
        "inputs_sha256": files.fingerprint_rows(inputs),
        "made_by": made_by,
    }
    files.write_checkpoint(path, {"assignment": small}, record)


def read(path: Path, inputs: Tensor | Rows | None = None) -> tuple[Tensor, dict[str, Any]]:
    """-> (assignment int64 [M], record). With ``inputs``, check that the file belongs to exactly these examples."""
    if not path.exists():
        raise UserError(f"There is no file {path.absolute()} of cluster assignments; make one with cll cluster --out.")
    tensors, record = files.read_checkpoint(path)
    if "assignment" not in tensors or record.get("version") != VERSION:
        raise UserError(f"{path} holds no cluster assignment of version {VERSION}; make one with cll cluster --out.")
    assignment = tensors["assignment"].long()
    if inputs is not None:
        if len(assignment) != len(inputs):
            raise UserError(
                f"{path} assigns {len(assignment)} examples, but this run has {len(inputs)}; the data, long tail and "
                "seed must be those it was made with."
            )
        if files.fingerprint_rows(inputs) != record["inputs_sha256"]:
            raise UserError(f"{path} was made for other examples of the same number; check data, long tail and seed.")
    return assignment, record

"""An objective with its body and heads, new or begun from an encoder that is there."""

from typing import Any

from complementary.encoders import ENCODERS
from complementary.encoders.body import build_body, describe
from complementary.encoders.weights import load_named
from complementary.errors import UserError
from complementary.rng import address, seeded


def build_objective(
    encoder: str, body: str, shape: tuple[int, ...], seed: int, max_pool: bool, start: str | None = None
) -> Any:
    """The named objective for images of ``shape`` [C, H, W], all of it depending on ``seed`` only.

    ``start``: take the body from ``run:FOLDER`` or ``file:WEIGHTS``; the heads are new.
    """
    network, width = build_body(body, shape, seed, max_pool)
    if start is not None:
        network.load_state_dict(_begun(start, shape, describe(network)))
    with seeded(address(seed, "heads")):
        return ENCODERS[encoder](network, width)  # type: ignore[call-arg]


def _begun(start: str, shape: tuple[int, ...], wanted: dict[str, Any]) -> dict[str, Any]:
    """The weights of the body that ``start`` names, which must be of the ``wanted`` kind."""
    found = load_named(start, shape)
    if found is None:
        raise UserError(f"The start {start!r} is not known; use run:FOLDER (of cll pretrain) or file:WEIGHTS.")
    if describe(found) != wanted:
        one, other = _named(describe(found)), _named(wanted)
        raise UserError(f"The encoder of --start {start} is {one}, but what is to learn is {other}; make them alike.")
    return found.state_dict()


def _named(kind: dict[str, Any]) -> str:
    pool = " without max-pool (--no-max-pool)" if not kind["max_pool"] else ""
    return f"--body {kind['body']}{pool}"

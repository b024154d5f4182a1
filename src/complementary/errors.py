"""The one exception that means "what you gave me cannot work", always a full sentence."""


class UserError(ValueError):
    """Bad input. The message names what was found, what was wanted and what to do.

    The command line prints it as it is and exits with status 2.
    """


def one_of(what: str, found: str, allowed: object) -> str:
    """Return ``found`` if ``allowed`` contains it, else raise a sentence that lists the choices."""
    choices = [str(a) for a in allowed]  # type: ignore[attr-defined]
    if found not in choices:
        raise UserError(f"{what} {found!r} is not known; choose one of: {', '.join(choices)}.")
    return found

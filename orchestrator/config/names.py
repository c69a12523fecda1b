"""Finding the name that a user most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_names(word: str, valid: Iterable[str], *, count: int = 1) -> list[str]:
    """The up to `count` names of `valid` that look most like `word`, best first; none if nothing is near."""
    names = {name.lower(): name for name in valid}
    return [names[near] for near in difflib.get_close_matches(word.lower(), names, n=count, cutoff=0.6)]


def name_remedy(word: str, valid: Iterable[str], *, what: str = "key", prefix: str = "") -> str:
    """A remedy for a misspelt name: the nearest valid one or, if none is near, all of them; shown after `prefix`."""
    names = list(valid)
    near = nearest_names(word, names)
    if near:
        return f"the nearest valid {what} is {prefix}{near[0]}"
    if not names:
        return f"remove it: no {what} is valid here"
    return f"valid {what}s are {', '.join(f'{prefix}{name}' for name in names)}"

"""Whether a spec can work at all: everything that two keys, or a key and the task, can get wrong together.

Nothing is started and nothing is repaired: the first thing that is known to be impossible is one `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.config.check_batch import check_batch
from orchestrator.config.check_lr import check_lr
from orchestrator.config.check_search import check_search
from orchestrator.config.check_task import check_task
from orchestrator.config.facts import Facts
from orchestrator.config.load import source_of
from orchestrator.config.reach import Reach
from orchestrator.config.refusal import Refusal
from orchestrator.config.spec import SweepSpec

__all__ = ["Facts", "check_spec"]


def check_spec(spec: SweepSpec, facts: Facts, *, file: str | None = None, set_keys: Iterable[str] = ()) -> list[str]:
    """Refuse what cannot be trained or searched, over every value that the space can suggest.

    Args:
        spec: the sweep.
        facts: what its task says.
        file: the spec's file, named in the error.
        set_keys: keys that ``--set`` decided (`Loaded.set_keys`); an error about one names ``--set`` instead.

    Returns:
        Warnings, each beginning with the key that it is about.

    Raises:
        ConfigError: names file, key, value, rule and remedy.
    """
    reach = Reach(spec)
    try:
        warnings = [
            *check_task(reach, facts),
            *check_batch(reach, facts),
            *check_lr(reach),
            *check_search(reach),
        ]
    except Refusal as refusal:
        raise refusal.in_file(source_of(refusal.key, file=file, set_keys=set_keys)) from None
    return list(dict.fromkeys(warnings))

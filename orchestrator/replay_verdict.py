"""What may be asked of a replay, given how the run went, and whether it holds. Pure: a record and what was told, in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from orchestrator.tracking.comparison import AT_THE_END, OF_THE_SPLIT, Comparison, compare, history_of
from orchestrator.tracking.record import TrialRecord

if TYPE_CHECKING:
    from orchestrator.replay_training import Trained

SPLIT_TOLERANCE = 1e-5  # relative, where another split of the batch makes other sums


def judge(record: TrialRecord, trained: Trained) -> tuple[Comparison, tuple[str, ...]]:
    """The comparison of a run with its replay, and what a person must know to read it.

    A whole run is compared to its end, and must end in the same way; another up to its last evaluation. One whose
    batch was split otherwise on the way is compared with `SPLIT_TOLERANCE`, without what depends on the split.
    """
    outcome, last = trained.outcome, record.evaluations[-1]
    notes: list[str] = []
    without: list[str] = []
    if not record.is_whole:
        notes.append(f"the run was not trained to its end ({record.status}): compared up to its last evaluation")
        # What is told at the end is of the same samples only if both ended at the same ones.
        without += [] if outcome["samples_seen"] == last else AT_THE_END
        without += [name for name in ("early_grad_norm", "skipped_updates") if name not in record.history]
    if record.other_split:
        without += OF_THE_SPLIT
        notes.append(
            f"the run went on with its batch split otherwise ({record.other_split}), which makes other sums: bits "
            f"cannot be expected, a relative difference of {SPLIT_TOLERANCE:g} is allowed, and metrics that depend on "
            "the split are left out"
        )
    comparison = compare(
        record.history,
        history_of(trained.evaluations, outcome, record.spec["plan"]["global_batch"]),
        up_to_samples=math.inf if record.is_whole else last,
        without=without,
        tolerance=SPLIT_TOLERANCE if record.other_split else 0.0,
        endings=(record.status, outcome["status"]) if record.is_whole else None,
    )
    return comparison, tuple(notes)

"""Send what MLflow did not get while a sweep ran: ``python -m orchestrator.sync RUN_DIR``.

Exit codes: 0 MLflow has everything, 1 not yet (what is left is safe, run it again), 2 refused, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.command_line import Parser, exit_code_of
from orchestrator.errors import StorageError
from orchestrator.tracking.events import first_event, is_written
from orchestrator.tracking.run_dir import EVENTS
from orchestrator.tracking.tracker import Tracker
from orchestrator.tracking.uri import check_uri

PATIENCE_S = 10.0
_POLL_S = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    """Send the rest of a run directory's events; returns the exit code."""
    return exit_code_of(lambda: _sync(_parse(argv)))


def _sync(chosen: argparse.Namespace) -> int:
    return sync(chosen.run_dir, uri=chosen.uri, timeout_s=chosen.timeout_s)


def sync(run_dir: str, *, uri: str | None = None, timeout_s: float = 600.0) -> int:
    """Send the rest of the events in `run_dir`; prints what is left, and returns 0 if that is nothing.

    A writer that a sweep left behind and that is still sending is waited for. It is refused while the sweep itself
    runs: its own writer sends everything.

    Args:
        run_dir: a local folder.
        uri: tracking URI; None takes that of the sweep's spec, as the sweep took it.
        timeout_s: longest time to wait.

    Raises:
        RefusedError: the folder holds no sweep, the sweep is still running, or the tracking server cannot be used.
    """
    path = Path(run_dir) / EVENTS
    if not path.is_file():
        raise StorageError(
            "the folder must hold the record of a sweep, events.jsonl",
            key="RUN_DIR",
            value=run_dir,
            remedy="name the run directory that the sweep printed last; one in a bucket must be copied here first",
        )
    _refuse_while_written(path)
    event = first_event(path, "sweep_started")
    if event is None:
        rule, remedy = "the record must say that a sweep started", "name the run directory of a sweep that was started"
        raise StorageError(rule, key="RUN_DIR", value=run_dir, remedy=remedy)
    configured = event["spec"].get("tracking") or {}
    address = check_uri(uri or configured.get("uri"), Path.cwd())
    tracker = Tracker(path, uri=address, experiment=configured.get("experiment") or event["name"])
    try:
        left = tracker.close(timeout_s)
    except KeyboardInterrupt:
        tracker.close(0.0)
        raise
    print(left)
    return 0 if left.delivered else 1


def _refuse_while_written(path: Path) -> None:
    """Refuse a sweep that runs; one that ended a moment ago may not have let go of its record yet."""
    deadline = time.monotonic() + PATIENCE_S
    while is_written(path):
        if time.monotonic() >= deadline:
            raise StorageError(
                "the sweep must have ended, and a process still writes its record",
                key="RUN_DIR",
                value=str(path.parent),
                remedy="wait for its end: it sends everything itself, as soon as MLflow answers",
            )
        time.sleep(_POLL_S)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m orchestrator.sync", description=__doc__)
    parser.add_argument("run_dir", metavar="RUN_DIR", help="run directory of a sweep that has ended")
    parser.add_argument("--timeout-s", type=float, default=600.0, metavar="S", help="longest time to wait (600)")
    parser.add_argument("--uri", metavar="URI", help="tracking URI (default: that of the sweep's spec)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())

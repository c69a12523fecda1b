"""Send what MLflow did not get while a sweep ran: ``python -m orchestrator.tracking.sync RUN_DIR``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.tracking.events import first_event
from orchestrator.tracking.tracker import Tracker
from orchestrator.tracking.uri import check_uri


def main(argv: Sequence[str] | None = None) -> int:
    """Send the rest of a run directory's events; 0 if MLflow then has everything."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.tracking.sync", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="run directory of a sweep that has ended")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="longest time to wait")
    parser.add_argument("--uri", help="tracking URI; by default that of the sweep's spec, as the sweep takes it")
    chosen = parser.parse_args(argv)
    try:
        path = chosen.run_dir / "events.jsonl"
        event = first_event(path, "sweep_started")
        if event is None:
            print(f"{path}: holds no sweep", file=sys.stderr)
            return 2
        configured = event["spec"].get("tracking") or {}
        uri = check_uri(chosen.uri or configured.get("uri"), Path.cwd())
        tracker = Tracker(path, uri=uri, experiment=configured.get("experiment") or event["name"])
        left = tracker.close(chosen.timeout_s)
    except OrchestratorError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(left)
    return 0 if left.nothing else 1


if __name__ == "__main__":
    sys.exit(main())

"""Train a trial again from its MLflow run alone, and compare: ``python -m orchestrator.replay RUN_ID``.

The task's source comes from the record where it is not installed, so a replay runs code that the record holds. Exit
codes: 0 the same history, 1 failed while running, 2 refused, 3 another history, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.command_line import Parser, exit_code_of
from orchestrator.credentials import hide, mask
from orchestrator.errors import RefusedError, TrackingError, TrialError
from orchestrator.replay_verdict import judge
from orchestrator.storage import check_writable, join, write_atomically
from orchestrator.tracking.record import TrialRecord, read_record, trials_of
from orchestrator.tracking.run_dir import check_free
from orchestrator.tracking.uri import check_uri

if TYPE_CHECKING:
    from orchestrator.config.trial import TrialSpec
    from orchestrator.replay_checks import Difference
    from orchestrator.replay_training import Trained
    from orchestrator.tracking.comparison import Comparison

SCHEMA_VERSION = 1
PROGRESS_EVERY_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Replay a run from the command line; returns the exit code."""
    return exit_code_of(lambda: _Replay(_parse(argv)).run())


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m orchestrator.replay", description=__doc__)
    parser.add_argument("run_id", metavar="RUN_ID", help="MLflow run of a trial")
    parser.add_argument("--tracking-uri", metavar="URI", help="default: MLFLOW_TRACKING_URI, or ./mlflow.db")
    parser.add_argument("--strict", action="store_true", help="refuse if anything is not as recorded")
    parser.add_argument(
        "--set", action="append", default=[], metavar="task.KEY=VALUE", help="where the task's data are now"
    )
    parser.add_argument("--out", metavar="DIR", help="keep a summary.json there")
    return parser.parse_args(argv)


class _Replay:
    """One replay; what it finds on the way is kept for the summary."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._terminal = sys.stdout  # Ray's chatter is sent elsewhere meanwhile
        self._notes: list[str] = []
        self._differences: list[Difference] = []
        self._said_at = time.monotonic()

    def run(self) -> int:
        """Read, check, train, compare; the exit code."""
        args = self._args
        uri = check_uri(args.tracking_uri, Path.cwd(), make=False)
        if args.out is not None:
            check_free(args.out)
        self._list_trials(uri)
        record = read_record(uri, args.run_id)
        last = record.evaluations[-1]
        self._say(f"{record.name}: {record.status}, {len(record.evaluations)} evaluations up to {last} samples")
        comparison = self._compare(record, self._train(record))
        self._print(comparison)
        if args.out is not None:
            self._write(args.out, uri, record, comparison)
        return 0 if comparison.holds else 3

    def _list_trials(self, uri: str) -> None:
        """A sweep's run is refused, but not without the runs to choose from."""
        try:
            trials = trials_of(uri, self._args.run_id)
        except TrackingError:  # which reading says better
            return
        for run_id, name, status in trials:
            self._say(f"{run_id}  {status:<14}  {name}")

    def _train(self, record: TrialRecord) -> Trained:
        # Torch and Ray take seconds to import; a run that is not there is refused before that.
        from orchestrator.cluster.capacity import accelerators
        from orchestrator.cluster.session import connect
        from orchestrator.cluster.snapshot import imported_first
        from orchestrator.replay_checks import check_data, check_surroundings, choose_source, trial_to_train
        from orchestrator.replay_training import Conditions, train_again
        from orchestrator.signals import Interrupts
        from orchestrator.training.registry import module_of

        overrides = self._args.set
        spec, found = trial_to_train(record, overrides)
        source = choose_source(record, spec.task.name)
        self._note(f"task {spec.task.name}: {source.note}")
        self._differ(*found, *source.differences)
        conditions = Conditions.of(record, source.files)
        interrupts = Interrupts()
        interrupts.install()
        with imported_first(source.files):
            self._note(f"data: fingerprint {check_data(record, spec, overrides)}, as recorded")
            gpus = conditions.gpus_per_worker > 0
            if not gpus:
                self._differ(*check_surroundings(record, gpus=False, accelerator=""))
            self._be_strict()
            with connect(() if source.files else (module_of(spec.task.name),)) as session:
                interrupts.install()
                if gpus:
                    self._differ(*check_surroundings(record, gpus=True, accelerator=accelerators(session.nodes)))
                    self._be_strict()
                self._say_conditions(record, spec, conditions.threads, conditions.deterministic)
                trained = train_again(
                    spec,
                    conditions,
                    session,
                    stop_at_samples=math.inf if record.is_whole else record.evaluations[-1],
                    on_evaluation=lambda evaluation: self._progress(evaluation, record.evaluations[-1]),
                )
        if trained.outcome["status"] == "failed" and record.status != "failed":
            raise TrialError(f"the replay failed, and the run had not: {trained.outcome['reason']}")
        return trained

    def _compare(self, record: TrialRecord, trained: Trained) -> Comparison:
        comparison, notes = judge(record, trained)
        for note in notes:
            self._note(note)
        if not comparison.holds and self._differences:
            self._note(f"what is not as recorded may be why: {', '.join(d.name for d in self._differences)}")
        return comparison

    def _be_strict(self) -> None:
        if self._args.strict and self._differences:
            names = ", ".join(difference.name for difference in self._differences)
            remedy = "make it so again, or leave out --strict"
            raise RefusedError("with --strict everything must be as recorded", key=names, remedy=remedy)

    def _say_conditions(self, record: TrialRecord, spec: TrialSpec, threads: int, deterministic: bool) -> None:
        plan = spec.plan
        self._note(
            f"training: seed {spec.seed}, {plan}, {threads} thread(s) a worker, {spec.precision}, reducer "
            f"{spec.reducer}, {'deterministic' if deterministic else 'not deterministic: bits may differ'}"
        )

    def _progress(self, evaluation: Mapping[str, Any], last: int) -> None:
        if time.monotonic() - self._said_at >= PROGRESS_EVERY_S:
            self._said_at = time.monotonic()
            self._say(f"{evaluation['samples_seen']} of {last} samples")

    def _print(self, comparison: Comparison) -> None:
        self._say(f"{'metric':<28}{'values':>8}{'differ':>8}  largest relative difference")
        for metric in comparison.metrics:
            size = "missing on one side" if math.isinf(metric.largest) else f"{metric.largest:.3g}"
            where = f"{size} at {metric.at_samples} samples" if metric.differing else "0"
            self._say(f"{metric.name:<28}{metric.values:>8}{metric.differing:>8}  {where}")
        self._say(str(comparison))

    def _write(self, out: str, uri: str, record: TrialRecord, comparison: Comparison) -> None:
        worst = comparison.worst
        summary = {
            "schema_version": SCHEMA_VERSION,
            "kind": "replay",
            "run_id": record.run_id,
            "tracking_uri": mask(uri),
            "trial": record.tags.get("orchestrator.trial"),
            "status": record.status,
            "holds": comparison.holds,
            "verdict": str(comparison),
            "evaluations": comparison.evaluations,
            "values": comparison.values,
            "differing": comparison.differing,
            "tolerance": comparison.tolerance,
            "largest": worst
            and {
                "metric": worst.name,
                "at_samples": worst.at_samples,
                "relative": worst.largest if math.isfinite(worst.largest) else None,
            },
            "differences": [
                {"name": difference.name, "recorded": difference.recorded, "here": difference.here}
                for difference in self._differences
            ],
            "notes": self._notes,
        }
        check_writable(out)
        write_atomically(join(out, "summary.json"), (json.dumps(hide(summary), indent=2) + "\n").encode())
        self._say(mask(out))

    def _differ(self, *found: Difference) -> None:
        for difference in found:
            self._differences.append(difference)
            self._say(f"not as recorded: {difference}")

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._say(text)

    def _say(self, text: str) -> None:
        print(hide(text), file=self._terminal, flush=True)


if __name__ == "__main__":
    sys.exit(main())

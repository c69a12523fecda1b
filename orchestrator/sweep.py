"""Sweep batch size, LR rule and warmup: ``python -m orchestrator.sweep [SPACE.yaml]``.

Exit codes: 0 done, 1 failed while running, 2 refused before anything was started, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orchestrator.command_line import check_resume, exit_code_of, run_parser
from orchestrator.config.load import load_spec
from orchestrator.errors import TrialError

if TYPE_CHECKING:
    from orchestrator.experiment import Experiment
    from orchestrator.past import Past
    from orchestrator.preparation import Prepared
    from orchestrator.tracking.run_dir import RunDir

DEFAULT_SPACE = "search_spaces/digits.yaml"
# What a sweep may be taken on with, beside what never changes what trials compute.
FREE = ("search.trials", "search.seeds", "search.repeat_top")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sweep from the command line; returns the exit code."""
    return exit_code_of(lambda: _run(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = run_parser("sweep", __doc__, what="search", space=DEFAULT_SPACE, setting="search.trials=8")
    parser.add_argument("--seeds", type=int, metavar="N", help="repeat the best settings under N seeds")
    return parser.parse_args(argv)


def _run(args: argparse.Namespace) -> int:
    overrides = [*args.set, *([f"search.seeds={args.seeds}"] if args.seeds is not None else [])]
    if args.resume is not None:
        check_resume(args)
        from orchestrator.resume import Entry, resume

        return resume(args.resume, overrides, Entry(name="sweep", free=FREE, start=sweep))
    file = args.space or DEFAULT_SPACE
    loaded = load_spec(file, overrides)
    # Torch, Ray and Optuna take seconds to import; a misspelt key is refused before that.
    from orchestrator.cluster.session import connect, is_local
    from orchestrator.preparation import prepare
    from orchestrator.tracking.run_dir import RunDir

    out = f"runs/{loaded.spec.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}" if args.out is None else args.out
    prepared = prepare(loaded, file=file, out=out)
    # A cluster is asked what it holds, and stays connected; a Ray of our own is started only when all is checked.
    with contextlib.nullcontext() if is_local() else connect(prepared.modules) as session:
        prepared.check_resources()
        if args.dry_run:
            from orchestrator.report.console import print_plan

            print_plan(prepared.plan(out))
            return 0
        if session is not None:
            prepared.check_storage(out, session)
        sweep(prepared, RunDir(out))
    return 0


def sweep(prepared: Prepared, run_dir: RunDir, *, past: Past | None = None, overrides: Sequence[str] = ()) -> None:
    """Run a prepared sweep into its run directory.

    Args:
        past: what an earlier process left there, which this one takes on.
        overrides: settings that this process was given beside the run's own spec.

    Raises:
        GangError: no gang could be started or kept.
        TrialError: not one trial finished or was stopped early.
        OrchestratorError: the record could not be written any more, or the search broke.
    """
    from orchestrator.experiment import Experiment
    from orchestrator.tracking.uri import make_folder

    make_folder(prepared.tracking_uri)
    with Experiment(**prepared.experiment("sweep", run_dir, past, overrides)) as experiment:
        statuses = _search(prepared, experiment)
        experiment.finish()
    if statuses and set(statuses) <= {"failed", "diverged"}:
        raise TrialError(f"all {len(statuses)} trials failed or diverged; see {experiment.run_dir.uri}/summary.json")


def _search(prepared: Prepared, experiment: Experiment) -> list[str]:
    """Suggest trials and hand them to the gangs until the search is over; how each of them ended."""
    # Imported while the gangs start: Tune and Optuna take seconds that nobody has to wait for.
    from orchestrator.search.repeats import plan_repeats
    from orchestrator.search.scheduler import early_stopping
    from orchestrator.search.searcher import StudySearcher, open_study
    from orchestrator.search.tuner import run_search

    spec, objective, pool, past = prepared.spec, prepared.objective, experiment.pool, experiment.past
    run_dir = experiment.run_dir
    reused = past.reused if past else set()
    searcher = StudySearcher(
        study=open_study(run_dir.study, spec.name, objective, run_dir.mirror_uri),
        space=spec.space,
        resolve=prepared.resolve,
        objective=objective,
        sampler=spec.search.sampler,
        seed=spec.seed,
        startup_trials=spec.search.startup_trials,
        trials=spec.search.trials,
        at_once=pool.size,
        repeats=lambda: plan_repeats(
            searcher.finished,
            objective=objective,
            top=spec.search.repeat_top,
            seeds=spec.search.seeds,
            resolve=prepared.resolve,
        ),
        on_reuse=lambda event: None if event["trial"] in reused else pool.append("trial_reused", **event),
        on_lost=lambda trial: pool.cancel(trial, None),
    )
    scheduler = early_stopping(spec, objective, largest_batch=prepared.largest_batch, cancel=pool.cancel)
    if past is not None:
        searcher.take_on(past.endings(objective.metric))
        past.judge_again(scheduler, objective.metric)
    run_search(
        mailbox=pool.mailbox,
        searcher=searcher,
        scheduler=scheduler,
        metric=objective.metric,
        driver_ip=experiment.session.driver_ip,
        storage=experiment.scratch,
    )
    pool.check()
    searcher.close()
    return [ended["status"] for _, ended in searcher.finished]


if __name__ == "__main__":
    sys.exit(main())

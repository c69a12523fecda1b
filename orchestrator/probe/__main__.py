"""Measure what fits and what is fast: ``python -m orchestrator.probe [SPACE.yaml]``.

Predicts the memory of an update, times updates by micro batch, accumulation and workers, and says what limits. With a
finished study (``--study DIR``) it says what to run. Exit codes: 0 done, 1 failed while running, 2 refused before
anything was started, 3 done, and ``--compare`` found that something moved, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orchestrator.command_line import check_resume, exit_code_of, run_parser
from orchestrator.config.load import load_spec
from orchestrator.config.probe_rules import as_probe

if TYPE_CHECKING:
    from orchestrator.probe.judge import Judge

DEFAULT_SPACE = "search_spaces/digits.yaml"
# What a probe may be taken on with, beside what never changes what is measured.
FREE = ("probe.rounds", "probe.seconds", "probe.memory")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a probe from the command line; returns the exit code."""
    return exit_code_of(lambda: _run(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = run_parser("probe", __doc__, what="measure", space=DEFAULT_SPACE, setting="probe.rounds=5")
    parser.add_argument("--device-memory", metavar="SIZE", help="such as 80GiB: short for --set cluster.device_memory=")
    parser.add_argument("--study", metavar="DIR", help="run directory of a finished study: say what to run")
    parser.add_argument("--record", action="store_true", help="keep the profile, for later probes to compare with")
    parser.add_argument("--compare", action="store_true", help="say what moved since the profile that was kept last")
    parser.add_argument("--profiles", metavar="DIR", default="profiles", help="folder of profiles (default: profiles)")
    return parser.parse_args(argv)


def _run(args: argparse.Namespace) -> int:
    overrides = [*args.set, *([f"cluster.device_memory={args.device_memory}"] if args.device_memory else [])]
    from orchestrator.probe.judge import Judge
    from orchestrator.probe.studied import spec_file, studied

    study = studied(args.study) if args.study else None
    judge = Judge(study=study, profiles=args.profiles, record=args.record, compare=args.compare)
    if args.resume is not None:
        check_resume(args)
        return _resume(args.resume, overrides, judge)
    file = args.space or (spec_file(args.study) if args.study else DEFAULT_SPACE)
    loaded = as_probe(load_spec(file, overrides), file=file)
    from orchestrator.cluster.session import connect, is_local
    from orchestrator.preparation import prepare
    from orchestrator.probe.measure import carry_out, plan_of
    from orchestrator.tracking.run_dir import RunDir

    out = f"runs/{loaded.spec.name}-probe-{datetime.now(UTC):%Y%m%d-%H%M%S}" if args.out is None else args.out
    prepared = prepare(loaded, file=file, out=out)
    if study is not None:
        study.check(prepared, file)
    with contextlib.nullcontext() if is_local() else connect(prepared.modules):
        prepared.check_resources()
        if args.dry_run:
            from orchestrator.report.console import rich_console
            from orchestrator.report.probe_plan import write_plan

            plan = plan_of(prepared)
            write_plan(rich_console(), plan.spec, worlds=plan.worlds, cap=plan.cap(1), out_dir=out)
            return 0
        carry_out(prepared, RunDir(out), judge=judge)
    return 0


def _resume(folder: str, overrides: Sequence[str], judge: Judge) -> int:
    from orchestrator.probe.measure import carry_out
    from orchestrator.report import probe_report
    from orchestrator.resume import Entry, resume

    entry = Entry(
        name="probe",
        free=FREE,
        start=functools.partial(carry_out, judge=judge),
        finish=lambda console, summary, uri: console.finish(summary, uri, probe_report.write),
        loaded=lambda loaded: as_probe(loaded, file=f"{folder}/spec.yaml"),
        again=judge.asked,
    )
    return resume(folder, overrides, entry)


if __name__ == "__main__":
    sys.exit(main())

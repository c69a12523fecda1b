"""Measure the critical batch size: ``python -m orchestrator.study [SPACE.yaml]``.

Tunes the learning rate of each batch of a ladder until the target is reached in the fewest samples, and fits what that
takes; or, with ``--method``, compares branches off checkpoints of one run, or short runs, or asks whether the batches
of more workers train as well. Exit codes: 0 done, whatever was found, 1 failed while running, 2 refused before anything
was started, 3 done, and quality is lost with more workers, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from orchestrator.command_line import check_resume, exit_code_of, run_parser
from orchestrator.config.load import OVERRIDE_SOURCE, load_spec, source_of
from orchestrator.config.scaling_rules import in_its_words
from orchestrator.config.short_rules import batches_of
from orchestrator.config.study_rules import BATCHES
from orchestrator.errors import RefusedError
from orchestrator.study.methods import FREE, LADDER, METHODS, as_spec, carry_out, of_run, plan_of, say_again

DEFAULT_SPACE = "search_spaces/digits_study.yaml"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a study from the command line; returns the exit code."""
    return exit_code_of(lambda: _run(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = run_parser("study", __doc__, what="study", space=DEFAULT_SPACE, setting="study.width=2")
    told = "; ".join(f"{name}: {what}" for name, what in METHODS.items())
    parser.add_argument("--method", choices=tuple(METHODS), help=f"{told} (default: {LADDER})")
    return parser.parse_args(argv)


def _run(args: argparse.Namespace) -> int:
    if args.resume is not None:
        check_resume(args)
        from orchestrator.resume import Entry, resume

        method = of_run(args.resume)
        if args.method not in (None, method):
            rule, remedy = f"the folder holds a study by {method}", "leave --method out"
            raise RefusedError(rule, file="command line", key="--method", value=args.method, remedy=remedy)
        entry = Entry(
            name="study",
            free=FREE.get(method, ()),
            start=functools.partial(carry_out, method),
            finish=functools.partial(say_again, method),
            loaded=lambda loaded: as_spec(method, loaded, file=f"{args.resume}/spec.yaml"),
        )
        return resume(args.resume, args.set, entry)
    file = args.space or DEFAULT_SPACE
    written = load_spec(file, args.set)
    method = args.method or LADDER
    loaded = as_spec(method, written, file=file)
    from orchestrator.cluster.session import connect, is_local
    from orchestrator.preparation import prepare
    from orchestrator.tracking.run_dir import RunDir

    out = f"runs/{loaded.spec.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}" if args.out is None else args.out
    try:
        prepared = prepare(loaded, file=file, out=out)
        plan_of(method, prepared).check(file)
    except RefusedError as error:
        if method == "scaling":
            in_its_words(error, loaded.spec)
        elif error.key == f"space.{BATCHES}" and BATCHES not in written.spec.space:  # where its ladder was written
            error.key = "study.batches"
        if error.file in (file, OVERRIDE_SOURCE):
            error.file = source_of(error.key or "", file=file, set_keys=written.set_keys)
        raise
    with contextlib.nullcontext() if is_local() else connect(prepared.modules) as session:
        prepared.check_resources()
        if args.dry_run:
            from orchestrator.report.console import rich_console
            from orchestrator.report.study_report import write_plan

            spec = prepared.spec
            write_plan(
                rich_console(),
                spec,
                method=METHODS[method],
                batches=batches_of(spec),
                out_dir=out,
                warnings=prepared.warnings,
            )
            return 0
        if session is not None:
            prepared.check_storage(out, session)
        carry_out(method, prepared, RunDir(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())

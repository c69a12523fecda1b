"""What the command lines of entry points share: refusals are one line, and every ending has its exit code."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from orchestrator.errors import OrchestratorError, RefusedError


class Parser(argparse.ArgumentParser):
    """Refuses as everything else does: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise RefusedError(message, file="command line", remedy=f"see {self.prog} --help")


def run_parser(entry: str, about: str | None, *, what: str, space: str, setting: str) -> Parser:
    """The options of every entry point that makes a run directory: the space, --set, --out, --resume and --dry-run.

    Args:
        entry: the module within the package, such as ``sweep``.
        about: its docstring.
        what: it does with a space, such as ``search``.
        space: the default one.
        setting: an example of --set.
    """
    parser = Parser(prog=f"python -m orchestrator.{entry}", description=about)
    parser.add_argument("space", nargs="?", metavar="SPACE.yaml", help=f"what to {what} (default: {space})")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help=f"override a key, such as {setting}"
    )
    parser.add_argument("--out", metavar="DIR", help="run directory (default: a new one in runs/)")
    parser.add_argument("--resume", metavar="DIR", help=f"take on the {entry} of a run directory that was cut")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done and start nothing")
    return parser


def check_resume(args: argparse.Namespace) -> None:
    """Refuse what a run that is taken on has of its own.

    Raises:
        RefusedError: a space, an output or a dry run is asked for beside --resume.
    """
    if args.space or args.out or args.dry_run:
        rule = "--resume takes the spec and the folder of the run itself"
        raise RefusedError(rule, file="command line", remedy="leave out SPACE.yaml, --out and --dry-run")


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command; its exit code, or that of what ended it."""
    try:
        return command()
    except OrchestratorError as error:
        # One line, whatever an error of somebody else's code put into it.
        print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except SystemExit as exit_:  # while ray.init has a handler of its own for the signal
        if exit_.code != signal.SIGTERM:
            raise
        print("interrupted", file=sys.stderr)
        return 130

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

"""What a person sees while a sweep runs and when it is over: a live table on a terminal, plain lines in a log.

It listens to the event log and never writes to it. All of its methods may be called from any thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import IO, Any

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.markup import escape

from orchestrator.credentials import hide, mask
from orchestrator.report import final_report, plain_lines
from orchestrator.report.history import Event, SweepHistory
from orchestrator.report.live_table import live_view
from orchestrator.report.objective import Objective
from orchestrator.report.plan import Plan
from orchestrator.report.progress import Progress

Report = Callable[[RichConsole, Mapping[str, Any], str], None]

REFRESH_PER_S = 4
PROGRESS_EVERY_S = 30.0
LOG_WIDTH = 80


def rich_console(file: IO[str] | None = None) -> RichConsole:
    """A console on `file` (stdout): as wide as its terminal, or 80 columns and without colours in a log."""
    file = file or sys.stdout
    if file.isatty():
        return RichConsole(file=file, highlight=False)
    return RichConsole(file=file, width=LOG_WIDTH, highlight=False, color_system=None, force_terminal=False)


class Console:
    """Shows the events that it is called with. Use it as a context manager around the sweep.

    Args:
        file: where to write; stdout by default. A terminal gets the live table, anything else plain lines.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        self._out = rich_console(file)
        self._history = SweepHistory()
        self._lock = threading.RLock()
        self._last_line_at = 0.0
        self._live: Live | None = None
        if self._out.is_terminal:
            self._live = Live(
                console=self._out, get_renderable=self._view, refresh_per_second=REFRESH_PER_S, transient=True
            )

    def __enter__(self) -> Console:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the live table off the terminal. May be called twice."""
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Take in an event; in a log, write its line, or a progress line if none was written for 30 s."""
        with self._lock:
            self._history.apply(event)
            if self._live is None and self._history.started:
                self._write_line(event)

    def note(self, text: str) -> None:
        """Write a sentence, such as a warning, above the live table or as a line of the log.

        It is not broken into lines: a command in it can be copied.
        """
        self._out.print(escape(hide(text)), soft_wrap=True)

    def finish(self, summary: Mapping[str, Any], run_dir: str, write: Report = final_report.write) -> None:
        """Write the final report. Its last line is `run_dir`, unbroken; of an address, what is no credential."""
        self.close()
        write(self._out, summary, mask(run_dir))

    def _view(self) -> RenderableType:
        with self._lock:
            if not self._history.started:
                return "Starting ..."
            return live_view(self._history, now=time.time(), width=self._out.width, height=self._out.height)

    def _write_line(self, event: Event) -> None:
        text = plain_lines.line_of(event, self._history)
        trains = "probe" not in self._history.started
        if text is None and trains and event["t"] - self._last_line_at >= PROGRESS_EVERY_S:
            text = Progress.of(self._history, Objective.of(self._history), now=event["t"]).line()
        if text is not None:
            self._last_line_at = event["t"]
            self._out.print(escape(text), soft_wrap=True)


def print_plan(plan: Plan, file: IO[str] | None = None) -> None:
    """Write the plan of a dry run."""
    final_report.write_plan(rich_console(file), plan)

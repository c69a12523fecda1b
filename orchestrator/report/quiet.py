"""Keeps the frameworks' own chatter off the terminal."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from orchestrator.credentials import hide

_NOISY = ("ray", "optuna", "orchestrator", "mlflow", "alembic", "py.warnings")


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Send what Ray, Tune, Optuna and our own modules log or print to a file, without the credentials in it.

    Who wants the terminal meanwhile keeps its own handle of it.
    """
    hiding = _Hiding(log.open("a", encoding="utf-8"))
    handler = logging.StreamHandler(hiding)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in _NOISY]
    before = [(logger, list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
    logging.captureWarnings(True)
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    try:
        with contextlib.redirect_stdout(hiding), contextlib.redirect_stderr(hiding):
            yield
    finally:
        logging.captureWarnings(False)
        for logger, handlers, propagate, level in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
        handler.close()
        hiding.close()


class _Hiding(io.TextIOBase):
    """Passes texts on to `stream` without the credentials in them; on a full disk it drops them.

    What is being logged then is that the disk is full, which the end of the run says on the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(hide(text))
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()

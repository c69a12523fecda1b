"""Keeps the frameworks' own chatter off the terminal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

_NOISY = ("ray", "optuna", "orchestrator", "mlflow", "alembic", "py.warnings")


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Send what Ray, Tune, Optuna and our own modules log or print to a file.

    Who wants the terminal meanwhile keeps its own handle of it.
    """
    handler = logging.FileHandler(log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in _NOISY]
    before = [(logger, list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
    logging.captureWarnings(True)
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    try:
        with contextlib.redirect_stdout(handler.stream), contextlib.redirect_stderr(handler.stream):
            yield
    finally:
        logging.captureWarnings(False)
        for logger, handlers, propagate, level in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
        handler.close()

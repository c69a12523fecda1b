"""Every error that this package raises on purpose, and the exit code that each one means.

OrchestratorError                 exit 1: failed while running
├── RefusedError                  exit 2: refused before anything was started
│   ├── ConfigError               a key of a spec: file, key, value, rule, remedy
│   ├── TaskError                 the task cannot be imported, built, or breaks its contract
│   ├── ResourceError             the cluster cannot hold what was asked for
│   ├── StorageError              the output cannot be written
│   └── TrackingError             the tracking server cannot be used
├── TrialError                    one trial failed; the sweep goes on
├── GangError                     a worker group could not be started or kept
├── CheckFailed                   exit 3: done, and a check it was asked to make did not hold
└── Interrupted                   exit 130: stopped by a signal, resumable
"""

from __future__ import annotations

from typing import Any

from orchestrator.credentials import hide

__all__ = [
    "CheckFailed",
    "ConfigError",
    "GangError",
    "Interrupted",
    "OrchestratorError",
    "RefusedError",
    "ResourceError",
    "StorageError",
    "TaskError",
    "TrackingError",
    "TrialError",
]


class OrchestratorError(Exception):
    """Base of all errors raised on purpose. Its text never shows a credential."""

    exit_code = 1

    def __str__(self) -> str:
        return str(hide(super().__str__()))


class RefusedError(OrchestratorError):
    """Known to be impossible before anything was started.

    Args:
        rule: what must hold, as a sentence without a full stop.
        file: the file that the value came from, or where the value was given (``--set``).
        key: dotted key, such as ``batch.global``.
        value: the offending value, shown by ``repr``.
        remedy: what to write or do instead.
    """

    exit_code = 2

    def __init__(
        self,
        rule: str,
        *,
        file: str | None = None,
        key: str | None = None,
        value: Any = ...,
        remedy: str | None = None,
    ) -> None:
        self.rule, self.file, self.key, self.value, self.remedy = rule, file, key, value, remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.file}: " if self.file else ""
        what = f"{self.key}" if self.key else ""
        if self.value is not ...:
            what += f" = {self.value!r}" if what else repr(self.value)
        text = f"{where}{what}{': ' if what else ''}{self.rule}"
        if not self.remedy:
            return str(hide(f"{text}."))
        end = "" if self.remedy[-1] in ".?!" else "."
        return str(hide(f"{text}. {self.remedy[0].upper()}{self.remedy[1:]}{end}"))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.rule, self.file, self.key, self.value, self.remedy)


def _rebuild(cls: type[RefusedError], rule: str, file: Any, key: Any, value: Any, remedy: Any) -> RefusedError:
    return cls(rule, file=file, key=key, value=value, remedy=remedy)


class ConfigError(RefusedError):
    """A key of a spec is unknown, mistyped, or out of its range."""


class TaskError(RefusedError):
    """The task cannot be imported or built, or breaks its contract."""


class ResourceError(RefusedError):
    """The cluster cannot hold what was asked for; names need and supply."""


class StorageError(RefusedError):
    """The output folder cannot be written."""


class TrackingError(RefusedError):
    """The tracking server cannot be used."""


class TrialError(OrchestratorError):
    """One trial failed; the sweep goes on."""


class GangError(OrchestratorError):
    """A worker group could not be started or kept."""


class CheckFailed(OrchestratorError):
    """The work is done, and a check that it was asked to make did not hold."""

    exit_code = 3


class Interrupted(OrchestratorError):
    """Stopped by a signal; what is done is safe."""

    exit_code = 130

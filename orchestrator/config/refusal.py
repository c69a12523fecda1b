"""The refusal that validators raise inside the config package: rule, key, value, remedy, but no file yet.

`load` and `check` turn it into a `ConfigError` once the file is known. No parsing in here.
"""

from __future__ import annotations

from typing import Any

from orchestrator.errors import ConfigError


class Refusal(ValueError):
    """A value that breaks a rule. A ``ValueError``, so that pydantic carries it out of a validator.

    Args:
        rule: what must hold, as a sentence without a full stop.
        key: dotted key below the place that is being validated; empty for the place itself.
        value: the offending value; left out where it would be too long to print.
        remedy: what to write instead, starting with a verb.
    """

    def __init__(self, rule: str, *, key: str = "", value: Any = ..., remedy: str | None = None) -> None:
        self.rule, self.key, self.value, self.remedy = rule, key, value, remedy
        super().__init__(rule)

    @classmethod
    def from_error(cls, error: Exception, *, key: str, value: Any) -> Refusal:
        """A refusal from an error whose text reads "rule. Remedy", as those of `theory` do."""
        rule, _, remedy = str(error).partition(". ")
        return cls(rule.rstrip("."), key=key, value=value, remedy=remedy.rstrip(".") or f"change {key}")

    def under(self, key: str) -> Refusal:
        """The same refusal seen from one level further out."""
        inner = f"{key}.{self.key}" if self.key else key
        return Refusal(self.rule, key=inner, value=self.value, remedy=self.remedy)

    def in_file(self, file: str | None) -> ConfigError:
        """The error that the user sees."""
        value = self.value if len(repr(self.value)) <= _LONGEST_SHOWN else ...
        return ConfigError(self.rule, file=file, key=self.key or None, value=value, remedy=self.remedy)


_LONGEST_SHOWN = 200

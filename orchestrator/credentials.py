"""What must never be written down: credentials in addresses and in the environment, and how they are taken out of text.

Pure text, so that errors, records, logs and the console can share it. Whoever needs a credential takes it from its
source again: a masked address opens nothing.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

MASK = "***"

# Where a name before the @ alone is no credential but a container, a host's user, or Arrow's word "anonymous".
_OPEN_USERS = ("abfs", "abfss", "wasb", "wasbs", "gs", "gcs", "hdfs", "viewfs", "ssh", "sftp")
# Up to the last @ before the path; a password may also hold a bare slash, unless what follows the colon is a port.
_USER_INFO = re.compile(r"([\w+.-]+)://([^/\s]*@|[^\s/@:\[]+:(?!\d+(?:/|\s|$))[^\s@]*@)")
_SECRET_WORD = (
    r"(?:password|passwd|pwd|token|secret|signature|sig|credentials?|(?:access|api|account|secret|private)_?key)"
)
_SECRET_QUERY = re.compile(rf"(?i)([?&;][\w.%-]*{_SECRET_WORD})=[^&;\s\"']*")
_SECRET_VARIABLE = re.compile(rf"(?i)(?:{_SECRET_WORD}|access_key_id|connection_string)$")
_NO_SECRETS = ("PWD", "OLDPWD")  # the current folder
# A shorter value would be found in innocent text.
_SHORTEST_SECRET = 8


def mask(text: str) -> str:
    """`text` without the user names and passwords of addresses in it, and without secrets in their queries.

    >>> mask("http://me:p@ss@host:5000/?token=abc&page=2")
    'http://***@host:5000/?token=***&page=2'
    >>> mask("gs://anonymous@bucket/folder")
    'gs://anonymous@bucket/folder'
    """
    if "://" not in text:
        return text
    return _SECRET_QUERY.sub(rf"\1={MASK}", _USER_INFO.sub(_without_user, text))


def is_masked(text: str) -> bool:
    """Whether `mask` took something out of this address, so that it opens nothing any more."""
    return f"://{MASK}@" in text or ("://" in text and f"={MASK}" in text)


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The credentials in environment variables: by the variable's name, and passwords in addresses such as a proxy's.

    The longest come first, so that one which holds another is replaced whole.
    """
    found: set[str] = set()
    for name, value in environ.items():
        if _SECRET_VARIABLE.search(name) and name not in _NO_SECRETS:
            found |= {value, urllib.parse.quote(value, safe="")}
        for match in _USER_INFO.finditer(value):
            password = match.group(2)[:-1].partition(":")[2]
            found |= {password, urllib.parse.unquote(password)}
    return tuple(sorted((value for value in found if len(value) >= _SHORTEST_SECRET), key=lambda v: (-len(v), v)))


def hide(value: Any, secrets: tuple[str, ...] | None = None) -> Any:
    """`value` with every credential taken out of its texts, however deep; numbers and keys are left alone.

    Args:
        value: text, or nested mappings, lists and tuples.
        secrets: what is hidden beside credentials in addresses; None takes those of this process's environment.
    """
    secrets = secrets_of(os.environ) if secrets is None else secrets
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MASK)
        return mask(value)
    if isinstance(value, Mapping):
        return {name: hide(part, secrets) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [hide(part, secrets) for part in value]
    return value


def _without_user(match: re.Match[str]) -> str:
    scheme, user = match.groups()
    if ":" not in user and scheme.lower() in _OPEN_USERS:
        return match.group(0)
    return f"{scheme}://{MASK}@"

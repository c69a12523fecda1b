"""Who made a run: the machine and the run directory, as tags by which a later start finds what this one left open."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

HOST = "orchestrator.host"
RUN_DIR = "orchestrator.run_dir"

_MACHINE_ID = Path("/etc/machine-id")


def host() -> str:
    """This machine's name; with a hash of its identity where it has one, since names alone are often used twice."""
    try:
        identity = _MACHINE_ID.read_text().strip()
    except OSError:
        identity = ""
    suffix = f"-{hashlib.sha256(identity.encode()).hexdigest()[:8]}" if identity else ""
    return f"{socket.gethostname()}{suffix}"


def maker_tags(log_path: Path) -> dict[str, str]:
    """Tags of every run that is made from the log at `log_path`."""
    return {HOST: host(), RUN_DIR: os.fspath(log_path.absolute().parent)}

"""`python -m orchestrator.submit -- python -m orchestrator.sweep ...`: send a command to a Ray cluster as a job.

It is `ray job submit` behind a check that the working directory is small enough to be uploaded at all.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.cluster.package_files import PackagedFile, package_bytes, packaged_files, too_large
from orchestrator.credentials import hide
from orchestrator.errors import RefusedError, ResourceError
from orchestrator.report import formats


def main(argv: Sequence[str] | None = None) -> int:
    """Check, then submit; returns the exit code of ``ray job submit``, or 2 if the check refuses."""
    options, entrypoint = _parse(list(sys.argv[1:] if argv is None else argv))
    try:
        files = checked_files(options.working_dir)
        command = submit_command(entrypoint, working_dir=options.working_dir, address=options.address)
    except RefusedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"Uploading {len(files)} files, {formats.size(package_bytes(files))}, from {options.working_dir.resolve()}")
    if options.dry_run:
        print(f"Dry run, nothing is sent. The command is: {hide(shlex.join(command))}")
        return 0
    sys.stdout.flush()
    return subprocess.run(command, check=False).returncode


def checked_files(working_dir: Path) -> list[PackagedFile]:
    """The files that a job submitted from `working_dir` would carry.

    Raises:
        ResourceError: if `working_dir` is no folder, or over the limit of Ray's upload endpoint; names the heaviest.
    """
    if not working_dir.is_dir():
        raise ResourceError(
            "the working directory must be an existing folder",
            key="--working-dir",
            value=str(working_dir),
            remedy="name the folder that holds the package orchestrator",
        )
    files = packaged_files(working_dir)
    excess = too_large(files)
    if excess is None:
        return files
    largest = ", ".join(f"{path} ({formats.size(size_bytes)})" for path, size_bytes in excess.largest)
    raise ResourceError(
        f"the upload would be {formats.size(excess.package_bytes)}, over the {formats.size(excess.limit_bytes)} that "
        f"Ray's upload endpoint takes; the largest in it: {largest}",
        key="--working-dir",
        value=str(working_dir),
        remedy="name in .rayignore what the job does not need, and read large data from a path that all nodes reach",
    )


def submit_command(entrypoint: Sequence[str], *, working_dir: Path, address: str | None) -> list[str]:
    """The ``ray job submit`` command line, run by this interpreter's own Ray."""
    where = ["--address", address] if address else []
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    return [*ray, "job", "submit", *where, "--working-dir", str(working_dir.resolve()), "--", *entrypoint]


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.submit",
        usage="%(prog)s [--address URL] [--working-dir DIR] [--dry-run] -- COMMAND ...",
        description="Send COMMAND to a Ray cluster as a job, after a check of what would be uploaded.",
    )
    parser.add_argument(
        "--address", help="URL of the cluster's dashboard; default: RAY_API_SERVER_ADDRESS or RAY_ADDRESS"
    )
    parser.add_argument("--working-dir", type=Path, default=Path("."), help="folder to upload (default: this one)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be uploaded and run, and send nothing")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    entrypoint = arguments[end + 1 :]
    if not entrypoint:
        parser.error("a command must follow --, such as: python -m orchestrator.submit -- python -m orchestrator.sweep")
    return options, entrypoint


if __name__ == "__main__":
    sys.exit(main())

"""The machine's profile: what a probe measured, kept under the hardware, framework and model that it belongs to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.fs as fs

from orchestrator.config.trial import canonical_hash
from orchestrator.errors import StorageError
from orchestrator.probe.plan import ProbePlan
from orchestrator.probe.record import geometry_of
from orchestrator.probe.speed import Timed, plain
from orchestrator.storage import join, open_output, read, write_atomically
from orchestrator.theory.geometry import Geometry
from orchestrator.theory.moved import compare_runs

PARTS = ("hardware", "framework", "model")
_SUFFIX = ".json"


def profile_of(
    plan: ProbePlan,
    timed: Mapping[Geometry, Timed],
    predicted: Sequence[Mapping[str, Any]],
    started: Mapping[str, Any],
) -> dict[str, Any]:
    """What is kept of a probe.

    Args:
        plan: the probe.
        timed: its timings.
        predicted: predicted memory, a row a micro batch.
        started: the event that began its record, for the surroundings.
    """
    spec = plan.spec.to_dict()
    parts = {
        "hardware": {**started["hardware"], "cluster": {k: spec["cluster"][k] for k in ("workers", "threads")}},
        "framework": {name: started["software"].get(name) for name in ("torch", "cuda")},
        "model": {
            "task": spec["task"],
            "optimizer": spec["optimizer"],
            "training": {k: v for k, v in spec["training"].items() if k != "loader"},
            "source": started["task_source"]["hash"],
        },
    }
    return {
        "schema_version": 1,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "key": canonical_hash(parts)[:16],
        **parts,
        "software": dict(started["software"]),
        "timings": [{**plain(g), "rounds_s": list(one.medians.values())} for g, one in timed.items()],
        "memory": [{"micro_batch": use["micro_batch"], "peak_bytes": use["peak_bytes"]} for use in predicted],
    }


def keep(folder: str, profile: Mapping[str, Any], name: str) -> str:
    """Write a profile into `folder`; the path."""
    stamp = profile["at"].replace(":", "").replace("+0000", "Z")
    path = join(folder, f"{name}-{profile['key']}-{stamp}{_SUFFIX}")
    write_atomically(path, json.dumps(profile, indent=1).encode())
    return path


def kept(folder: str) -> list[dict[str, Any]]:
    """All profiles of a folder, the oldest first; none where there is no such folder.

    Raises:
        StorageError: one cannot be read.
    """
    filesystem, path = open_output(folder)
    files = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    found = []
    for file in sorted(files, key=lambda info: info.path):
        if file.path.endswith(_SUFFIX):
            try:
                found.append(json.loads(read(join(folder, os.path.basename(file.path)))))
            except ValueError as error:
                rule = f"holds a profile that cannot be read: {Path(file.path).name}: {error}"
                raise StorageError(rule, key="--profiles", value=folder, remedy="remove that file") from error
    return sorted(found, key=lambda one: str(one["at"]))


def compare(profile: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What moved since earlier profiles of the same key; without one, since the last of the same model; what differs.

    Each of the n geometries may move by chance; each is therefore judged at 1 - 0.05 / n, so that in one probe in
    twenty at most one is named wrongly (Bonferroni).
    """
    same = [one for one in earlier if one["key"] == profile["key"]]
    alike = same or [one for one in earlier if one["model"] == profile["model"]][-1:]
    if not alike:
        return {"reason": "no earlier profile of this model was kept", "moved": [], "changed": {}, "since": None}
    last = alike[-1]
    changed = {part: [last[part], profile[part]] for part in (*PARTS, "software") if last[part] != profile[part]}
    moved = [*_speeds(profile, alike), *_memory(profile, last)]
    return {"reason": "", "since": last["at"], "runs": len(alike), "changed": changed, "moved": moved}


def _speeds(profile: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    now, before = _rounds(profile), [_rounds(one) for one in alike]
    common = [g for g in now if any(g in one for one in before)]
    found = []
    for geometry in common:
        runs = [one[geometry] for one in before if geometry in one]
        change = compare_runs(runs, now[geometry], confidence=1.0 - 0.05 / len(common))
        if change.verdict != "held":
            factor = change.factor
            ends = {"value": factor.value, "low": factor.low, "high": factor.high}
            found.append({"what": "seconds of an update", **plain(geometry), "factor": ends, "verdict": change.verdict})
    return found


def _memory(profile: Mapping[str, Any], last: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Predictions have no noise: any difference is one."""
    before = {one["micro_batch"]: one["peak_bytes"] for one in last["memory"]}
    found = []
    for one in profile["memory"]:
        was = before.get(one["micro_batch"])
        if was and was != one["peak_bytes"]:
            factor = one["peak_bytes"] / was
            found.append(
                {
                    "what": "predicted peak memory",
                    "micro_batch": one["micro_batch"],
                    "factor": {"value": factor, "low": factor, "high": factor},
                    "verdict": "up" if factor > 1 else "down",
                }
            )
    return found


def _rounds(profile: Mapping[str, Any]) -> dict[Geometry, list[float]]:
    return {geometry_of(row): row["rounds_s"] for row in profile["timings"]}


def sentences(compared: Mapping[str, Any]) -> list[str]:
    """The comparison in words."""
    if compared["reason"]:
        return [f"Nothing to compare with: {compared['reason']}."]
    head = f"Since {compared['since']} ({compared['runs']} earlier profile{'s' * (compared['runs'] > 1)})"
    changed = f"; changed meanwhile: {', '.join(compared['changed'])}" if compared["changed"] else ""
    if not compared["moved"]:
        return [f"{head}, nothing moved beyond noise{changed}."]
    told = []
    for one in compared["moved"]:
        where = f"micro batch {one['micro_batch']}"
        if "world_size" in one:
            where += f" x {one['accumulation']} x {one['world_size']} workers"
        told.append(f"{one['what']} at {where} x{one['factor']['value']:.2f}")
    return [f"{head}, {len(told)} moved beyond noise: {'; '.join(told)}{changed}."]

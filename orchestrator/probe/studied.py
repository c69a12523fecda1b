"""A finished study, as the probe joins it with speed: samples to the target and learning rate by batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.config.load import load_spec
from orchestrator.errors import ConfigError, StorageError
from orchestrator.storage import join, read
from orchestrator.theory.critical_batch import CriticalBatch, Estimate, fit
from orchestrator.theory.observation import Observation
from orchestrator.tracking.run_dir import SPEC, RunDir

if TYPE_CHECKING:
    from orchestrator.preparation import Prepared

_SAME = ("task", "optimizer")
_TRAINING = ("precision",)


@dataclass(frozen=True, kw_only=True)
class Studied:
    """A study that has ended.

    Attributes:
        folder: its run directory.
        spec: as it ran, as a dict.
        rates: learning rate of the final runs, by batch that reached the target.
        critical: the critical batch, fitted anew to its final runs.
        exponent: of the best learning rate against the batch.
    """

    folder: str
    spec: Mapping[str, Any]
    rates: Mapping[int, float]
    critical: CriticalBatch
    exponent: Estimate

    @property
    def critical_batch(self) -> Estimate:
        """The critical batch; an end that is not known is None."""
        return Estimate(value=self.critical.critical_batch, low=self.critical.low, high=self.critical.high)

    def samples(self, global_batch: int) -> Estimate:
        """Samples to the target at a batch."""
        return self.critical.predict(global_batch)

    def check(self, prepared: Prepared, file: str) -> None:
        """Refuse a spec that trains something else than the study did.

        Raises:
            ConfigError: names the key.
        """
        now = prepared.spec.to_dict()
        pairs = [(name, now[name], self.spec[name]) for name in _SAME]
        pairs += [(f"training.{n}", now["training"][n], self.spec["training"][n]) for n in _TRAINING]
        for key, mine, its in pairs:
            if mine != its:
                rule = f"must be what the study in {self.folder} trained, {its!r}"
                remedy = "leave SPACE.yaml out, so that the study's own spec is probed"
                raise ConfigError(rule, file=file, key=key, value=mine, remedy=remedy)


def studied(folder: str) -> Studied:
    """The study in a run directory.

    Raises:
        StorageError: it holds no finished study by the ladder.
    """
    try:
        summary = json.loads(read(join(folder, "summary.json")))
    except (FileNotFoundError, ValueError) as error:
        raise _refused("holds no finished study", folder) from error
    if summary.get("method") != "ladder" or "ladder" not in summary:
        raise _refused(f"holds a {summary.get('method') or 'run that is no study'}, not a study by the ladder", folder)
    if summary["status"] != "done":
        raise _refused("holds a study that has not ended", folder)
    if not any(rung["seed_samples"] for rung in summary["ladder"]):
        raise _refused(f"holds a study without an answer: {summary['sentence']}", folder)
    runs = [
        Observation(global_batch=rung["global_batch"], samples=samples)
        for rung in summary["ladder"]
        if not rung.get("left_out")
        for samples in rung["seed_samples"]
    ]
    exponent = summary["lr_exponent"]
    return Studied(
        folder=folder,
        spec=load_spec(spec_file(folder)).spec.to_dict(),
        rates={rung["global_batch"]: rung["lr"] for rung in summary["ladder"] if rung["seed_samples"]},
        critical=fit(runs),
        exponent=Estimate(value=exponent["alpha"], low=exponent["low"], high=exponent["high"]),
    )


def spec_file(folder: str) -> str:
    """The study's own spec, brought here if it lies elsewhere."""
    return str(RunDir(folder, taken_on=True).local / SPEC)


def _refused(rule: str, folder: str) -> StorageError:
    return StorageError(rule, key="--study", value=folder, remedy="name the run directory of a study that is done")

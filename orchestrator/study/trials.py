"""A study's runs as its record tells them, and the verdict on each: pure functions of evaluations.

Decisions lag behind training: a gang goes on while the driver thinks. So a run counts up to the evaluation at which its
verdict fell, however much further it got; that depends on no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from orchestrator.config.study_rules import BATCHES, LR
from orchestrator.config.trial import Mode
from orchestrator.study.runs import RunRecord, records_of
from orchestrator.study.settings import Trained
from orchestrator.theory.ladder import Ended, Result, Run
from orchestrator.theory.ladder_planner import Rival
from orchestrator.theory.ladder_stop import beyond, hopeless
from orchestrator.theory.local_parabola import Curve
from orchestrator.theory.pooled_noise import NoiseWindow

STOPPED_BY: Mapping[Ended, str] = {"overshot": "overshoot", "raced": "race"}
BASELINE = "baseline"
STALE, FRESH = 2.0, 1.3
"""An evaluation speaks of a moment up to so many times its samples: where batches are placed, and where it is told."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The value of the metric that counts as trained."""

    metric: str
    value: float
    mode: Mode


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise scale with its interval, in samples, as it was after so many `samples` of a run."""

    value: float
    low: float
    high: float
    samples: int


@dataclass(kw_only=True)
class StudyTrial(RunRecord):
    """A run of a ladder.

    Attributes:
        run: what the planner asked for.
        rival: what it had to beat when it began; later results do not change that.
        phase: ``baseline``, ``search``, ``settings`` (other keys are tuned) or ``final``.
        setting: its number, 0 for what the spec writes, and `values` of the other keys by dotted name.
    """

    run: Run
    rival: Rival
    phase: str
    setting: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)

    def info(self) -> dict[str, Any]:
        """What its ``trial_started`` event says, so that another process knows it again."""
        samples = self.rival.samples if math.isfinite(self.rival.samples) else None
        return {
            "params": {"batch.global": self.run.global_batch, "lr.base": self.run.lr, **self.values},
            "setting": self.setting,
            "phase": self.phase,
            "run": asdict(self.run),
            "rival": {"samples": samples, "se_log": self.rival.se_log},
        }

    def curve(self, metric: str) -> Curve:
        """Its evaluations; a value that is not finite where it diverged, or ended without a finite one."""
        points = [(e["samples_seen"], e["metrics"][metric]) for e in self.evaluations if metric in e["metrics"]]
        if self.status == "diverged" or not points:
            last = points[-1][0] if points else -1
            points.append((max(last + 1, self.samples), math.inf))
        samples, values = zip(*points, strict=True)
        return Curve(samples=np.array(samples, dtype=np.float64), values=np.array(values, dtype=np.float64))

    def diverged(self, metric: str) -> bool:
        """Whether it ended in a value that is not finite."""
        return self.status != "running" and not math.isfinite(self.curve(metric).values[-1])

    def noise(self, until: float = math.inf) -> Noise | None:
        """The latest determined noise scale up to `until` samples; None where it is older than half of what was seen.

        That is good enough to place batches by. What is told of a moment comes from `window`.
        """
        seen = [one for one in self.evaluations if one["samples_seen"] <= until]
        for one in reversed(seen):
            metrics = one["metrics"]
            if STALE * one["samples_seen"] < seen[-1]["samples_seen"]:
                return None
            if "noise_scale" in metrics:
                ends = {"low": metrics["noise_scale_low"], "high": metrics["noise_scale_high"]}
                return Noise(value=metrics["noise_scale"], samples=one["samples_seen"], **ends)
        return None

    def window(self, at: float) -> NoiseWindow | None:
        """What the probe knew at the last evaluation up to `at` samples; None where that one is not of this moment."""
        seen = [one for one in self.evaluations if at / FRESH < one["samples_seen"] <= at]
        metrics = seen[-1]["metrics"] if seen else {}
        if "noise_scale_correlation" not in metrics:
            return None
        parts = {name: metrics[f"noise_scale_{name}"] for name in ("trace", "trace_se", "g2", "g2_se", "correlation")}
        return NoiseWindow(**parts, blocks=int(metrics["noise_scale_blocks"]))

    def result(self, goal: Goal) -> Result | None:
        """The run up to the evaluation that decided it; None while nothing did, or where it failed."""
        known = any(goal.metric in one["metrics"] for one in self.evaluations)
        if self.status == "failed" or (self.status == "running" and not known):
            return None
        curve = self.curve(goal.metric)
        for n in range(1, len(curve.samples) + 1):
            so_far = Curve(samples=curve.samples[:n], values=curve.values[:n])
            ended = judge(self.run, self.rival, so_far, goal)
            if ended is not None:
                return Result(run=self.run, curve=so_far, ended=ended)
        return None if self.status in ("running", "stopped") else Result(run=self.run, curve=curve, ended="budget")


def judge(run: Run, rival: Rival, curve: Curve, goal: Goal) -> Ended | None:
    """Why a run is over after the last evaluation of `curve`; None if it goes on."""
    now = float(curve.samples[-1])
    if not math.isfinite(curve.values[-1]):
        return "diverged"
    if beyond(curve, goal.value, goal.mode, run.overshoot, run.least_samples):
        return "overshot"
    if now >= run.max_samples:
        return "budget"
    raced = run.purpose == "search" and hopeless(
        curve, goal.value, goal.mode, rival.samples, rival.se_log, run.max_samples
    )
    return "raced" if raced else None


def trials_of(events: Iterable[Mapping[str, Any]]) -> list[StudyTrial]:
    """The trials of a study's record, in the order in which they began."""
    return records_of(events, _begun)


def _begun(event: Mapping[str, Any]) -> StudyTrial:
    samples = event["rival"]["samples"]
    return StudyTrial(
        trial=event["trial"],
        run=Run(**event["run"]),
        rival=Rival(samples=math.inf if samples is None else samples, se_log=event["rival"]["se_log"]),
        phase=event["phase"],
        setting=event["setting"],
        values={k: v for k, v in event["params"].items() if k not in (BATCHES, LR)},
    )


def known_of(trials: Sequence[StudyTrial], goal: Goal) -> list[Trained]:
    """The results of those that are decided."""
    decided = [(trial, result) for trial in trials if (result := trial.result(goal)) is not None]
    return [Trained(setting=trial.setting, result=result, phase=trial.phase) for trial, result in decided]

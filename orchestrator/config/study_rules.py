"""What makes a spec one that a critical-batch study can be made of, without knowing its task yet."""

from __future__ import annotations

from typing import Any

from orchestrator.config.duration import Duration
from orchestrator.config.load import Loaded, source_of, spec_from_dict
from orchestrator.config.reach import Reach
from orchestrator.config.refusal import Refusal
from orchestrator.config.space import FloatRange
from orchestrator.config.spec import SweepSpec
from orchestrator.config.study_section import LEAST_BATCHES
from orchestrator.config.sweep_sections import SearchSection

BATCHES, LR, WARMUP = "batch.global", "lr.base", "lr.warmup"
_TUNED = ("optimizer", "task", "training")
FINEST = 2000
"""Evaluations are at least the budget's share of one in so many apart: the first few tell nothing."""
COARSEST = 0.1
LATEST_TARGET = 0.7
_KINDS = ("best_metric", "samples_to_target")


def as_study(loaded: Loaded, *, file: str) -> Loaded:
    """The spec as a study trains it: its ladder stands in the space, and what only a sweep reads is at its default.

    Raises:
        ConfigError: names file, key, value, rule and remedy.
    """
    spec = loaded.spec
    try:
        for check in (_check_space, _check_lr, _check_objective, _check_section):
            check(spec)
        raw = spec.to_dict()
        ladder = _ladder(spec)
    except Refusal as refusal:
        raise refusal.in_file(source_of(refusal.key, file=file, set_keys=loaded.set_keys)) from None
    raw["search"] = SearchSection().model_dump(mode="json")
    raw["budget"]["eval_every"] = max(1, spec.budget.samples // FINEST)
    if ladder is None:
        raw["batch"]["global"] = raw["batch"]["reference"]
    else:
        raw["space"][BATCHES] = list(ladder)
    return Loaded(spec=spec_from_dict(raw, file=file), warnings=loaded.warnings, set_keys=loaded.set_keys)


def other_keys(spec: SweepSpec) -> tuple[str, ...]:
    """The keys of the space that are tuned beside the learning rate."""
    return tuple(key for key in spec.space if key not in (BATCHES, LR))


def ladder_of(spec: SweepSpec) -> tuple[int, ...] | None:
    """The global batches that are named, ascending; None where the study places them itself."""
    parameter = spec.space.get(BATCHES)
    values = None if parameter is None else parameter.values()
    return None if values is None else tuple(sorted(int(value) for value in values))


def lr_range(spec: SweepSpec) -> FloatRange:
    """The learning rates that may be tried at every batch.

    Raises:
        Refusal: there is no such range.
    """
    parameter = spec.space.get(LR)
    if isinstance(parameter, FloatRange) and parameter.log:
        return parameter
    low, high = (float(f"{spec.lr.base * factor:.1g}") for factor in (1 / 30, 30))
    rule = "a study tunes the learning rate of every batch within a log range"
    remedy = f"write {{low: {low:g}, high: {high:g}, log: true}}: wide enough for the best of every batch"
    shown: Any = ... if parameter is None else parameter.to_form()
    raise Refusal(rule, key=f"space.{LR}", value=shown, remedy=remedy)


def _check_space(spec: SweepSpec) -> None:
    for key in spec.space:
        if key == "lr.rule":
            rule = "a study tunes the learning rate of every batch by itself, so that no rule applies"
            raise Refusal(rule, key=f"space.{key}", remedy="take it out of the space, and write lr.rule: none")
        if key not in (BATCHES, LR) and not _is_tuned(key):
            rule = "a study tunes lr.base, lr.warmup, and options of optimizer, task and training at every batch"
            remedy = f"fix {key} outside the space, or run one study for each value"
            raise Refusal(rule, key=f"space.{key}", value=spec.space[key].to_form(), remedy=remedy)
    found = lr_range(spec)
    if not found.low <= spec.lr.base <= found.high:
        rule = f"must lie within space.{LR}, from {found.low:g} to {found.high:g}: the study starts there"
        raise Refusal(rule, key=LR, value=spec.lr.base, remedy="write a rate that trains at batch.reference")


def _is_tuned(key: str) -> bool:
    return key == WARMUP or (key.partition(".")[0] in _TUNED and key != "optimizer.name")


def _check_lr(spec: SweepSpec) -> None:
    lr = spec.lr
    if lr.rule != "none":
        rule = "a study tunes the learning rate of every batch by itself, so that no rule applies"
        raise Refusal(rule, key="lr.rule", value=lr.rule, remedy="write lr.rule: none")
    if lr.decay != "none":
        rule = "runs end where they reach the target, so that their learning rate must not depend on a budget"
        raise Refusal(rule, key="lr.decay", value=lr.decay, remedy="write lr.decay: none")
    reach = Reach(spec)
    for warmup in ("lr.warmup", *([f"space.{WARMUP}"] if WARMUP in spec.space else [])):
        for value in [str(lr.warmup)] if warmup == WARMUP else reach.ends(WARMUP):
            if Duration.parse(value).unit == "share":
                rule = "runs end where they reach the target, so that their warmup must not depend on a budget"
                remedy = "write 0, samples or updates, such as 50 updates"
                raise Refusal(rule, key=warmup, value=value, remedy=remedy)


def _check_objective(spec: SweepSpec) -> None:
    if spec.objective.kind not in _KINDS:
        rule = "a study counts samples to a target"
        raise Refusal(rule, key="objective.kind", value=spec.objective.kind, remedy="write samples_to_target")


def _check_section(spec: SweepSpec) -> None:
    study = spec.study
    if study.most_seeds < study.least_seeds:
        rule = f"must be at least study.least_seeds, which is {study.least_seeds}"
        raise Refusal(rule, key="study.most_seeds", value=study.most_seeds, remedy=f"write {study.least_seeds} or more")
    total = study.total_samples
    if total is not None and total < spec.budget.samples:
        rule = f"must be at least budget.samples, which is {spec.budget.samples}: those of one run"
        raise Refusal(rule, key="study.total_samples", value=total, remedy="write more, or null for 100 times as many")
    if not 0 < study.eval_every.value <= COARSEST:
        rule = f"must be above 0 and at most {COARSEST:.0%}, or a crossing is not resolved"
        raise Refusal(rule, key="study.eval_every", value=str(study.eval_every), remedy='write "3%"')
    if spec.objective.target is None and not 0 < study.target_from.value <= LATEST_TARGET:
        rule = f"must be above 0 and at most {LATEST_TARGET:.0%}: the curve is fitted on both sides of the target"
        raise Refusal(rule, key="study.target_from", value=str(study.target_from), remedy='write "50%"')
    if not spec.training.noise_probe and _ladder(spec) is None:
        rule = "the ladder is placed around the measured noise scale"
        raise Refusal(rule, key="training.noise_probe", value=False, remedy="write true, or list study.batches")


def _ladder(spec: SweepSpec) -> tuple[int, ...] | None:
    """The batches of the section, of the space, or None; both must say the same."""
    asked, spaced = spec.study.batches, ladder_of(spec)
    if spaced is None and BATCHES in spec.space:
        remedy = "list the batches, such as [8, 16, 32, 64, 256]"
        raise Refusal("a ladder has whole batches", key=f"space.{BATCHES}", remedy=remedy)
    if asked == "auto":
        if spaced is not None and len(spaced) < LEAST_BATCHES:
            rule = f"a critical batch needs at least {LEAST_BATCHES} batches on both sides of it"
            remedy = "add some, each 2 to 4 times the one before"
            raise Refusal(rule, key=f"space.{BATCHES}", value=list(spaced), remedy=remedy)
        ladder = spaced
    elif spaced is not None and spaced != asked:
        rule = f"space.{BATCHES} names other batches: {', '.join(map(str, spaced))}"
        raise Refusal(rule, key="study.batches", value=list(asked), remedy="leave one of the two out")
    else:
        ladder = asked
    reference = spec.batch.reference_batch
    if ladder is not None and spec.objective.target is None and reference not in ladder:
        rule = "without objective.target the target is read from a run at this batch, which must be one of the ladder"
        raise Refusal(
            rule, key="batch.reference", value=reference, remedy=f"write one of {', '.join(map(str, ladder))}"
        )
    return ladder

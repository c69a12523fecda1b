"""What makes a spec one that the probe can measure, without knowing its task yet."""

from __future__ import annotations

from orchestrator.config.load import Loaded, spec_from_dict
from orchestrator.config.short_rules import notes_on, one_value, with_values
from orchestrator.config.sweep_sections import SearchSection

_BATCH = ("batch.global", "batch.micro", "batch.micro_max", "batch.accumulation")
_IDLE = ("lr.", "batch.")
"""Sections of the space that change neither memory nor speed."""


def as_probe(loaded: Loaded, *, file: str) -> Loaded:
    """The spec as the probe measures it: one value for every key of the space, and the split of the batch left open.

    Raises:
        ConfigError: names file, key, value, rule and remedy.
    """
    spec = loaded.spec
    values = {key: one_value(spec, key, parameter) for key, parameter in spec.space.items() if key not in _BATCH}
    raw = with_values(spec, values)
    raw["space"] = {}
    raw["search"] = SearchSection().model_dump(mode="json")
    raw["objective"] = {"kind": "best_metric", "metric": spec.objective.metric}
    workers = spec.cluster.workers
    raw["batch"] |= {"global": workers, "micro": None, "micro_max": None, "accumulation": None}
    raw["budget"]["samples"] = max(raw["budget"]["samples"], workers)
    warnings = [text for text in loaded.warnings if not text.startswith("space")]
    warnings += notes_on(spec, {key: value for key, value in values.items() if not key.startswith(_IDLE)})
    return Loaded(spec=spec_from_dict(raw, file=file), warnings=tuple(warnings), set_keys=loaded.set_keys)

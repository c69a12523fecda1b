"""The whole spec of a sweep: every choice a user can make, typed and frozen.

Building one checks each field alone. `load` reads it from YAML, `check` finds what cannot work together, `resolve`
turns it and one suggestion into a trial.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator

from orchestrator.config import yaml_form
from orchestrator.config.fields import Section, Seed
from orchestrator.config.probe_section import ProbeSection
from orchestrator.config.space import Parameter
from orchestrator.config.space_form import dump_space, parse_space
from orchestrator.config.study_section import StudySection
from orchestrator.config.sweep_sections import (
    BudgetSection,
    CheckpointSection,
    ClusterSection,
    EvaluationSection,
    ObjectiveSection,
    SearchSection,
    TrackingSection,
)
from orchestrator.config.training_sections import (
    BatchSection,
    LrSection,
    OptimizerSection,
    TaskSection,
    TrainingSection,
)
from orchestrator.config.trial import canonical_hash

Space = Annotated[dict[str, Parameter], PlainValidator(parse_space), PlainSerializer(dump_space)]

DEFAULT_OPTIMIZER = {"name": "SGD", "momentum": 0.9}


class SweepSpec(Section):
    """One search, fully resolved. Dotted keys in texts for people are those of YAML, such as ``batch.global``."""

    task: TaskSection

    name: Annotated[str, Field(pattern=r"^\w[\w.-]{0,99}$")] = Field(
        default_factory=lambda spec: spec["task"].name.rsplit(":", 1)[-1]
    )
    """Name of run folder and experiment: letters, digits, dots, dashes, underscores; the task's unless given."""

    seed: Seed = 0
    """Base of all randomness: initial weights, data order, suggestions."""

    objective: ObjectiveSection = ObjectiveSection()
    budget: BudgetSection = BudgetSection()
    batch: BatchSection = BatchSection()
    lr: LrSection = LrSection()
    optimizer: OptimizerSection = OptimizerSection.model_validate(DEFAULT_OPTIMIZER)
    training: TrainingSection = TrainingSection()
    evaluation: EvaluationSection = EvaluationSection()
    search: SearchSection = SearchSection()
    study: StudySection = StudySection()
    probe: ProbeSection = ProbeSection()
    cluster: ClusterSection = ClusterSection()
    checkpoint: CheckpointSection = CheckpointSection()
    tracking: TrackingSection = TrackingSection()

    space: Space = Field(default_factory=dict)
    """What to try, by dotted key; keys of the sections batch, lr, optimizer, task and training may be named."""

    @property
    def space_task_keys(self) -> tuple[str, ...]:
        """The task's options that the space varies, without ``task.``; the task knows whether they exist."""
        return tuple(key.removeprefix("task.") for key in self.space if key.startswith("task."))

    def to_dict(self) -> dict[str, Any]:
        """Every key with its value, named as in YAML, JSON-ready; `load.spec_from_dict` is the inverse."""
        sections = self.model_dump(mode="json", by_alias=True)
        return {"name": sections.pop("name"), **sections}

    def to_yaml(self) -> str:
        """`to_dict` as a YAML file that `load.load_spec` reads back into an equal spec."""
        return yaml_form.dump(self.to_dict())

    @property
    def spec_hash(self) -> str:
        """SHA-256 of the resolved spec: independent of the order of keys, of the process, and of spelt-out defaults."""
        return canonical_hash(self.to_dict())

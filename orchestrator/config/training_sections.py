"""The sections of a spec that say how one trial trains: task, batch, lr, optimizer, training.

Only what one field alone can get wrong is refused here; what two fields get wrong together is `check`'s.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from orchestrator.config.duration import Duration
from orchestrator.config.fields import (
    AnyDuration,
    AutoOrCount,
    AutoOrFlag,
    Count,
    CountOrZero,
    Positive,
    Section,
    Share,
)
from orchestrator.config.plain import check_plain
from orchestrator.config.refusal import Refusal
from orchestrator.config.trial import Decay, Precision

AUTO = "auto"
Rule = Literal["none", "sqrt", "linear", "power", "noise", "sde"]


class OpenSection(Section):
    """A section with a name; every other key is an option of what is named."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _options_are_plain(self) -> OpenSection:
        check_plain(self.options)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The keys that are not fields of this section."""
        return dict(self.__pydantic_extra__ or {})


def _task_name(name: str) -> str:
    if not re.fullmatch(r"\w+|\w+(\.\w+)*:\w+", name):
        remedy = "write a built-in task such as digits, or your own as package.module:Class"
        raise Refusal("is neither a task's short name nor module:Class", value=name, remedy=remedy)
    return name


class TaskSection(OpenSection):
    """What is trained; the other keys are the task's own typed options."""

    name: Annotated[str, AfterValidator(_task_name)]
    """A built-in task's short name, or ``module:Class``."""


class BatchSection(Section):
    """The global batch and how it is split over the workers."""

    global_batch: Count = Field(default=64, validation_alias="global", serialization_alias="global")
    """Samples per update over all workers: micro x accumulation x world size."""

    reference_batch: Count = Field(
        default_factory=lambda batch: batch["global_batch"],
        validation_alias="reference",
        serialization_alias="reference",
    )
    """The global batch at which `lr.base` is stated, in samples; `batch.global` as written unless given."""

    micro_batch: AutoOrCount | None = Field(default=None, validation_alias="micro", serialization_alias="micro")
    """Samples that one worker puts through one forward and backward; null derives it, auto within what is predicted to
    fit the device."""

    micro_batch_max: Count | None = Field(default=None, validation_alias="micro_max", serialization_alias="micro_max")
    """The largest micro batch that may be derived, in samples; null sets no limit."""

    accumulation: Count | None = None
    """Micro batches per worker and update, at least 1; null derives it."""

    @property
    def fixed_micro(self) -> int | None:
        """The micro batch where it is given."""
        return self.micro_batch if isinstance(self.micro_batch, int) else None


class LrSection(Section):
    """The learning rate as a function of the batch and of samples seen."""

    base: Positive = 0.1
    """Peak learning rate at the reference batch."""

    rule: Rule = "sqrt"
    """How the peak follows the global batch: none, sqrt, linear, power, noise or sde."""

    exponent: float | None = None
    """Exponent of rule power."""

    noise_scale: Positive | None = None
    """Gradient noise scale of rule noise, in samples."""

    warmup: AnyDuration = Duration(value=0.05, unit="share")
    """Linear warmup: 0, a share of the budget ("5%"), "2000 samples" or "50 updates"."""

    decay: Decay = "cosine"
    """From the end of warmup to the budget: none, linear or cosine."""

    final: Share = Duration(value=0, unit="share")
    """Learning rate at the budget, as a share of the peak."""


class OptimizerSection(OpenSection):
    """A class of ``torch.optim``; the other keys are its keyword arguments."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] = "SGD"
    """The class's name, such as SGD or AdamW."""

    @model_validator(mode="after")
    def _lr_has_its_section(self) -> OptimizerSection:
        if "lr" in self.options:
            rule = "the learning rate follows the batch, so it is not an optimizer option"
            raise Refusal(rule, key="lr", value=self.options["lr"], remedy="write lr.base instead")
        return self


class LossScaleSection(Section):
    """Dynamic loss scaling for fp16."""

    initial: Positive = 65536.0
    """First scale."""

    growth_interval: Count = 2000
    """Updates without overflow after which the scale doubles."""


class LoaderSection(Section):
    """Data loading on each worker."""

    workers: CountOrZero = 0
    """Loader processes; 0 loads in the training process."""

    prefetch: Count = 2
    """Micro batches that each loader process keeps ready."""

    pin_memory: AutoOrFlag = "auto"
    """Page-locked batches; auto means on GPUs."""


class TrainingSection(Section):
    """How an update is computed."""

    precision: Precision = "fp32"
    """fp32, fp64, bf16 or fp16."""

    grad_clip: Positive | None = None
    """Largest 2-norm of the mean gradient; null does not clip."""

    noise_probe: bool = True
    """Whether the gradient noise scale is measured."""

    reducer: Literal["auto", "flat", "ddp"] = "auto"
    """How gradients are averaged; auto means flat on CPU and ddp on GPUs."""

    checkpoint_activations: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] | None = None
    """Class of modules, such as _Block, that run forward again in the backward pass to save memory; null saves none."""

    offload_optimizer: bool = False
    """Whether a GPU's optimizer keeps its state in host memory and steps on the CPU threads of its worker."""

    loss_scale: LossScaleSection = LossScaleSection()

    loader: LoaderSection = LoaderSection()

"""The section of a spec that the probe reads; sweeps and studies pass it over."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from orchestrator.config.fields import MOST, Count, Positive, Section, whole


class ProbeSection(Section):
    """How the probe measures memory and speed. Micro batches are doubled from 1 until updates last longer than
    `longest_update_s`, memory or data end, or speed has long stopped growing; `search`, `study` and the space are not
    used.
    """

    rounds: Annotated[int, BeforeValidator(whole), Field(ge=2, le=MOST)] = 3
    """Times that every geometry is timed, in turn with all others: what differs between rounds is the machine's noise.
    """

    seconds: Positive = 0.4
    """Seconds of updates timed in each geometry and round, at least 3 updates."""

    longest_update_s: Positive = 1.0
    """Seconds of an update after which micro batches are not doubled any more."""

    micro_max: Count | None = None
    """Largest micro batch that is timed; null leaves it to memory, data and speed."""

    memory: Literal["auto", "predict", "measure"] = "auto"
    """Whether micro batches are also tried until they do not fit; auto tries on GPUs, and where `cluster.device_memory`
    is given."""

    savers: bool = True
    """Whether what saves memory (activation checkpointing, bf16, optimizer state off the device) is timed too."""

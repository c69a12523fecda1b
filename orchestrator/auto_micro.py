"""``batch.micro: auto``: the largest micro batch that is predicted to fit, as a limit; every global batch is held."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.config.load import spec_from_dict
from orchestrator.config.refusal import Refusal
from orchestrator.config.spec import SweepSpec
from orchestrator.config.training_sections import AUTO
from orchestrator.config.trial import TaskRef, TrialSpec
from orchestrator.errors import ResourceError
from orchestrator.report.formats import size
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.training.memory_ceiling import Ceiling, memory_ceiling
from orchestrator.training.registry import load_task
from orchestrator.training.traced_step import NotTraceable

_KEY = "batch.micro"


def with_fitting_micro(
    spec: SweepSpec,
    baseline: TrialSpec,
    models: Sequence[Mapping[str, Any]],
    device_bytes: Callable[[], float],
    *,
    train_samples: int,
) -> tuple[SweepSpec, str]:
    """The spec with the limit in place of ``auto``, and what to tell of it.

    Args:
        spec: says ``auto``.
        baseline: its trial, of any plan.
        models: task options to predict for; the largest decides.
        device_bytes: asks the device for its memory, where ``cluster.device_memory`` does not say it.
        train_samples: in the training data.

    Raises:
        Refusal: memory cannot be predicted for this task.
        ResourceError: not even one sample fits.
    """
    held, margin, workers = (
        float(spec.cluster.device_memory or device_bytes()),
        spec.cluster.memory_margin,
        spec.cluster.workers,
    )
    cap = max(1, train_samples // workers)
    # Two passes an update: the noise probe of one worker then holds a second gradient.
    plan = BatchPlan(global_batch=2 * workers, micro_batch=1, accumulation=2, world_size=workers)
    found: list[Ceiling] = []
    for options in models:
        trial = dataclasses.replace(baseline, plan=plan, task=TaskRef(name=baseline.task.name, options=dict(options)))
        try:
            found.append(memory_ceiling(trial, load_task(trial.task.name, dict(options)), held, cap=cap, margin=margin))
        except NotTraceable as error:
            rule = f"memory cannot be predicted for this task: {error}"
            remedy = "write the micro batch, or batch.micro_max, as python -m orchestrator.probe measures it"
            raise Refusal(rule, key=_KEY, value=AUTO, remedy=remedy) from None
    most, device = min(one.micro_batch for one in found), size(int(held))
    if not most:
        worst = max(one.uses[min(one.uses)].peak_bytes for one in found)
        raise ResourceError(
            f"one sample needs {size(worst)} at the peak of an update, and the device has {device}, of which "
            f"{100 * margin:.0f} % stay free",
            key=_KEY,
            value=AUTO,
            remedy="see what would free some: python -m orchestrator.probe",
        )
    raw = spec.to_dict()
    limit = raw["batch"]["micro_max"]
    raw["batch"] |= {"micro": None, "micro_max": most if limit is None else min(most, limit)}
    what = "all that a worker has" if all(one.capped for one in found) else f"predicted for {device}"
    return spec_from_dict(raw), f"{_KEY} = auto: micro batches of up to {most} samples fit ({what})"

"""The peak memory of a trial's update, predicted without a device: the real step is run on tensors without memory."""

from __future__ import annotations

from collections import Counter

from orchestrator.config.trial import TrialSpec
from orchestrator.theory.batch_plan import BatchPlan
from orchestrator.theory.memory_use import MemoryUse
from orchestrator.training.storages import Ledger
from orchestrator.training.task import Task
from orchestrator.training.traced_step import traced_trial

UPDATES = 2
"""The optimizer's state is made by the first one."""


def predict_memory(spec: TrialSpec, task: Task) -> MemoryUse:
    """Predict the peak of `spec`'s updates on one worker.

    What `setup`, `step` and the optimizer allocate is counted as torch's storages, see `traced_trial`. What a kernel
    uses inside, what the allocator rounds up and what libraries hold (a CUDA context, cuBLAS workspaces) is not. With
    an offloaded optimizer the device is taken for one apart from its host; a CPU's process holds both counts.

    Args:
        spec: its `plan` is predicted.
        task: its task.

    Raises:
        NotTraceable: where sizes depend on values, or the step raises.
    """
    with traced_trial(spec, task) as trial:
        for _ in range(UPDATES):
            trial.update()
        peak, at_peak = trial.ledger.peak_bytes, trial.ledger.at_peak
        trial.ledger.restart_peak()
        trial.evaluate()
        return _use(spec.plan, peak, at_peak, trial.ledger, trial.layers)


def _use(
    plan: BatchPlan, peak: int, at_peak: dict[tuple[str, str], int], ledger: Ledger, layers: dict[str, str]
) -> MemoryUse:
    known: Counter[str] = Counter()
    activations: Counter[str] = Counter()
    for (label, module), size in at_peak.items():
        if label == "forward" or module:  # in backward passes, modules run where they are recomputed
            activations[module] += size
        else:
            known[label] += size
    named = [known[label] for label in ("parameters", "gradients", "optimizer")]
    return MemoryUse(
        plan=plan,
        peak_bytes=peak,
        parameters=named[0],
        gradients=named[1],
        optimizer=named[2],
        activations=dict(activations.most_common()),
        rest=peak - sum(named) - sum(activations.values()),
        evaluation_bytes=ledger.peak_bytes,
        host_bytes=ledger.host_bytes,
        layers=layers,
    )

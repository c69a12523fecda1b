"""One search with Ray Tune: light trials over a pool of gangs, our searcher, our early stopping."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import TuneError

from orchestrator.errors import OrchestratorError
from orchestrator.search.scheduler import EarlyStopping
from orchestrator.search.searcher import StudySearcher
from orchestrator.search.trainable import LeasedTrial

# Our own events are the record: nobody would read Tune's files for each trial (CSV, JSON, TensorBoard).
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
# Ctrl-C is the driver's to handle; Tune would finish its experiment as if it were done.
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")

ACTOR_FAILURES = 3  # of one trial
_SLIVER = 0.001  # Tune refuses an empty bundle; this much of the driver's own node costs no CPU and keeps trials there


def run_search(
    *,
    mailbox: Any,
    searcher: StudySearcher,
    scheduler: EarlyStopping,
    metric: str,
    driver_ip: str,
    storage: Path,
) -> None:
    """Run Tune until the searcher has nothing more to suggest.

    What is under way when something else ends it stays RUNNING in the study, for the process that takes the sweep on.

    Args:
        mailbox: handle of the `Mailbox` actor.
        searcher: what to try.
        scheduler: what to stop.
        metric: the metric that results carry as ``metric``, such as ``val/loss``.
        driver_ip: the address of the driver's node, where the light trials live.
        storage: a folder for Tune's own records; nothing reads them again.

    Raises:
        OrchestratorError: Tune, the searcher or the scheduler broke.
    """
    trainable = tune.with_parameters(LeasedTrial, mailbox=mailbox, metric=metric)
    trainable = tune.with_resources(trainable, tune.PlacementGroupFactory([{f"node:{driver_ip}": _SLIVER}]))
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=searcher, scheduler=scheduler, num_samples=-1, reuse_actors=True, trial_dirname_creator=_name
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(storage),
            verbose=0,
            callbacks=[],
            # A light actor that died is started again and reads on where the trial is; its gang never notices.
            failure_config=tune.FailureConfig(max_failures=ACTOR_FAILURES),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    )
    try:
        tuner.fit()
    except TuneError as error:
        raise OrchestratorError(f"the search broke: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """The last line of what Tune wrapped: its own text is about `Tuner.restore`, which does not fit here."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _name(trial: Any) -> str:
    return str(trial.config.get("trial", trial.trial_id))

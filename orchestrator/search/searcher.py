"""Our `Searcher`: Ray Tune asks, a persistent Optuna study answers, and every trial is told exactly once.

The study is the truth. A finished trial is COMPLETE with its value, one stopped early (or short of its target) PRUNED
with its last value, a failed or diverged one FAIL. One that is under way when the sweep is cut stays RUNNING: whoever
takes the sweep on attaches to it again, so that numbering and suggestions are those of a sweep that was never cut.
"""

from __future__ import annotations

import collections
import logging
import math
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import LOCK_FILE_SUFFIX
from optuna.trial import TrialState
from ray.tune.search import Searcher

from orchestrator.config.space import Parameter
from orchestrator.config.trial import TrialSpec
from orchestrator.credentials import hide
from orchestrator.errors import ConfigError
from orchestrator.mirror import Mirror
from orchestrator.search.objective import Objective
from orchestrator.search.samplers import canonical, cells, make_sampler, untried
from orchestrator.search.space import decode, to_distribution

_RESAMPLE = 50
# Known suggestions in a row until the sampler counts as insisting. Asked again about the same history, a Gaussian
# process mostly gives the same optimum again, at up to a second each time.
_PATIENCE = {"gp": 2}
_CELLS_LISTED = 10_000
# Suggestions queued beyond those that the gangs train. A Gaussian process takes up to a second for one, in which a gang
# would idle; in return it does not know the trial that has just ended, and reckons with it as one that runs.
_AHEAD = {"gp": 1}

logger = logging.getLogger(__name__)


class _Mirrored(JournalFileBackend):
    """A study's file whose every line is on another filesystem as well before it counts."""

    def __init__(self, path: Path, uri: str) -> None:
        super().__init__(str(path))
        self._mirror = Mirror(path, uri, sent=path.stat().st_size)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        super().append_logs(logs)
        self._mirror.push()


def open_study(path: Path, name: str, objective: Objective, mirror_uri: str | None = None) -> optuna.Study:
    """The persistent study in the journal file at `path`: optuna-dashboard reads it, also while the sweep runs.

    With `mirror_uri`, a folder on another filesystem holds each line of it too. The caller is its only writer: what one
    that was killed left half done (a lock, a torn last line) is cleared away.
    """
    path.with_name(path.name + LOCK_FILE_SUFFIX).unlink(missing_ok=True)
    if path.exists() and not (whole := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, whole.rfind(b"\n") + 1)
    storage = JournalStorage(_Mirrored(path, mirror_uri) if mirror_uri else JournalFileBackend(str(path)))
    return optuna.create_study(
        storage=storage, study_name=name, directions=list(objective.directions), load_if_exists=True
    )


@dataclass
class Suggestion:
    """One training run to make: what was suggested, and the run that this means."""

    trial: str
    number: int
    params: dict[str, Any]
    spec: TrialSpec
    phase: str = "search"
    repeat_of: str | None = None
    asked: optuna.trial.Trial | None = None
    twins: list[optuna.trial.Trial] = field(default_factory=list)


class StudySearcher(Searcher):  # type: ignore[misc]
    """Suggests the search's trials, then those that repeat the best settings under other seeds.

    Suggestions that mean the same run (equal `TrialSpec.key`) are never paid twice: the later one takes the result of
    the earlier one, and another is asked for. A sampler that insists on what is known is helped out: with what a finite
    space still holds, or at random. One whose model breaks, or whose suggestion no run can be made of, costs a failed
    trial of the study.

    Args:
        study: the persistent study.
        space: what to search.
        resolve: from decoded parameters to the run they mean.
        objective: directions, and the metric told as intermediate value.
        sampler: the sampler's name; seed and startup_trials belong to it.
        trials: different runs to pay for.
        at_once: runs that are trained at once at most; a slow sampler suggests one ahead of that.
        repeats: asked once, when the search is over: the runs that repeat its best settings.
        on_reuse: told of each suggestion that takes another run's result.
        on_lost: told of each trial that Tune has lost for good, which no gang should train for nobody.
    """

    def __init__(
        self,
        *,
        study: optuna.Study,
        space: Mapping[str, Parameter],
        resolve: Callable[[Mapping[str, Any]], TrialSpec],
        objective: Objective,
        sampler: str,
        seed: int,
        startup_trials: int,
        trials: int,
        at_once: int,
        repeats: Callable[[], list[Suggestion]] = list,
        on_reuse: Callable[[dict[str, Any]], None] = lambda event: None,
        on_lost: Callable[[str], object] = lambda trial: None,
    ) -> None:
        super().__init__()
        self.study, self.space, self.resolve, self.objective = study, dict(space), resolve, objective
        self.sampler, self.seed, self.startup_trials = sampler, seed, startup_trials
        self.trials, self.at_once = trials, at_once + _AHEAD.get(sampler, 0)
        self.repeats, self.on_reuse, self.on_lost = repeats, on_reuse, on_lost
        self.distributions = {key: to_distribution(parameter) for key, parameter in self.space.items()}
        self.by_key: dict[str, Suggestion] = {}
        self.running: dict[str, Suggestion] = {}
        self.finished: list[tuple[Suggestion, dict[str, Any]]] = []
        self._queue: collections.deque[Suggestion] | None = None
        self._left: collections.deque[int] = collections.deque()  # numbers that an earlier process left RUNNING
        self._repeated: set[str] = set()
        self._tried: set[str] = set()
        self._cells = cells(self.space)
        self._exhausted = False

    def take_on(self, endings: Mapping[str, dict[str, Any]]) -> None:
        """Take on the search of an earlier process, which may have been cut anywhere.

        Args:
            endings: trial id -> ``status``, ``value`` and ``last`` (samples seen and metric of the last evaluation, or
                None) of every trial that has ended, in the order of the ends.
        """
        ended = {}
        for frozen in self.study.get_trials(deepcopy=False):
            trial, running = _id(frozen.number), frozen.state is TrialState.RUNNING
            if running and trial not in endings:
                self._left.append(frozen.number)
                continue
            self._tried.add(canonical(frozen.params))
            if trial in endings:
                asked = self._attach(frozen.number) if running else None
                params = decode(self.space, frozen.params)
                suggestion = Suggestion(trial, frozen.number, params, self.resolve(params), asked=asked)
                ended[trial] = self.by_key[frozen.user_attrs["key"]] = suggestion
        for trial, end in endings.items():
            if (found := ended.get(trial)) is None:
                self._repeated.add(trial)
                continue
            self.finished.append((found, end))
            if found.asked is not None:
                self._tell(found.asked, end)

    @property
    def paid(self) -> int:
        """Different runs suggested so far by the search."""
        return len(self.by_key)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Tune's question: a config, None for "not now", or FINISHED."""
        if len(self.running) >= self.at_once:
            return None
        suggestion = self._next()
        if isinstance(suggestion, Suggestion):
            self.running[trial_id] = suggestion
            return {
                "trial": suggestion.trial,
                "spec": suggestion.spec.to_dict(),
                "info": {
                    "number": suggestion.number,
                    "key": suggestion.spec.key,
                    "params": suggestion.params,
                    "phase": suggestion.phase,
                    "repeat_of": suggestion.repeat_of,
                },
            }
        return suggestion

    def _next(self) -> Suggestion | str | None:
        if self._queue is None:
            if self._left or (self.paid < self.trials and not self._exhausted):
                suggestion = self._ask()
                if suggestion is not None:
                    return suggestion
                self._exhausted = True
            if self.running:
                return None
            self._queue = collections.deque(s for s in self.repeats() if s.trial not in self._repeated)
        return self._queue.popleft() if self._queue else Searcher.FINISHED

    def _ask(self) -> Suggestion | None:
        """The next suggestion that means a new run, or None if asking on brings nothing new."""
        refusal: ConfigError | None = None
        for attempt in range(_RESAMPLE + len(self._left)):
            if not self._left and (self.paid >= self.trials or len(self._tried) >= (self._cells or math.inf)):
                return None
            if self._left:
                asked: optuna.trial.Trial | None = self._attach(self._left.popleft())
            else:
                asked = self._ask_optuna(insists=attempt >= _PATIENCE.get(self.sampler, _RESAMPLE // 2))
            if asked is None:
                return None
            self._tried.add(canonical(asked.params))
            params = decode(self.space, asked.params)
            asked.set_user_attr("params", hide(params, ()))
            try:
                spec = self.resolve(params)
            except ConfigError as error:
                logger.warning("suggestion %d cannot be trained: %s", asked.number, error)
                refusal = error
                asked.set_user_attr("status", "refused")
                self.study.tell(asked, state=TrialState.FAIL)
                continue
            asked.set_user_attr("key", spec.key)
            twin = self.by_key.get(spec.key)
            if twin is None:
                suggestion = Suggestion(_id(asked.number), asked.number, params, spec, asked=asked)
                self.by_key[spec.key] = suggestion
                return suggestion
            self._reuse(twin, asked, params)
        if refusal is not None and not self.by_key:
            raise refusal
        return None

    def _ask_optuna(self, *, insists: bool) -> optuna.trial.Trial | None:
        """Ask the sampler; or, if it `insists` on what is known, take what a finite space still holds, or at random."""
        number = len(self.study.get_trials(deepcopy=False))
        if self.sampler == "grid" and number >= (self._cells or math.inf):
            return None
        if insists and self._cells is not None and self._cells <= _CELLS_LISTED:
            left = untried(self.space, self._tried)
            self.study.enqueue_trial(left[np.random.default_rng([self.seed, number]).integers(len(left))])
        name = "random" if insists else self.sampler
        try:
            return self._ask_sampler(name, number)
        except Exception:  # whatever a sampler's numerics raise; its trial exists by now
            if name == "random":
                raise
            logger.exception("sampler %s broke; a random suggestion takes its place", name)
            for broken in range(number, len(self.study.get_trials(deepcopy=False))):
                self.study.tell(broken, state=TrialState.FAIL)
            return self._ask_sampler("random", len(self.study.get_trials(deepcopy=False)))

    def _attach(self, number: int) -> optuna.trial.Trial:
        """The study's trial of that number, still RUNNING; parameters that it lacks are what they would have been."""
        (frozen,) = [t for t in self.study.get_trials(deepcopy=False) if t.number == number]
        self._set_sampler(self.sampler, number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            trial = optuna.trial.Trial(self.study, frozen._trial_id)
            for name, distribution in self.distributions.items():
                trial._suggest(name, distribution)  # as `Study.ask` does
        return trial

    def _set_sampler(self, name: str, number: int) -> None:
        self.study.sampler = make_sampler(
            name, seed=self.seed, number=number, startup_trials=self.startup_trials, space=self.space
        )

    def _ask_sampler(self, name: str, number: int) -> optuna.trial.Trial:
        self._set_sampler(name, number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return self.study.ask(self.distributions)

    def close(self) -> None:
        """The search is over and nobody takes it on: what is still under way is told as failed. Twice is fine."""
        self.running.clear()
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.tell(trial.number, state=TrialState.FAIL)

    def _reuse(self, twin: Suggestion, asked: optuna.trial.Trial, params: dict[str, Any]) -> None:
        asked.set_user_attr("reused_from", twin.trial)
        done = next((result for suggestion, result in self.finished if suggestion is twin), None)
        if done is None:
            twin.twins.append(asked)
        else:
            self._tell(asked, done)
        self.on_reuse(
            {
                "trial": _id(asked.number),
                "number": asked.number,
                "params": params,
                "of": twin.trial,
                "value": done and done.get("value"),
            }
        )

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tune's last word on a trial; `result` is the last thing that `LeasedTrial.step` returned."""
        suggestion = self.running.pop(trial_id, None)
        if suggestion is None:
            return
        ended = _ended(result, error)
        if error:
            self.on_lost(suggestion.trial)
        if ended["status"] == "interrupted":  # it stays RUNNING in the study
            self._queue, self._left = collections.deque(), collections.deque()
            return
        if result and result.get("over"):
            self._queue = collections.deque()
        self.finished.append((suggestion, ended))
        if suggestion.asked is not None:
            for asked in (suggestion.asked, *suggestion.twins):
                self._tell(asked, ended)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Intermediate values are told at the end, with the state."""

    def _tell(self, asked: optuna.trial.Trial, ended: dict[str, Any]) -> None:
        """Tell the study how a trial ended; see the module's docstring."""
        state, value = TrialState.PRUNED, ended.get("value")
        if ended["status"] in ("failed", "diverged"):
            state = TrialState.FAIL
        elif ended["status"] != "stopped" and value is not None:
            state = TrialState.COMPLETE
        last = ended.get("last")
        if state is TrialState.PRUNED and last is not None and len(self.objective.directions) == 1:
            # Optuna ranks pruned trials by their last intermediate value in the study's own direction.
            flip = self.objective.directions[0] != ("minimize" if self.objective.mode == "min" else "maximize")
            asked.report(-last[1] if flip else last[1], step=int(last[0]))
        asked.set_user_attr("status", ended["status"])
        self.study.tell(asked, value if state is TrialState.COMPLETE else None, state=state)

    def __getstate__(self) -> dict[str, Any]:
        """Nothing for Tune's snapshot, which nobody restores: a fresh Tuner runs the remainder."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study is the state, and it is on disk."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a fresh Tuner runs the remainder."""

    def get_state(self) -> dict[str, Any]:
        """Nothing for Tune's snapshot."""
        return {}

    def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
        """Nothing for Tune's snapshot."""


def _id(number: int) -> str:
    return f"t{number:04d}"


def _ended(result: dict[str, Any] | None, error: bool) -> dict[str, Any]:
    """How a trial ended, from Tune's flattened last result."""
    result = result or {}
    last = (result["samples_seen"], result["metric"]) if result.get("metric") is not None else None
    if error:
        return {"status": "failed", "value": None, "last": last}
    if "status" not in result:  # stopped by the scheduler: the last result is an evaluation
        return {"status": "stopped", "value": None, "last": last}
    return {"status": result["status"], "value": result.get("value"), "last": last}

"""An optimizer in host memory: the same bits as one beside the model, also over stops and resumes between both."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from legs import KINDS, Restless, end_of, eventful, leg

from orchestrator.training.checkpoint import Checkpoints

NEVER_S = 1e9


def _leg(group: Any, *args: Any) -> dict[str, Any]:
    return leg(group, Restless(), *args)


@pytest.mark.parametrize("reducer", ["flat", "ddp"])
@KINDS
def test_legs_with_and_without_it_are_one_trial_to_the_bit(optimizer, precision, lr, reducer, two, tmp_path):
    trial = eventful(reducer, updates=20, lr=lr, optimizer=optimizer, precision=precision)
    plain, off = two.run(_leg, trial, None), two.run(_leg, replace(trial, offload_optimizer=True), None)
    for rank in (0, 1):
        assert off[rank]["told"] == plain[rank]["told"]
        assert end_of(off[rank]["outcome"]) == end_of(plain[rank]["outcome"])
    for first in (True, False):
        policy = Checkpoints(folder=str(tmp_path / f"{first}"), every_s=NEVER_S)
        stops = [(first, 7), (not first, 4), (first, None)]
        legs = [two.run(_leg, replace(trial, offload_optimizer=on), policy, stop) for on, stop in stops]
        assert [one[0]["outcome"].resumed_from for one in legs] == [None, 224, 352]
        assert list(itertools.chain(*(one[0]["told"] for one in legs))) == plain[0]["told"]
        assert end_of(legs[-1][0]["outcome"]) == end_of(plain[0]["outcome"])

"""Batches of any structure."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch

from orchestrator.training.batches import check_rows, mover

Pair = namedtuple("Pair", "x y")


def test_floats_become_double_and_the_structure_stays():
    batch = {"a": [torch.ones(2), "text"], "b": Pair(torch.ones(2).long(), (torch.ones(2).bool(), 3))}
    moved = mover(torch.device("cpu"), double=True)(batch)
    assert moved["a"][0].dtype == torch.float64
    assert moved["a"][1] == "text"
    assert isinstance(moved["b"], Pair)
    assert (moved["b"].x.dtype, moved["b"].y[0].dtype, moved["b"].y[1]) == (torch.int64, torch.bool, 3)


def test_nothing_to_do_is_the_same_object():
    batch = [torch.ones(1)]
    assert mover(torch.device("cpu"), double=False)(batch) is batch


def test_rows():
    check_rows((torch.ones(4, 3), torch.ones(4)), 4)
    check_rows({"tokens": torch.ones(9), "lengths": torch.ones(4)}, 4)
    check_rows("no tensors", 4)
    check_rows(torch.tensor(1.0), 4)
    with pytest.raises(ValueError, match=r"batch of 4 samples .* \[3, 5\] rows"):
        check_rows((torch.ones(3), {"y": torch.ones(5)}), 4)

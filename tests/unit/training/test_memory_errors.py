"""Which errors mean that less work at once might fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from orchestrator.training.memory import is_out_of_memory


def _caught(act):
    with pytest.raises((RuntimeError, MemoryError, ValueError)) as caught:
        act()
    return caught.value


def test_what_torch_and_numpy_raise_when_there_is_no_more():
    assert is_out_of_memory(_caught(lambda: torch.zeros(2**52)))
    assert is_out_of_memory(_caught(lambda: np.zeros(2**52)))
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB"))


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"])
def test_what_a_gpu_says_beside_its_allocator(text):
    assert is_out_of_memory(RuntimeError(text))


def test_other_errors_are_others():
    assert not is_out_of_memory(_caught(lambda: torch.zeros(2) + torch.zeros(3)))
    assert not is_out_of_memory(ValueError("not enough memory, says a user's own check"))

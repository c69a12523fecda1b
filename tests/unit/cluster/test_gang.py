"""What is said of a gang that broke."""

from __future__ import annotations

from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from orchestrator.cluster.gang import _cause


def test_the_innermost_cause_is_told_in_one_line() -> None:
    outer = RuntimeError("the run failed")
    outer.__cause__ = ImportError("first line\nNo module named 'my_task'")
    assert _cause(outer) == "No module named 'my_task'"
    assert _cause(KeyError()) == "KeyError"


def test_every_rank_that_says_something_else_is_told() -> None:
    """One rank dies, the other only loses its connection: which of them is the cause, a reader sees at once."""
    error = WorkerGroupError("", {0: RuntimeError("Connection closed by peer"), 1: MemoryError("killed for memory")})
    assert _cause(error) == "rank 0: Connection closed by peer; rank 1: killed for memory"
    same = WorkerGroupError("", {rank: ImportError("No module named 'my_task'") for rank in range(8)})
    assert _cause(same) == "rank 0: No module named 'my_task'"


def test_a_controller_that_gave_up_tells_why() -> None:
    assert "no room" in _cause(ControllerError(RuntimeError("the group could not start: no room")))

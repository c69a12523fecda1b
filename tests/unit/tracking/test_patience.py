from __future__ import annotations

import pytest

from orchestrator.tracking.orders import Orders
from orchestrator.tracking.patience import REFUSALS, Abandoned, Patience


class Answer(Exception):
    def __init__(self, error_code: str) -> None:
        super().__init__(f"answered {error_code}")
        self.error_code = error_code


class Server:
    """Fails `failures` times with `error`, then works."""

    def __init__(self, error: Exception, failures: int) -> None:
        self.error, self.failures, self.calls = error, failures, 0
        self.alive = True
        self.orders = Orders()
        self.problems: list[str | None] = []
        self.refusals: list[str] = []

    def act(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "done"

    def persist(self, *, upload: bool = False) -> str | None:
        patience = Patience(
            alive=lambda: self.alive,
            orders=self.orders,
            on_problem=self.problems.append,
            on_refused=self.refusals.append,
        )
        return patience("run 't0001'", self.act, upload=upload)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.tracking.patience.FIRST_PAUSE_S", 0.001)


@pytest.mark.parametrize("error", [ConnectionError("reset"), Answer("TEMPORARILY_UNAVAILABLE"), OSError("locked")])
def test_what_may_pass_is_waited_for(error: Exception) -> None:
    server = Server(error, failures=2 * REFUSALS)
    assert server.persist() == "done"
    assert server.problems[-1] is None
    assert "run 't0001'" in str(server.problems[0])
    assert not server.refusals


def test_what_the_server_will_never_take_is_given_up_and_told() -> None:
    server = Server(Answer("INVALID_PARAMETER_VALUE"), failures=100)
    assert server.persist() is None
    assert server.calls == REFUSALS
    assert server.refusals == ["run 't0001': Answer: answered INVALID_PARAMETER_VALUE"]


def test_a_broken_artifact_store_does_not_hold_up_the_rest() -> None:
    assert Server(PermissionError("denied"), failures=100).persist(upload=True) is None


def test_an_upload_is_not_given_up_while_the_server_is_away() -> None:
    server = Server(ConnectionError("refused"), failures=3 * REFUSALS)
    server.alive = False
    assert server.persist(upload=True) == "done"
    assert not server.refusals


def test_waiting_ends_when_the_writer_must_stop() -> None:
    server = Server(ConnectionError("refused"), failures=100)
    server.orders.stop_within(0.0)
    with pytest.raises(Abandoned, match="refused"):
        server.persist()
    assert server.calls == 1

from __future__ import annotations

import http.server
import shutil
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from orchestrator.errors import TrackingError
from orchestrator.tracking.uri import check_uri, mask, scrub, sqlite_path


@pytest.fixture(autouse=True)
def _no_uri_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_the_default_is_one_absolute_database_in_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert check_uri(None, tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    assert check_uri("sqlite:///sub/../my.db?timeout=3", tmp_path) == f"sqlite:///{tmp_path}/my.db?timeout=3"
    assert check_uri(f"sqlite+pysqlite:///{tmp_path}/a.db", "/") == f"sqlite+pysqlite:///{tmp_path}/a.db"
    assert sqlite_path(f"sqlite:///{tmp_path}/a.db?x=1") == tmp_path / "a.db"
    assert sqlite_path("http://host") is None


def test_the_environment_is_honoured_unless_the_spec_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://db/mlflow")
    assert check_uri(None, tmp_path) == "postgresql://db/mlflow"
    assert check_uri("sqlite:///a.db", tmp_path) == f"sqlite:///{tmp_path}/a.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    with pytest.raises(TrackingError, match="MLFLOW_TRACKING_URI"):
        check_uri(None, tmp_path)


@pytest.mark.parametrize("uri", ["./mlruns", "/data/mlruns", "file:///data/mlruns", "file:mlruns", "mlruns"])
def test_a_folder_store_is_refused_with_the_way_to_migrate_it(tmp_path: Path, uri: str) -> None:
    with pytest.raises(TrackingError) as refused:
        check_uri(uri, tmp_path)
    message = str(refused.value)
    assert "tracking.uri" in message
    assert "no longer serves plain folders" in message
    assert "mlflow migrate-filestore --source" in message
    assert list(tmp_path.iterdir()) == []


def test_the_command_that_the_refusal_names_exists() -> None:
    from mlflow.store.fs2db.cli import migrate_filestore

    assert migrate_filestore.name == "migrate-filestore"
    assert {"source", "target"} <= {option.name for option in migrate_filestore.params}


@pytest.mark.parametrize(
    "uri", ["postgresql+psycopg2://u:p@db/m", "mysql://db/m", "databricks", "databricks://profile"]
)
def test_other_stores_pass(tmp_path: Path, uri: str) -> None:
    assert check_uri(uri, tmp_path) == uri


@pytest.mark.parametrize("uri", ["s3://bucket/runs", "htp://host:5000", "sqlite://", "sqlite:///:memory:"])
def test_what_is_no_store_is_refused(tmp_path: Path, uri: str) -> None:
    with pytest.raises(TrackingError, match=r"sqlite:///mlflow\.db"):
        check_uri(uri, tmp_path)


def test_a_database_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(TrackingError, match="must be writable"):
        check_uri("sqlite:///file/mlflow.db", tmp_path)
    with pytest.raises(TrackingError, match="must be writable"):
        check_uri("sqlite:////proc/mlflow.db", tmp_path)
    with pytest.raises(TrackingError, match="must be an SQLite database"):
        check_uri("sqlite:///file", tmp_path)


def test_a_database_of_another_mlflow_is_refused_with_the_upgrade_command(tmp_path: Path, fresh_database: Path) -> None:
    path = tmp_path / "mlflow.db"
    shutil.copy(fresh_database, path)
    assert check_uri(None, tmp_path) == f"sqlite:///{path}"
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    connection.commit()
    connection.close()
    with pytest.raises(TrackingError, match=r"found 451aebb31d03.*mlflow db upgrade sqlite:///mlflow.db") as refused:
        check_uri("sqlite:///mlflow.db", tmp_path)
    assert str(path) in str(refused.value)


class _Handler(http.server.BaseHTTPRequestHandler):
    code = 200
    seen: ClassVar[dict[str, str | None]]

    def do_GET(self) -> None:
        type(self).seen[self.path] = self.headers.get("Authorization")
        self.send_response(self.code)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Handler]]]:
    class Handler(_Handler):
        seen: ClassVar[dict[str, str | None]] = {}

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{running.server_port}", Handler
        running.shutdown()


def test_a_server_that_answers_passes_and_gets_the_credentials(
    tmp_path: Path, server: tuple[str, type[_Handler]]
) -> None:
    address, handler = server
    uri = f"http://me:s%40crit@{address}/prefix/"
    assert check_uri(uri, tmp_path) == uri
    assert handler.seen == {"/prefix/health": "Basic bWU6c0Bjcml0"}


@pytest.mark.parametrize(("code", "passes"), [(401, True), (403, True), (404, False), (500, False), (502, False)])
def test_a_server_is_judged_by_its_answer(
    tmp_path: Path, server: tuple[str, type[_Handler]], code: int, passes: bool
) -> None:
    address, handler = server
    handler.code = code
    if passes:
        assert check_uri(f"http://{address}", tmp_path) == f"http://{address}"
    else:
        with pytest.raises(TrackingError, match=f"must be an MLflow server, and answers {code}"):
            check_uri(f"http://{address}", tmp_path)


def test_a_server_that_is_not_there_is_refused_without_showing_credentials(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        uri = f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TrackingError, match="must answer") as refused:
            check_uri(uri, tmp_path)
    assert "secret" not in str(refused.value)
    assert "http://***@127.0.0.1" in str(refused.value)


def test_a_server_that_is_silent_is_refused(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(TrackingError, match=r"must answer within 0.3 s"):
            check_uri(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path, timeout_s=0.3)


def test_credentials_are_masked_everywhere() -> None:
    uri = "postgresql://me:p%40ss@db:5432/mlflow?password=hush&sslmode=require"
    assert mask(uri) == "postgresql://***@db:5432/mlflow?password=***&sslmode=require"
    told = scrub(f"no route to {uri}, user me:p@ss, password p%40ss, password=hush", uri)
    for secret in ("p@ss", "p%40ss", "hush"):
        assert secret not in told
    assert mask("http://host:5000") == "http://host:5000"


MASKED = "http://***@127.0.0.1:{port}/prefix"


@pytest.mark.parametrize("given", [None, "http://me:s%40crit@elsewhere:5000"])
def test_a_masked_address_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    if given:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    else:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(TrackingError, match=r"MLFLOW_TRACKING_URI or --set tracking.uri=") as refused:
        check_uri(MASKED.format(port=5000), tmp_path)
    assert refused.value.key == "tracking.uri"


@pytest.mark.parametrize("user", ["me:s%40crit@", ""])
def test_a_masked_address_takes_the_environment_s_if_it_names_the_same_place(
    tmp_path: Path, server: tuple[str, type[_Handler]], monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    uri = f"http://{user}{server[0]}/prefix/"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert check_uri(MASKED.format(port=server[0].rpartition(":")[2]), tmp_path) == uri

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import submit
from orchestrator.config.load import load_spec, masked_keys
from orchestrator.config.yaml_form import dump
from orchestrator.credentials import hide, is_masked, mask, secrets_of
from orchestrator.errors import ConfigError, RefusedError, StorageError
from orchestrator.search.space import decode, to_distribution
from orchestrator.tracking.events import EventLog, read_events
from orchestrator.tracking.run_dir import RunDir

SECRET = "wJalrXUtnFEMI+K7MDENG"
ADDRESS = f"s3://AKIAIOSFODNN7:{SECRET}@bucket/table.parquet"
# What a URI may hold in its user part without an escape, and what people type nevertheless.
passwords = st.text("abcXYZ019-._~!$&'()*+,;=:@%#|", min_size=1, max_size=30)
hosts = st.sampled_from(["host", "host:5000", "10.0.0.1:80", "bucket", "[::1]:5000"])
schemes = st.sampled_from(["http", "https", "s3", "gs", "abfs", "hdfs", "postgresql", "mysql+pymysql"])
paths = st.sampled_from(["", "/", "/a/b.parquet", "/a@b/c", "?region=eu&x=1"])


@given(schemes, passwords, hosts, paths)
def test_no_password_survives_in_an_address(scheme: str, password: str, host: str, path: str) -> None:
    secret = f"Q{password}Q"
    masked = mask(f"open {scheme}://me:{secret}@{host}{path} failed")
    assert secret not in masked
    assert masked == f"open {scheme}://***@{host}{path} failed"
    assert is_masked(masked)
    assert mask(masked) == masked


@given(schemes, hosts, paths)
def test_an_address_without_credentials_is_left_alone(scheme: str, host: str, path: str) -> None:
    address = f"{scheme}://{host}{path}"
    assert mask(address) == address
    assert not is_masked(address)


@pytest.mark.parametrize(
    "address",
    [
        "gs://anonymous@bucket/folder",  # Arrow's word for "without credentials"
        "abfs://container@account.dfs.core.windows.net/folder",
        "hdfs://user@namenode:8020/data",
        "s3://bucket/user@2024/x.parquet",
        "http://host:5000/path/me@example.org",
        "sqlite:////home/me/mlflow.db",
    ],
)
def test_an_at_sign_alone_is_no_credential(address: str) -> None:
    assert mask(address) == address


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("http://ghp_abc@host/x", "http://***@host/x"),
        ("abfs://account:key@container/x", "abfs://***@container/x"),
        ("s3://AKIA:ab/cd+ef@bucket/x", "s3://***@bucket/x"),
        ("https://a.blob/x?sv=2024&sig=abc%3D&se=1", "https://a.blob/x?sv=2024&sig=***&se=1"),
        ("https://b/x?X-Amz-Credential=A&X-Amz-Signature=B", "https://b/x?X-Amz-Credential=***&X-Amz-Signature=***"),
        ("s3://b/x?secret_key=abc&region=eu", "s3://b/x?secret_key=***&region=eu"),
    ],
)
def test_what_else_is_a_credential(address: str, masked: str) -> None:
    assert mask(address) == masked


def test_the_environment_tells_what_to_hide() -> None:
    environment = {
        "MLFLOW_TRACKING_PASSWORD": "first secret",
        "AWS_SECRET_ACCESS_KEY": "second/secret",
        "RAY_AUTH_TOKEN": "third-secret",
        "HTTPS_PROXY": "http://me:fourth%20secret@proxy:3128",
        "SHORT_TOKEN": "abc",
        "PWD": "/home/somebody",
        "TOKENIZER": "bert-base-uncased",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
    }
    innocent = "abc, /home/somebody, bert-base-uncased"
    text = f"first secret, second/secret, second%2Fsecret, third-secret, fourth secret, {innocent}"
    told = hide({"a": [text], "b": (1, None)}, secrets_of(environment))
    assert told == {"a": [f"***, ***, ***, ***, ***, {innocent}"], "b": [1, None]}


def test_no_error_shows_a_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    error = StorageError(f"cannot be opened ({SECRET})", key="--out", value=ADDRESS, remedy=f"mend {ADDRESS}")
    assert SECRET not in str(error)
    assert SECRET not in str(RefusedError(ADDRESS))
    assert SECRET not in str(error.args)


def test_what_is_written_down_holds_no_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "token-of-the-cluster")
    said = {"path": ADDRESS, "nested": [{"why": f"no {ADDRESS}: token-of-the-cluster"}], "number": 3}
    run = RunDir(str(tmp_path / "run"))
    with EventLog(run.events) as log:
        log.append("anything", **said)
    run.write_json("summary.json", said)
    run.write("spec.yaml", dump(said))
    (event,) = read_events(run.events)
    for file in run.local.iterdir():
        assert SECRET not in file.read_text()
        assert "token-of-the-cluster" not in file.read_text()
    masked = {"path": "s3://***@bucket/table.parquet", "number": 3}
    masked["nested"] = [{"why": "no s3://***@bucket/table.parquet: ***"}]
    assert json.loads((run.local / "summary.json").read_text()) == masked
    assert {name: event[name] for name in said} == masked


SPEC = f"""
task: {{name: table, path: "{ADDRESS}"}}
tracking: {{uri: "http://me:{SECRET}@host:5000"}}
space:
  task.hidden: [8, 16]
"""


def test_a_written_spec_asks_for_the_credential_again(tmp_path: Path) -> None:
    (tmp_path / "given.yaml").write_text(SPEC)
    given_spec = load_spec(tmp_path / "given.yaml").spec
    written = tmp_path / "spec.yaml"
    written.write_text(given_spec.to_yaml())
    assert SECRET not in written.read_text()
    assert masked_keys(written) == ("task.path", "tracking.uri")
    assert masked_keys(tmp_path / "given.yaml") == ()
    with pytest.raises(ConfigError, match=r"task.path: lost its credential .* --set task.path=") as refused:
        load_spec(written)
    assert refused.value.file == str(written)
    again = load_spec(written, [f"task.path={ADDRESS}", f"tracking.uri=http://me:{SECRET}@host:5000"])
    assert again.spec == given_spec


def test_a_search_over_addresses_keeps_them_out_of_the_study(tmp_path: Path) -> None:
    other = ADDRESS.replace("table", "other")
    (tmp_path / "space.yaml").write_text(f"task: {{name: table}}\nspace:\n  task.path: ['{ADDRESS}', '{other}']\n")
    space = load_spec(tmp_path / "space.yaml").spec.space
    distribution = to_distribution(space["task.path"])
    assert SECRET not in str(distribution)
    for choice, address in zip(distribution.choices, (ADDRESS, other), strict=True):
        assert decode(space, {"task.path": choice}) == {"task.path": address}


def test_a_trial_is_the_same_when_its_key_was_renewed() -> None:
    import dataclasses

    from tracking_samples import trial_spec

    trial = trial_spec(path=ADDRESS)
    renewed = trial_spec(path=ADDRESS.replace(SECRET, "another"))
    assert trial.key == renewed.key
    assert trial.key != dataclasses.replace(trial, seed=1).key


def test_a_dry_run_of_a_submission_shows_no_credential(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["python", "-m", "orchestrator.sweep", "--set", f"tracking.uri=http://me:{SECRET}@host"]
    assert submit.main(["--working-dir", str(tmp_path), "--dry-run", "--", *command]) == 0
    said = capsys.readouterr().out
    assert SECRET not in said
    assert urllib.parse.unquote("tracking.uri=http://***@host") in said

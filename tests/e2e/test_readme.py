"""The README is true: every command in it runs, its code is the code that tests run, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from orchestrator import replay, submit, sweep, sync
from orchestrator.config.load import spec_from_dict
from orchestrator.probe import __main__ as probe
from orchestrator.study import __main__ as study

PROJECT = Path(__file__).resolve().parents[2]
README = (PROJECT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


COMMANDS = [line.strip() for block in blocks("bash") for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(
    command: str,
    tmp_path: Path,
    tracking_uri: str,
    digits: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sweeps and submissions run as far as ``--dry-run`` goes; other tests run them to their end."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    monkeypatch.chdir(PROJECT)
    match shlex.split(command):
        case ["make", target]:
            planned = subprocess.run(["make", "--dry-run", target], capture_output=True, text=True, check=True).stdout
            assert {"sweep": "-m orchestrator.sweep", "test": "-m pytest"}[target] in planned
        case ["python", "-m", "orchestrator.sweep", "--resume", _]:
            assert sweep.main(["--resume", str(digits)]) == 0
            assert capsys.readouterr().out.splitlines()[-1] == str(digits)
        case ["python", "-m", "orchestrator.sync", _]:
            monkeypatch.delenv("MLFLOW_TRACKING_URI")
            assert sync.main([str(digits)]) == 0
        case ["python", "-m", "orchestrator.replay", "RUN_ID", *options]:
            with pytest.raises(SystemExit) as help_:
                replay.main(["--help"])
            assert help_.value.code == 0
            assert options[0] in capsys.readouterr().out
        case ["python", "-m", "orchestrator.study", *argv]:
            assert study.main([*argv, "--dry-run", "--out", str(tmp_path / "run")]) == 0
            assert "nothing was started" in capsys.readouterr().out
            assert not (tmp_path / "run").exists()
        case ["python", "-m", "orchestrator.probe", "--study", _]:  # a study's own test gives one to the probe
            assert probe.main(["--study", str(digits)]) == 2
            assert "holds a run that is no study" in capsys.readouterr().err
        case ["python", "-m", "orchestrator.probe", *argv]:
            assert probe.main([*argv, "--dry-run", "--out", str(tmp_path / "run")]) == 0
            assert "nothing was started" in capsys.readouterr().out
        case ["python", "-m", "orchestrator.sweep", *argv]:
            argv += [word for word in ("--dry-run",) if word not in argv]
            assert sweep.main(argv if "--out" in argv else [*argv, "--out", str(tmp_path / "run")]) == 0
            assert "nothing was started" in capsys.readouterr().out
        case ["python", "-m", "orchestrator.submit", *argv]:
            assert submit.main(["--dry-run", *argv]) == 0
            assert "nothing is sent" in capsys.readouterr().out
        case ["ray", "job", "submit", *_]:
            sent = submit.submit_command(["python", "-m", "orchestrator.sweep"], working_dir=Path("."), address=None)
            assert [word for word in shlex.split(command)[1:] if word != "."] == [
                word for word in sent[3:] if word != str(PROJECT)
            ]
        case _:
            pytest.fail(f"no test runs {command!r}")


def test_the_task_is_the_one_that_tests_train() -> None:
    (code,) = blocks("python")
    assert code.strip() in (PROJECT / "tests/unit/tasks/my_task.py").read_text()
    assert len([line for line in code.splitlines() if line.strip()]) < 20


def test_the_space_is_one_that_a_sweep_takes() -> None:
    (text,) = blocks("yaml")
    shown = spec_from_dict(yaml.safe_load(text))
    assert shown.space


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (PROJECT / target).exists(), target

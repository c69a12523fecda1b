"""What cannot work is refused in one line, with exit code 2, before anything is started or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import sweep

SPACE = """\
task: {name: digits, hidden: 8}
batch: {reference: 64}
cluster: {workers: 1}
space:
  batch.global: [16, 32]
  lr.base: {low: 0.01, high: 0.5, log: true}
"""
OWN = """\
import sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from orchestrator.training.task import Task

class Good(Task):
    def model(self):
        return nn.Linear(2, 2)
    def train_data(self):
        return TensorDataset(torch.ones(200, 2), torch.zeros(200, dtype=torch.int64))
    val_data = train_data
    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1])

class Mine(Good):
"""
SUM = 'F.cross_entropy(model(batch[0]), batch[1], reduction="sum")'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder of its own, with a space, a run, and a plain file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "file").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text("{}")
    return tmp_path


def refusal(project: Path, capsys: pytest.CaptureFixture[str], argv: list[str]) -> str:
    """The one line that a dry run of `argv` ends with."""
    before = sorted(project.rglob("*"))
    assert sweep.main([*argv, "--dry-run"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert sorted(project.rglob("*")) == before
    return line


SETTINGS = [
    (["task.hidden=0"], ["--set: task.hidden = 0: must be at least 1", "Write 1 or more"]),
    (['task.hidden="64"'], ["--set: task.hidden = '64': must be a whole number"]),
    (["task.hiden=1"], ["--set: task.hiden = 1", "The nearest valid option is hidden"]),
    (["task.hidden=9223372036854775807"], ["task.model", "larger than any memory"]),
    (
        ["task.depth=3", "space.task.hidden=[8, 10000000]"],
        ["task.name", "holds the whole model", "use a smaller model"],
    ),
    (["space.task.dropout=[0.0, 1.0]"], ["--set: space.task.dropout = 1.0: must be below 1"]),
    (["search.reduction=0"], ["search.reduction = 0: must be at least 2"]),
    (["cluster.workers=1000", "batch.global=1000", "space={}"], ["--set: cluster.workers = 1000", "need 1000 CPU"]),
    (
        ["training.checkpoint_activations=Lineer"],
        ["--set: training.checkpoint_activations = 'Lineer': the model has no module of class Lineer", "mean Linear?"],
    ),
    (["space.training.checkpoint_activations=[null, Block]"], ["checkpoint_activations = 'Block'", "Linear, ReLU"]),
    (["optimizer.momentum=a"], ["--set: optimizer.momentum = 'a': must be a number"]),
    (["optimizer={name: Adam, amsgrad: 'no'}"], ["optimizer.amsgrad = 'no': must be true or false"]),
    (["optimizer={name: Adam, betas: [0.9]}"], ["optimizer.betas = [0.9]: must be a list of 2 numbers"]),
    (["space.optimizer.momentum=[a]"], ["--set: space.optimizer.momentum = 'a'"]),
    (["space.optimizer.name=[SDG]"], ["--set: space.optimizer.name = 'SDG'", "SGD"]),
    (["space.optimizer.nesterov=[true]", "space.optimizer.momentum=[0.9, 0.0]"], ["optimizer", "requires a momentum"]),
    (["lr.rule=linear", "space={lr.base: [1.0e+308], batch.global: [256]}"], ["space.lr.base = 1e+308", "inf"]),
    (["seed=!!bool maybe"], ["--set: seed", "'maybe' is no bool"]),
    (['tracking.uri=""'], ["--set: tracking.uri = ''", "null for the default"]),
    (["tracking.uri=./mlruns"], ["--set: tracking.uri = './mlruns'", "sqlite:///mlflow.db"]),
    (["tracking.uri=sqlite:///file/deep/m.db"], ["--set: tracking.uri", "must be writable"]),
    (["tracking.uri='http://me:secret@[::1'"], ["--set: tracking.uri = 'http://***@[::1'"]),
    (["tracking.uri='http://me:secret@127.0.0.1:9'"], ["http://***@127.0.0.1:9", "the server must answer"]),
]


@pytest.mark.parametrize(("settings", "parts"), SETTINGS, ids=[", ".join(row[0]) for row in SETTINGS])
def test_settings(project: Path, capsys: pytest.CaptureFixture[str], settings: list[str], parts: list[str]) -> None:
    line = refusal(project, capsys, ["space.yaml", *(word for one in settings for word in ("--set", one))])
    for part in parts:
        assert part.lower() in line.lower()
    assert "secret" not in line


ARGUMENTS = [
    (["--seeds", "x"], "invalid int value: 'x'"),
    (["--nope"], "unrecognized arguments: --nope"),
    (["--seeds", "0"], "search.seeds = 0"),
    (["--out", "run"], "--out = 'run': the run directory must be new"),
    (["--out", "file"], "--out = 'file': the output must be writable"),
    (["--out", "file/run"], "--out = 'file/run': the output must be writable"),
    (["--out", "/proc/run"], "the output must be writable"),
    (["--out", ""], "--out = ''"),
    (["--out", "s3://"], "--out = 's3://'"),
]


@pytest.mark.parametrize(("words", "part"), ARGUMENTS, ids=[" ".join(row[0]) for row in ARGUMENTS])
def test_arguments(project: Path, capsys: pytest.CaptureFixture[str], words: list[str], part: str) -> None:
    assert part in refusal(project, capsys, ["space.yaml", *words])


TASKS = [
    ("def __init__(self, config): raise ValueError('no\\nway')", "its constructor raised ValueError: no way"),
    ("def __init__(self, config): sys.exit(0)", "its constructor raised SystemExit"),
    (f"def loss(self, model, batch): return {SUM}", "must return a sum and a weight, not Tensor"),
    (f"def loss(self, model, batch): return {SUM}, -1", "finite weight of at least 0, not -1"),
    (f"def loss(self, model, batch): return {SUM}.item(), len(batch[1])", "a loss with gradient"),
    ("def model(self): return None", "must be a torch.nn.Module"),
    ("def model(self): return nn.Identity()", "no parameter that can be trained"),
    ("def model(self): return nn.LazyLinear(2)", "lazy layers"),
    ("metric_modes = None", "must be a mapping that names loss"),
    ("metric_modes = {'accuracy': 'max'}", "must be a mapping that names loss"),
    ("metric_modes = {'loss': 'down'}", "must say min or max of loss"),
    ("metric_modes = {'loss': 'min', 'accuracy': 'max'}", "lacks accuracy"),
    ("def evaluate(self, model, batch): return {'loss': 3}", "must return a sum and a weight, not int"),
    ("def val_data(self): return []", "must hold at least one sample"),
    ("Config = dict", "Config must be a pydantic model"),
    ("path_options = 5", "path_options must be a tuple"),
]


@pytest.mark.parametrize(("member", "part"), TASKS, ids=[row[1] for row in TASKS])
def test_tasks(
    project: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest, member: str, part: str
) -> None:
    module = f"own_task_{abs(hash(request.node.name))}"
    (project / f"{module}.py").write_text(f"{OWN}    {member}\n")
    (project / "own.yaml").write_text(
        f"task: {{name: '{module}:Mine'}}\nbatch: {{global: 16}}\ncluster: {{workers: 1}}\n"
    )
    line = refusal(project, capsys, ["own.yaml"])
    assert line.startswith("error: own.yaml: task.")
    assert part in line


VALID = [
    ["optimizer.name=AdamW"],
    ["tracking.uri=sqlite:///new/folder/m.db"],
    ["budget.samples=1000000000000", "budget.eval_every=1"],
]


@pytest.mark.parametrize("settings", VALID, ids=[", ".join(row) for row in VALID])
def test_what_can_work_passes_and_a_dry_run_writes_nothing(
    project: Path, capsys: pytest.CaptureFixture[str], settings: list[str]
) -> None:
    before = sorted(project.rglob("*"))
    argv = ["space.yaml", "--out", "new/run", *(word for one in settings for word in ("--set", one))]
    assert sweep.main([*argv, "--dry-run"]) == 0, capsys.readouterr().err
    assert sorted(project.rglob("*")) == before

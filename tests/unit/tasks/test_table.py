"""Parquet tables: what is refused and how, what is read and how it is prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from orchestrator.errors import TaskError
from orchestrator.tasks.table import Table, TableConfig
from orchestrator.tasks.table_split import hash_share

Write = Callable[..., str]
ROWS = 60


def table(path: str, **options: Any) -> Table:
    return Table(TableConfig(path=path, **{"label": "y", **options}))


def columns(**more: Any) -> dict[str, Any]:
    return {"a": np.arange(ROWS) % 7 / 3, "y": np.arange(ROWS) % 2, **more}


def train(task: Table, updates: int, lr: float = 0.02) -> dict[str, float]:
    torch.manual_seed(0)
    model, data, order = task.model(), task.train_data(), np.random.default_rng(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(updates):
        total, weight = task.loss(model, data.fetch(order.integers(0, len(data), 32), None))
        optimizer.zero_grad()
        (total / weight).backward()
        optimizer.step()
    val = task.val_data()
    with torch.no_grad():
        sums = task.evaluate(model, val.fetch(np.arange(len(val)), None))
    return {name: float(total) / float(weight) for name, (total, weight) in sums.items()}


def test_wine_is_classified(wine_path: Path) -> None:
    task = table(str(wine_path), label="cultivar")
    assert dict(task.metric_modes) == {"loss": "min", "accuracy": "max"}
    assert task.data.classes == (0, 1, 2)
    assert (len(task.data.numbers), task.data.category_columns, task.data.categories) == (13, ("colour",), 3)
    assert train(task, 60)["accuracy"] > 0.9


def test_diabetes_is_regressed_in_the_labels_own_unit(diabetes_path: Path) -> None:
    task = table(str(diabetes_path), label="progression")
    assert dict(task.metric_modes) == {"loss": "min", "mse": "min", "mae": "min"}
    got = train(task, 60, lr=0.005)
    assert got["loss"] < 0.75
    assert got["mse"] == pytest.approx(got["loss"] * task.data.label_std**2, rel=1e-9)
    # The mean absolute error of predicting the mean is about 65 in this data set; the root bounds any mean error.
    assert 20 < got["mae"] < np.sqrt(got["mse"]) < 77


def test_missing_label_names_file_key_value_and_nearest(write: Write) -> None:
    path = write(**columns())
    with pytest.raises(TaskError) as caught:
        table(path, label="yy")
    message = str(caught.value)
    assert message.startswith("task.label = 'yy': ")
    assert path in message
    assert "nearest is 'y'" in message
    assert "a, y" in message


@pytest.mark.parametrize(
    ("options", "more", "match"),
    [
        ({"features": ["b"]}, {}, r"task\.features = 'b'.*has no such column"),
        ({"features": ["a", "y"]}, {}, r"task\.features = 'y'.*cannot be features"),
        ({"features": ["t"]}, {"t": [[1]] * ROWS}, r"task\.features = 't'.*holds list"),
        ({"features": []}, {}, r"task\.features.*at least one"),
        ({}, {"y": [1] * ROWS}, r"task\.label = 'y'.*only the value 1 there"),
        ({}, {"y": [None, *[1, 0] * (ROWS // 2 - 1), 1]}, r"task\.label = 'y'.*lacks the label in 1 of 60"),
        ({}, {"y": [[1]] * ROWS}, r"task\.label = 'y'.*holds list"),
        ({"problem": "regression"}, {"y": ["u", "v"] * (ROWS // 2)}, r"task\.problem.*needs a number"),
        ({}, {"a": [None, *range(ROWS - 1)]}, r"task\.nulls = 'refuse'.*lacks 'a' in 1 of 60.*mean"),
        ({}, {"a": [np.inf, *range(ROWS - 1)]}, r"task\.features = 'a'.*finite"),
        ({"nulls": "mean"}, {"a": pa.nulls(ROWS, pa.float64())}, r"task\.features = 'a'.*some of them in training"),
        ({"split_column": "s"}, {}, r"task\.split_column = 's'.*no such column"),
        ({"split_column": "s"}, {"s": ["dev"] * ROWS}, r"task\.split_column = 's'.*only train, val, test"),
        ({"split_column": "s"}, {"s": [1] * ROWS}, r"task\.split_column = 's'.*must hold strings"),
        ({"split_column": "s"}, {"s": ["train"] * ROWS}, r"task\.split_column = 's'.*60 training and 0 validation"),
        ({"val_fraction": 1e-9}, {}, r"task\.val_fraction = 1e-09.*60 training and 0 validation"),
    ],
)
def test_refusals_name_the_option_and_the_column(
    write: Write, options: dict[str, Any], more: dict[str, Any], match: str
) -> None:
    with pytest.raises(TaskError, match=match):
        table(write(**columns(**more)), **options)


def test_too_many_categories_are_refused(write: Write) -> None:
    n = 2000
    path = write(y=np.arange(n) % 2, name=[f"id{i}" for i in range(n)])
    with pytest.raises(TaskError, match=r"task\.features = 'name'.*more than 1000.*identifier"):
        table(path)


def test_missing_unreadable_and_empty_files(tmp_path: Path, write: Write) -> None:
    with pytest.raises(TaskError, match=r"task\.path = .*no such file or folder"):
        table(str(tmp_path / "absent.parquet"))
    (tmp_path / "text.parquet").write_text("not Parquet")
    with pytest.raises(TaskError, match=r"task\.path = .*readable as Parquet"):
        table(str(tmp_path / "text.parquet"))
    with pytest.raises(TaskError, match=r"task\.path = .*must have rows"):
        table(write(a=pa.array([], pa.float64()), y=pa.array([], pa.int64())))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(TaskError, match=r"task\.path = .*must have rows"):
        table(str(tmp_path / "nothing"))


def test_statistics_come_from_training_rows_alone(write: Write) -> None:
    split = ["train"] * 40 + ["val"] * 15 + ["test"] * 5
    a = [*range(40), *[1000] * 15, *[-1e9] * 5]
    task = table(write(**columns(a=a, s=split)), split_column="s")
    x, x_val = (data.tensors[0].double() for data in (task.train_data(), task.val_data()))
    assert task.data.numbers == ("a",)
    assert (len(x), len(x_val)) == (40, 15)
    assert float(x.mean()) == pytest.approx(0, abs=1e-6)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert x_val[0].item() == pytest.approx((1000 - 19.5) / np.std(np.arange(40)), rel=1e-6)


def test_nulls_and_nan_take_the_training_mean_when_asked(write: Write) -> None:
    a = [None, float("nan"), *range(ROWS - 2)]
    task = table(write(**columns(a=a)), nulls="mean", val_fraction=0.3)
    values = torch.cat([task.train_data().tensors[0], task.val_data().tensors[0]])
    assert int((values == 0).sum()) == 2
    assert float(task.train_data().tensors[0].double().mean()) == pytest.approx(0, abs=1e-6)


def test_a_large_offset_does_not_cost_precision(write: Write) -> None:
    """Times in seconds since 1970 differ by less than a float32 can hold: standardise first, round after."""
    a = 1.7e9 + np.arange(ROWS) * 1e-3
    task = table(write(**columns(a=a)))
    assert len(torch.unique(task.train_data().tensors[0])) == len(task.train_data())


def test_categories_unseen_in_training_share_the_code_of_null(write: Write) -> None:
    split = ["train"] * 40 + ["val"] * 20
    word = [*["red", "blue"] * 19, None, "red", *["green"] * 10, *["blue"] * 10]
    boolean = [True, False] * 30
    as_dictionary = pa.array(["x", "z"] * 30).dictionary_encode()
    path = write(**columns(word=word, flag=boolean, kind=as_dictionary, s=split))
    task = table(path, split_column="s")
    assert (task.data.numbers, task.data.category_columns, task.data.categories) == (("a", "flag"), ("word", "kind"), 6)
    codes, codes_val = task.train_data().tensors[1], task.val_data().tensors[1]
    assert codes[:2, 0].tolist() == [2, 1]
    assert codes[38, 0].item() == 0
    assert codes_val[:10, 0].tolist() == [0] * 10
    assert codes_val[10:, 0].tolist() == [1] * 10
    assert set(codes[:, 1].tolist()) == {4, 5}


def test_only_categories_or_only_numbers_make_a_model(write: Write) -> None:
    path = write(**columns(word=["p", "q"] * 30))
    for features in (("word",), ("a",), ("a", "word")):
        assert train(table(path, features=features), 3)["loss"] > 0
    assert train(table(path, features=("word",)), 60)["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (["u", "v"] * 30, "classification"),
        ([True, False] * 30, "classification"),
        (list(range(20)) * 3, "classification"),
        (list(range(30)) * 2, "regression"),
        ([0.0, 1.0] * 30, "regression"),
    ],
)
def test_auto_tells_classes_from_numbers(write: Write, values: list[Any], problem: str) -> None:
    assert table(write(**columns(y=values))).data.problem == problem


def test_a_folder_is_read_in_path_order(tmp_path: Path) -> None:
    for name, low in (("part-1", 30), ("part-0", 0), ("day=2/part", 60)):
        path = tmp_path / "folder" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        a = np.arange(low, low + 30)
        pq.write_table(pa.table({"a": a.astype(float), "y": a % 2}), path)
    task = table(str(tmp_path / "folder"), features=("a",))
    # "day=2/part" sorts before "part-0": row numbers follow the sorted paths.
    a = np.concatenate([np.arange(60, 90), np.arange(60)])
    in_val = hash_share(np.arange(90)) < 0.2
    standard = (a - a[~in_val].mean()) / a[~in_val].std()
    assert task.train_data().tensors[0][:, 0].numpy() == pytest.approx(standard[~in_val], rel=1e-5)
    assert task.val_data().tensors[0][:, 0].numpy() == pytest.approx(standard[in_val], rel=1e-5)


def test_the_hash_splits_evenly_and_without_pattern() -> None:
    share = hash_share(np.arange(100_000))
    assert share.min() >= 0
    assert share.max() < 1
    assert np.histogram(share, 10, (0, 1))[0] == pytest.approx([10_000] * 10, rel=0.05)
    assert abs(np.corrcoef(share[:-1], share[1:])[0, 1]) < 0.02
    # SplitMix64 seeded with 0 gives 0xE220A8397B1DCDAF first (Vigna's reference implementation).
    assert share[0] == (0xE220A8397B1DCDAF >> 11) * 2.0**-53


def test_trials_of_one_process_share_the_table(wine_path: Path) -> None:
    a, b = (table(str(wine_path), label="cultivar", hidden=hidden) for hidden in (8, 16))
    assert a.train_data() is b.train_data()


def test_the_path_option_is_declared() -> None:
    assert Table.path_options == ("path",)

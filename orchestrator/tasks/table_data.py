"""From Parquet columns to training and validation rows: split, standardised features, category codes, targets.

Everything is held in memory: 4 bytes a row and feature, and while loading one column in full beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from orchestrator.errors import TaskError
from orchestrator.tasks.arrays import TensorRows
from orchestrator.tasks.parquet_columns import (
    ParquetColumns,
    codes,
    is_category,
    is_number,
    to_float64,
    vocabulary,
)
from orchestrator.tasks.table_split import SplitRows, split_rows

Array = np.ndarray[Any, Any]
Problem = Literal["classification", "regression"]
MAX_CATEGORIES = 1000
MAX_AUTO_CLASSES = 20


@dataclass(frozen=True, kw_only=True)
class TableData:
    """A table ready to train on; a batch is ``(numbers float32 [n, d], codes int32 [n, c], target [n])``.

    Args:
        categories: how many codes there are over all c columns; each column has its own range.
        classes: the label's values by class index; empty for regression.
        label_std: of a regression's training labels, in their own unit; the targets have mean 0 and deviation 1.
    """

    train: TensorRows
    val: TensorRows
    problem: Problem
    numbers: tuple[str, ...]
    category_columns: tuple[str, ...]
    categories: int
    classes: tuple[Any, ...]
    label_std: float


def load_table(
    path: str,
    label: str,
    features: tuple[str, ...] | None,
    problem: Literal["auto", "classification", "regression"],
    split_column: str | None,
    val_fraction: float,
    nulls: Literal["refuse", "mean"],
) -> TableData:
    """Read, check and prepare a table; the arguments are the options of `table.TableConfig`.

    Raises:
        TaskError: naming the option, the file and the column that cannot be used.
    """
    columns = ParquetColumns(path)
    columns.require(label, "task.label")
    names = _feature_names(columns, label, features, split_column)
    rows = split_rows(columns, split_column, val_fraction)
    target, chosen, classes, label_std = _target(columns, label, problem, rows)
    numbers = [name for name in names if is_number(columns.schema.field(name).type)]
    categorical = [name for name in names if name not in numbers]
    x = np.empty((columns.rows, len(numbers)), dtype=np.float32)
    for i, name in enumerate(numbers):
        x[:, i] = _standardised(columns, name, rows, nulls)
    c = np.empty((columns.rows, len(categorical)), dtype=np.int32)
    offset = 0
    for i, name in enumerate(categorical):
        column_codes, count = _category_codes(columns, name, rows)
        c[:, i] = column_codes + offset
        offset += count
    tensors = [torch.from_numpy(array) for array in (x, c, target)]
    parts = [TensorRows(*(t[torch.from_numpy(ids)] for t in tensors)) for ids in (rows.train, rows.val)]
    return TableData(
        train=parts[0],
        val=parts[1],
        problem=chosen,
        numbers=tuple(numbers),
        category_columns=tuple(categorical),
        categories=offset,
        classes=classes,
        label_std=label_std,
    )


def _feature_names(
    columns: ParquetColumns, label: str, features: tuple[str, ...] | None, split_column: str | None
) -> list[str]:
    usable = [field.name for field in columns.schema if is_number(field.type) or is_category(field.type)]
    if features is None:
        names = [name for name in usable if name not in (label, split_column)]
    else:
        names = list(dict.fromkeys(features))
        for name in names:
            columns.require(name, "task.features")
            if name in (label, split_column):
                raise TaskError("the label and the split column cannot be features", key="task.features", value=name)
            if name not in usable:
                kind = columns.schema.field(name).type
                rule = (
                    f"{columns.path} holds {kind} there, and a feature must be a number, boolean, string or dictionary"
                )
                raise TaskError(rule, key="task.features", value=name)
    if not names:
        raise TaskError(f"{columns.path} must give at least one usable column", key="task.features", value=features)
    return names


def _target(
    columns: ParquetColumns, label: str, problem: str, rows: SplitRows
) -> tuple[Array, Problem, tuple[Any, ...], float]:
    column = columns.read(label)
    if not (is_number(column.type) or is_category(column.type)):
        rule = f"{columns.path} holds {column.type} there, and a label must be a number, boolean, string or dictionary"
        raise TaskError(rule, key="task.label", value=label)
    if column.null_count:
        rule = f"{columns.path} lacks the label in {column.null_count} of {columns.rows} rows"
        raise TaskError(rule, key="task.label", value=label, remedy="leave those rows out of the file")
    distinct = pc.count_distinct(column).as_py()
    if distinct < 2:
        rule = f"{columns.path} holds only the value {column[0].as_py()!r} there, so there is nothing to learn"
        raise TaskError(rule, key="task.label", value=label)
    if problem == "auto":
        problem = "classification" if _looks_like_classes(column, distinct) else "regression"
    if problem == "classification":
        values = vocabulary(column)
        return codes(column, values), "classification", tuple(values), 1.0
    if not is_number(column.type):
        rule = f"regression needs a number, and {columns.path} holds {column.type} in {label!r}"
        raise TaskError(rule, key="task.problem", value=problem, remedy="write classification")
    y = to_float64(column)
    mean, std = y[rows.train].mean(), y[rows.train].std()
    if not np.isfinite(std) or std == 0.0:
        rule = f"{columns.path} must hold finite labels that vary over the training rows"
        raise TaskError(rule, key="task.label", value=label)
    return ((y - mean) / std).astype(np.float32), "regression", (), float(std)


def _looks_like_classes(column: pa.ChunkedArray, distinct: int) -> bool:
    if pa.types.is_integer(column.type):
        return distinct <= MAX_AUTO_CLASSES
    return is_category(column.type) or pa.types.is_boolean(column.type)


def _standardised(columns: ParquetColumns, name: str, rows: SplitRows, nulls: str) -> Array:
    """float32 ``[rows]`` with mean 0 and deviation 1 over the training rows; a constant column becomes 0."""
    values = to_float64(columns.read(name))
    missing = np.isnan(values)
    if missing.any() and nulls == "refuse":
        rule = f"{columns.path} lacks {name!r} in {missing.sum()} of {columns.rows} rows"
        remedy = "write task.nulls: mean to fill in the training mean, or leave the column out of task.features"
        raise TaskError(rule, key="task.nulls", value=nulls, remedy=remedy)
    known = values[rows.train][~missing[rows.train]]
    if not len(known) or np.isinf(values).any():
        rule = f"{columns.path} must hold finite values there, some of them in training rows"
        raise TaskError(rule, key="task.features", value=name, remedy="mend the column, or leave it out")
    scaled = (values - known.mean()) / (known.std() or 1.0)
    return np.where(missing, 0.0, scaled).astype(np.float32)


def _category_codes(columns: ParquetColumns, name: str, rows: SplitRows) -> tuple[Array, int]:
    """Codes 1.. of the training rows' values, and 0 for null and for what only validation rows hold; how many."""
    column = columns.read(name)
    values = vocabulary(column.take(pa.array(rows.train)))
    if len(values) > MAX_CATEGORIES:
        rule = f"{columns.path} holds {len(values)} categories there, more than {MAX_CATEGORIES}"
        remedy = "list task.features without it if it is an identifier or free text"
        raise TaskError(rule, key="task.features", value=name, remedy=remedy)
    return codes(column, values) + 1, len(values) + 1

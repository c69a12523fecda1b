"""Which rows of a table train and which evaluate: a function of the row's number or of a column, never of the trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from orchestrator.errors import TaskError
from orchestrator.tasks.parquet_columns import ParquetColumns, codes, is_category

Array = np.ndarray[Any, Any]
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class SplitRows:
    """Row numbers of the two splits, int64."""

    train: Array
    val: Array


def split_rows(columns: ParquetColumns, split_column: str | None, val_fraction: float) -> SplitRows:
    """By `split_column` where one is named, else about `val_fraction` of the rows by a hash of the row number.

    Raises:
        TaskError: if the column is missing or says something else than `SPLITS`, or a split comes out empty.
    """
    value: str | float = val_fraction
    key, remedy = "task.val_fraction", "choose another share, or bring more rows"
    if split_column is None:
        in_val = hash_share(np.arange(columns.rows)) < val_fraction
        rows = SplitRows(train=np.flatnonzero(~in_val), val=np.flatnonzero(in_val))
    else:
        columns.require(split_column, "task.split_column")
        column = columns.read(split_column)
        if not is_category(column.type):
            raise TaskError(f"{columns.path} must hold strings there", key="task.split_column", value=split_column)
        split = codes(column, SPLITS)
        if (split < 0).any():
            rule = f"{columns.path} must hold only {', '.join(SPLITS)} there, the last of which is left out"
            raise TaskError(rule, key="task.split_column", value=split_column)
        rows = SplitRows(train=np.flatnonzero(split == 0), val=np.flatnonzero(split == 1))
        key, value, remedy = "task.split_column", split_column, "mark rows of both kinds"
    if not len(rows.train) or not len(rows.val):
        rule = f"{columns.path} gives {len(rows.train)} training and {len(rows.val)} validation rows; both need some"
        raise TaskError(rule, key=key, value=value, remedy=remedy)
    return rows


def hash_share(row_numbers: Array) -> Array:
    """A number in [0, 1) for each row number, float64: SplitMix64's finaliser (Steele et al. 2014)."""
    z = (row_numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return cast(Array, ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53)

"""Reading a Parquet file or folder column by column: rows in an order of their own, refusals that name the column."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from orchestrator.config.names import nearest_names
from orchestrator.errors import TaskError

Array = np.ndarray[Any, Any]


class ParquetColumns:
    """A Parquet file, or all Parquet files under a folder, as columns in memory one at a time.

    Rows are those of the files sorted by path, whatever order the file system lists them in.

    Args:
        path: a local path or a URI that pyarrow can reach.

    Raises:
        TaskError: if nothing readable is there, or it has no rows.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if "://" not in path and not Path(path).exists():
            raise TaskError(
                "no such file or folder", key="task.path", value=path, remedy="give an existing Parquet path"
            )
        try:
            found = ds.dataset(path, format="parquet", partitioning="hive")
            fragments = sorted(found.get_fragments(), key=lambda fragment: fragment.path)
            self._dataset = ds.FileSystemDataset(fragments, found.schema, found.format, found.filesystem)
            self.rows = self._dataset.count_rows()
        except (pa.ArrowException, OSError) as error:
            raise TaskError(f"must be readable as Parquet ({error})", key="task.path", value=path) from error
        if not self.rows:
            raise TaskError("must have rows, and has none", key="task.path", value=path)
        self.schema: pa.Schema = self._dataset.schema

    def read(self, name: str) -> pa.ChunkedArray:
        """One column; NaN becomes null, dictionaries their values.

        Raises:
            TaskError: if a file holds something else than its schema says.
        """
        try:
            column = self._dataset.to_table(columns=[name]).column(0)
        except (pa.ArrowException, OSError) as error:
            raise TaskError(f"column {name!r} cannot be read ({error})", key="task.path", value=self.path) from error
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
        return column

    def require(self, name: str, key: str) -> None:
        """Refuse a column that is not there, naming the nearest and all valid ones.

        Raises:
            TaskError: naming `key`, the dotted key that asked for it.
        """
        if name in self.schema.names:
            return
        near = nearest_names(name, self.schema.names)
        nearest = f"the nearest is {near[0]!r}; " if near else ""
        raise TaskError(
            f"{self.path} has no such column",
            key=key,
            value=name,
            remedy=f"{nearest}its columns are {', '.join(self.schema.names)}",
        )


def is_number(kind: pa.DataType) -> bool:
    """Whether a column holds integers, floats, decimals or booleans."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def is_category(kind: pa.DataType) -> bool:
    """Whether a column holds strings or a dictionary."""
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_dictionary(kind)
    )


def to_float64(column: pa.ChunkedArray) -> Array:
    """A numeric or boolean column as float64 ``[rows]``, NaN where it is null."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy())


def codes(column: pa.ChunkedArray, vocabulary: Iterable[Any]) -> Array:
    """int64 ``[rows]``: each value's place in `vocabulary`, -1 where it is null or not in it."""
    found = pc.index_in(column, value_set=pa.array(list(vocabulary), type=column.type))
    return np.asarray(found.fill_null(-1).to_numpy(), dtype=np.int64)


def vocabulary(column: pa.ChunkedArray) -> list[Any]:
    """The values that occur, sorted, null left out."""
    return sorted(column.unique().drop_null().to_pylist())

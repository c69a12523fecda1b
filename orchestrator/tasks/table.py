"""Any Parquet file or folder with a label column: a perceptron on its numbers and categories."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from orchestrator.tasks.arrays import TensorRows
from orchestrator.tasks.metrics import classification_sums
from orchestrator.tasks.mlp import after_first_layer
from orchestrator.tasks.options import Count, Dropout, Share
from orchestrator.tasks.table_data import TableData, load_table
from orchestrator.training.task import Sum, Task, TaskConfig

# Bounded, so that a search over what is read keeps no more than the last two tables in a warm worker.
_load = lru_cache(maxsize=2)(load_table)


class TableConfig(TaskConfig):
    """Options of the table task."""

    path: str
    """A Parquet file, or a folder of them, local or by a URI that pyarrow reads (s3://, gs://, hdfs://)."""
    label: str = "label"
    """The column to predict."""
    features: tuple[str, ...] | None = None
    """The columns to predict it from; by default every number, boolean, string and dictionary column."""
    problem: Literal["auto", "classification", "regression"] = "auto"
    """auto takes strings, booleans, and integers of at most 20 values for classes."""
    hidden: Count = 64
    """Units of each hidden layer."""
    layers: Count = 2
    """Hidden layers."""
    dropout: Dropout = 0.0
    """Dropout after each hidden layer. Above 0 a run depends on how its batch is split over workers."""
    val_fraction: Share = 0.2
    """About this share of the rows, chosen by a hash of the row number, is for evaluation."""
    split_column: str | None = None
    """A column that says train, val or test (left out) instead."""
    nulls: Literal["refuse", "mean"] = "refuse"
    """What to do where a number is missing: refuse the column, or take the training rows' mean."""


class Table(Task):
    """Classification (cross entropy in nats) or regression (squared error of the standardised label) on a table.

    Numbers are standardised by the training rows alone. A string column is a category: each of its values has a vector
    that is added to the first hidden layer, which is what a one-hot input would do; null, and values that only
    validation rows hold, share one. The metrics mse and mae of a regression are in the label's own unit.

    Raises:
        TaskError: if the table cannot be used as asked; see `table_data.load_table`.
    """

    Config = TableConfig
    metric_modes: ClassVar[Mapping[str, Literal["min", "max"]]] = {
        "loss": "min",
        "accuracy": "max",
        "mse": "min",
        "mae": "min",
    }
    path_options: ClassVar[tuple[str, ...]] = ("path",)
    config: TableConfig

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        metrics = ("loss", "accuracy") if self.data.problem == "classification" else ("loss", "mse", "mae")
        modes = {name: type(self).metric_modes[name] for name in metrics}
        # Which metrics there are depends on the label column, which the class cannot know.
        self.metric_modes = modes  # type: ignore[misc]

    @property
    def data(self) -> TableData:
        """The table, read once a process however many trials use it."""
        c = self.config
        return _load(c.path, c.label, c.features, c.problem, c.split_column, c.val_fraction, c.nulls)

    def model(self) -> nn.Module:
        """Takes numbers ``[n, d]`` and codes ``[n, c]``, gives logits ``[n, classes]`` or predictions ``[n, 1]``."""
        c, data = self.config, self.data
        first = _FirstLayer(len(data.numbers), len(data.category_columns), data.categories, c.hidden)
        return _TableModel(first, after_first_layer(c.hidden, c.layers, len(data.classes) or 1, c.dropout))

    def train_data(self) -> TensorRows:
        """Rows for training."""
        return self.data.train

    def val_data(self) -> TensorRows:
        """Rows for evaluation, the same for every trial and seed."""
        return self.data.val

    def loss(self, model: nn.Module, batch: Any) -> Sum:
        """Cross entropy or squared error, summed over the batch; the weight is its number of rows."""
        numbers, codes, target = batch
        output = model(numbers, codes)
        if self.data.problem == "classification":
            return F.cross_entropy(output, target, reduction="sum"), len(target)
        return F.mse_loss(output.squeeze(1), target, reduction="sum"), len(target)

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Sum]:
        """The problem's metrics from one forward pass, summed in float64."""
        numbers, codes, target = batch
        output = model(numbers, codes)
        if self.data.problem == "classification":
            return classification_sums(output, target)
        error = output.squeeze(1).double() - target.double()
        squares, n = error.square().sum(), len(target)
        std = self.data.label_std
        return {"loss": (squares, n), "mse": (squares * std**2, n), "mae": (error.abs().sum() * std, n)}


class _TableModel(nn.Module):
    def __init__(self, first: nn.Module, rest: list[nn.Module]) -> None:
        super().__init__()
        self.first = first
        self.rest = nn.Sequential(*rest)

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        output: Tensor = self.rest(self.first(numbers, codes))
        return output


class _FirstLayer(nn.Module):
    """A linear layer over numbers and one-hot categories that never forms the one-hot vectors."""

    def __init__(self, numbers: int, columns: int, categories: int, hidden: int) -> None:
        super().__init__()
        # A layer of no inputs would have nothing to initialise, which torch warns about.
        self.numbers = nn.Linear(numbers, hidden) if numbers else None
        self.categories = nn.Embedding(categories, hidden) if columns else None
        if self.categories is not None:
            bound = (numbers + columns) ** -0.5
            nn.init.uniform_(self.categories.weight, -bound, bound)

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        parts: list[Tensor] = []
        if self.numbers is not None:
            parts.append(self.numbers(numbers))
        if self.categories is not None:
            parts.append(self.categories(codes).sum(dim=1))
        return sum(parts[1:], parts[0])

"""A byte-level language model of Python's standard library sources: a small transformer that needs no download."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from orchestrator.tasks.byte_corpus import cache_folder, corpus_file, open_split
from orchestrator.tasks.byte_transformer import ByteTransformer
from orchestrator.tasks.options import Count, Dropout
from orchestrator.training.task import Sum, Task, TaskConfig

MASKED = -100
Array = np.ndarray[Any, Any]


class BytesConfig(TaskConfig):
    """Options of the bytes task. The defaults make a model of 120,576 parameters."""

    width: Count = 64
    """Features of a position; divisible by heads."""
    layers: Count = 2
    """Transformer blocks."""
    heads: Count = 4
    """Attention heads of a block."""
    context: Count = 64
    """Bytes that a prediction may look at, and predictions of a window."""
    dropout: Dropout = 0.0
    """Above 0 a run depends on how its batch is split over workers."""
    tied: bool = True
    """Share weights between embedding and output."""
    packed: bool = True
    """Let windows run across the ends of files. Otherwise each file starts a window of its own, and the window at its
    end has fewer valid bytes."""
    train_windows: Count | None = None
    """At most so many training windows, spread evenly over the corpus."""
    val_windows: Count | None = 512
    """At most so many validation windows, spread evenly over the corpus."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> BytesConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be divisible by heads {self.heads}")
        return self


class Bytes(Task):
    """Predict the next byte. A sample is a window; the weight is its number of valid predictions.

    A batch is ``(inputs int64 [n, context], targets int64 [n, context])``; a target of -100 is masked. Losses are in
    nats per byte; bits_per_byte is loss / ln 2.
    """

    Config = BytesConfig
    metric_modes: ClassVar[Mapping[str, Literal["min", "max"]]] = {"loss": "min", "bits_per_byte": "min"}
    config: BytesConfig

    def model(self) -> nn.Module:
        """Takes inputs ``[n, context]``, gives logits ``[n, context, 256]``."""
        c = self.config
        return ByteTransformer(
            width=c.width, layers=c.layers, heads=c.heads, context=c.context, dropout=c.dropout, tied=c.tied
        )

    def train_data(self) -> Windows:
        """Windows of nine tenths of the files."""
        c = self.config
        return open_windows(corpus_file(cache_folder()), "train", c.context, c.packed, c.train_windows)

    def val_data(self) -> Windows:
        """Windows of the other files."""
        c = self.config
        return open_windows(corpus_file(cache_folder()), "val", c.context, c.packed, c.val_windows)

    def loss(self, model: nn.Module, batch: Any) -> Sum:
        """Cross entropy summed over the unmasked bytes; the weight is their number."""
        inputs, targets = batch
        total = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=MASKED)
        return total, (targets != MASKED).sum()

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Sum]:
        """Both metrics from one forward pass, summed in float64."""
        inputs, targets = batch
        losses = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="none", ignore_index=MASKED)
        total, weight = losses.double().sum(), (targets != MASKED).sum()
        return {"loss": (total, weight), "bits_per_byte": (total / math.log(2.0), weight)}


class Windows:
    """A `Fetchable` of context windows over a memory-mapped stream of bytes.

    Window i predicts up to `context` bytes from each one's predecessors; no byte is predicted by two windows. What a
    shorter window lacks is padded with 0 and masked. Pickled, it travels as a path, not as data.

    Args:
        path: an Arrow file of `byte_corpus`.
        split: "train" or "val".
        context: predictions of a full window.
        packed: whether windows run across the 0 bytes that end files.
        at_most: keep so many windows, evenly spread; None keeps all.
    """

    def __init__(self, path: Path, split: str, context: int, packed: bool, at_most: int | None) -> None:
        self._arguments = (path, split, context, packed, at_most)
        self._context = context
        self._stream = open_split(path, split)
        self._starts, self._lengths = _layout(self._stream, context, packed)
        if at_most is not None and at_most < len(self._starts):
            kept = np.linspace(0, len(self._starts) - 1, at_most).astype(np.int64)
            self._starts, self._lengths = self._starts[kept], self._lengths[kept]

    def __len__(self) -> int:
        return len(self._starts)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_windows, self._arguments

    def fetch(self, indices: Array, draws: Any) -> tuple[Tensor, Tensor]:
        """``(inputs, targets)`` of the windows at `indices`; nothing here is random, so `draws` is not used."""
        offsets = np.arange(self._context + 1)
        at = np.minimum(self._starts[indices, None] + offsets, len(self._stream) - 1)
        rows = self._stream[at].astype(np.int64)
        valid = offsets[:-1] < self._lengths[indices, None]
        inputs, targets = np.where(valid, rows[:, :-1], 0), np.where(valid, rows[:, 1:], MASKED)
        return torch.from_numpy(inputs), torch.from_numpy(targets)


# Bounded, so that a search over context keeps no more than the last few layouts of a warm worker's trials.
@lru_cache(maxsize=4)
def open_windows(path: Path, split: str, context: int, packed: bool, at_most: int | None) -> Windows:
    """`Windows`, shared by all trials of a process that ask for the same."""
    return Windows(path, split, context, packed, at_most)


def _layout(stream: Array, context: int, packed: bool) -> tuple[Array, Array]:
    """Start and number of predictions of every window, int64 ``[windows]`` each."""
    ends = np.array([len(stream)]) if packed else np.flatnonzero(stream == 0) + 1
    begins = np.concatenate([[0], ends[:-1]])
    predictions = ends - begins - 1
    windows = -(-predictions // context)
    document = np.repeat(np.arange(len(ends)), windows)
    within = (np.arange(len(document)) - np.repeat(np.cumsum(windows) - windows, windows)) * context
    return begins[document] + within, np.minimum(context, predictions[document] - within)

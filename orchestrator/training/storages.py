"""A count of the bytes of every live tensor storage while code runs, told apart by what the bytes are for.

It works alike on real tensors and on fake ones, which have shapes but no memory.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_ITEM = torch.ops.aten._local_scalar_dense.default
_NUMBER = {torch.bool: True}
HOST = "host"
"""Label of what would be in host memory if there were a device."""


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages from their first tensor to the end of the last one, inside ``with ledger:``.

    A storage born inside is filed under `label`, and in `modules` under the innermost module whose forward runs.

    Attributes:
        label: what is being done.
        live: bytes by label.
        peak_bytes: the most that was live at once, apart from `HOST`.
        at_peak: bytes by (label, module) then; module is "" outside of forward passes.
        host_bytes: the most that was live at once under `HOST`.
        number: what a tensor's value is taken for where it is read (``float(x)``); None reads it.
    """

    def __init__(self, *, number: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.label, self.number = "other", number
        self.live: Counter[tuple[str, str]] = Counter()
        self.peak_bytes = self.host_bytes = 0
        self.at_peak: dict[tuple[str, str], int] = {}
        self._total = self._on_host = 0
        self._known: dict[int, tuple[weakref.ref[Any], tuple[str, str], int]] = {}
        self._modules: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ITEM and self.number is not None:
            return _NUMBER.get(args[0].dtype, self.number)
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._see(value)
        return result

    def watch(self, model: nn.Module) -> list[Any]:
        """Hook the model's modules, so that what their forward passes make is filed under them; returns the handles."""
        handles: list[Any] = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._modules.append(name)))
            handles.append(module.register_forward_hook(lambda *_: self._leave(), always_call=True))
        return handles

    def file(self, tensors: Iterable[Tensor], label: str) -> None:
        """Count `tensors` under `label` from now on, whatever they were counted under."""
        for tensor in tensors:
            self._see(tensor)
            key = _key(tensor)
            ref, old, size = self._known[key]
            self._known[key] = ref, (label, ""), size
            self._add(old, -size)
            self._add((label, ""), size)

    def restart_peak(self) -> None:
        """The peak from now on."""
        self.peak_bytes = 0
        self._rise()

    def _leave(self) -> None:
        self._modules.pop()

    def _see(self, tensor: Tensor) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        size = storage.nbytes()
        known = self._known.get(key)
        if known is not None and known[0]() is storage:
            if known[2] != size:  # resized in place
                self._add(known[1], size - known[2])
                self._known[key] = known[0], known[1], size
            return
        where = self.label, self._modules[-1] if self._modules else ""
        self._known[key] = weakref.ref(storage, functools.partial(self._gone, key)), where, size
        self._add(where, size)

    def _gone(self, key: int, ref: Any) -> None:
        known = self._known.get(key)
        if known is not None and known[0] is ref:
            del self._known[key]
            self._add(known[1], -known[2])

    def _add(self, where: tuple[str, str], size: int) -> None:
        self.live[where] += size
        if where[0] == HOST:
            self._on_host += size
            self.host_bytes = max(self.host_bytes, self._on_host)
            return
        self._total += size
        if size > 0:
            self._rise()

    def _rise(self) -> None:
        # Equal peaks count too: the later one knows what the optimizer's state is.
        if self._total >= self.peak_bytes:
            self.peak_bytes = self._total
            self.at_peak = {where: size for where, size in self.live.items() if size and where[0] != HOST}


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)

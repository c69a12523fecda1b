"""How numbers are written for people: short, and the same in the console, the figures and the advice."""

from __future__ import annotations

from typing import Any

_UNITS = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


def count(value: float) -> str:
    """A count to three digits: ``950``, ``1.5k``, ``20k``, ``1.2M``."""
    for unit_size, unit in _UNITS:
        # Compared after rounding, so that 999,960 is 1M and not 1000k.
        if round(value, 3 - len(f"{value:.0f}")) >= unit_size:
            return f"{float(f'{value / unit_size:.3g}'):g}{unit}"
    return f"{value:.0f}"


def lr(value: float) -> str:
    """A learning rate to three digits: ``0.1``, ``0.0316``, ``3.16e-05``."""
    return f"{value:.3g}"


def number(value: Any) -> str:
    """A metric or value to four digits; two values with a comma; ``-`` if there is none."""
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(number(part) for part in value)
    if abs(value) >= 1e4:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """``4.2 s``, ``45 s``, ``3 min 20 s``, ``2 h 5 min``; ``-`` if unknown."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(size_bytes: int) -> str:
    """Bytes in binary units: ``812 B``, ``3.4 KiB``, ``120.0 MiB``."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    for power, unit in ((3, "GiB"), (2, "MiB")):
        if size_bytes >= 1024**power:
            return f"{size_bytes / 1024**power:.1f} {unit}"
    return f"{size_bytes / 1024:.1f} KiB"

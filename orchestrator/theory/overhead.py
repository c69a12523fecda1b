"""Definitions of a critical batch by the samples that it costs over a smaller one."""

from __future__ import annotations

from orchestrator.theory._checks import positive


def overhead_batch(critical_batch: float, *, overhead: float = 0.2, reference_batch: float = 0.0) -> float:
    r"""The batch that needs `overhead` more samples than perfect scaling from `reference_batch` predicts.

    .. math::
        E(B) = (1 + o) E(B_0) \quad\Rightarrow\quad B = (1 + o) B_0 + o B_{crit}

    With :math:`B_0 = 0` it is measured against Emin: ``cbs20`` of `CriticalBatch` has o = 0.2.

    Args:
        critical_batch: Emin / Smin, samples, > 0.
        overhead: o, > 0.
        reference_batch: :math:`B_0`, samples, >= 0.

    >>> overhead_batch(1000.0)
    200.0
    """
    positive("critical_batch", critical_batch)
    positive("overhead", overhead)
    if reference_batch != 0:
        positive("reference_batch", reference_batch)
    return (1.0 + overhead) * reference_batch + overhead * critical_batch


def zhang_cbs20(critical_batch: float, *, reference_batch: float = 256.0) -> float:
    r"""The critical batch size as published by Zhang et al. 2024: 20 % over linear scaling from a batch of 256.

    Their fit is log S = log(a + b / B) for S updates, so that Emin = b, Smin = a, and the published
    :math:`1.2 \cdot 256 + b / (5 a)` is `overhead_batch` from that reference.
    Source: arXiv:2410.21676, with the authors' plots/chinchilla.ipynb in hlzhang109/critical-batch-size.

    >>> round(zhang_cbs20(2834258.0888740215 / 1293.8268694659337), 9)  # 85M parameters
    745.320146638
    """
    return overhead_batch(critical_batch, overhead=0.2, reference_batch=positive("reference_batch", reference_batch))

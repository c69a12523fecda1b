"""How many gangs fit, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cluster.capacity import Node, accelerators, count_gangs, workers_on
from orchestrator.errors import ResourceError


def nodes(*cpus: float) -> list[Node]:
    return [Node(name=f"n{i}", resources={"CPU": cpu}) for i, cpu in enumerate(cpus)]


def test_accelerators_have_the_names_that_ray_gives_them() -> None:
    there = [Node(name=f"n{i}", resources={"GPU": 4, f"accelerator_type:{kind}": 1}) for i, kind in enumerate("BA")]
    assert accelerators([*there, *nodes(2)]) == "A, B"
    assert accelerators(nodes(2)) == "gpu"


def test_a_worker_never_spans_nodes() -> None:
    assert count_gangs(nodes(3, 3), workers=2, per_worker={"CPU": 2}, asked=None, trials=9) == 1


def test_four_cpus_hold_two_gangs_of_two() -> None:
    assert count_gangs(nodes(4), workers=2, per_worker={"CPU": 1}, asked=None, trials=9) == 2
    assert count_gangs(nodes(4), workers=2, per_worker={"CPU": 1}, asked=None, trials=1) == 1


def test_an_impossible_shape_names_need_and_supply() -> None:
    with pytest.raises(ResourceError) as refused:
        count_gangs(nodes(2), workers=3, per_worker={"CPU": 1}, asked=None, trials=9, file="space.yaml")
    text = str(refused.value)
    assert refused.value.exit_code == 2
    for part in ("space.yaml", "cluster.workers = 3", "need 3 CPU", "n0 has 2 CPU", "fewer workers"):
        assert part in text


def test_more_gangs_than_fit_are_refused_with_the_number_that_fits() -> None:
    with pytest.raises(ResourceError, match=r"cluster.gangs = 3.*Use cluster.gangs: 2"):
        count_gangs(nodes(4), workers=2, per_worker={"CPU": 1}, asked=3, trials=9)


def test_a_gpu_need_without_gpus_is_refused() -> None:
    with pytest.raises(ResourceError, match="0 GPU"):
        count_gangs(nodes(8), workers=1, per_worker={"CPU": 1, "GPU": 1}, asked=None, trials=1)


@given(
    cpus=st.lists(st.integers(0, 16), min_size=1, max_size=5),
    workers=st.integers(1, 4),
    need=st.sampled_from([0.5, 1.0, 2.0, 3.0]),
)
def test_what_is_promised_fits(cpus: list[int], workers: int, need: float) -> None:
    there = nodes(*map(float, cpus))
    slots = sum(workers_on(node, {"CPU": need}) for node in there)
    if slots < workers:
        with pytest.raises(ResourceError):
            count_gangs(there, workers=workers, per_worker={"CPU": need}, asked=None, trials=1000)
    else:
        gangs = count_gangs(there, workers=workers, per_worker={"CPU": need}, asked=None, trials=1000)
        assert gangs * workers <= slots < (gangs + 1) * workers
        assert all(workers_on(n, {"CPU": need}) * need <= n.resources["CPU"] for n in there)

"""Does the probe's model of the step time tell geometries that it has not timed?

    python benchmarks/step_time.py [--space SPACE.yaml]

Runs the probe, then times other geometries (micro batches that are no powers of two, other accumulations) in fresh
processes, and prints predicted over measured for each, with the median of the absolute errors.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from orchestrator.cluster.prober import ProberSettings  # noqa: E402
from orchestrator.cluster.probers import Room  # noqa: E402
from orchestrator.cluster.session import connect  # noqa: E402
from orchestrator.config.load import load_spec  # noqa: E402
from orchestrator.config.probe_rules import as_probe  # noqa: E402
from orchestrator.preparation import prepare  # noqa: E402
from orchestrator.probe import speed  # noqa: E402
from orchestrator.probe.__main__ import main as probe  # noqa: E402
from orchestrator.probe.measure import plan_of  # noqa: E402
from orchestrator.theory.geometry import Geometry  # noqa: E402
from orchestrator.tracking.events import read_events  # noqa: E402

OTHERS = [(3, 2, 2), (12, 1, 1), (6, 3, 1), (24, 1, 2), (5, 4, 1), (10, 2, 2)]
REPEATS = 6


def main() -> int:
    """Print a row a geometry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", default=str(PROJECT / "search_spaces" / "bytes.yaml"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = ["probe.savers=false", "probe.memory=predict", f"tracking.uri=sqlite:///{folder}/mlflow.db"]
        words = [word for text in settings for word in ("--set", text)]
        if code := probe([args.space, "--out", f"{folder}/run", *words]):
            return code
        model = speed.fitted(speed.timed_of(read_events(Path(folder) / "run" / "events.jsonl")))
    if isinstance(model, str):
        raise SystemExit(model)
    plan = plan_of(prepare(as_probe(load_spec(args.space), file=args.space), file=args.space))
    cluster = plan.spec.cluster
    shared = ProberSettings(threads=cluster.threads, deterministic=cluster.deterministic, import_paths=tuple(sys.path))
    geometries = [Geometry(micro_batch=m, accumulation=a, world_size=w) for m, a, w in OTHERS]
    took: dict[Geometry, list[float]] = {geometry: [] for geometry in geometries}
    with connect(), Room(cluster.workers, {"CPU": 1.0}, shared, timeout_s=600.0) as room, room.fresh() as probers:
        for _ in range(REPEATS):
            for geometry in geometries:
                probers.join(geometry.world_size)
                answers = probers.time(plan.trial(geometry).to_dict(), updates=5, warmup=2)
                took[geometry].append(float(np.median(np.max([answer["step_s"] for answer in answers], axis=0))))
    errors = []
    for geometry, seconds in took.items():
        predicted, measured = model.predict(geometry), float(np.median(seconds))
        assert predicted.value is not None
        errors.append(predicted.value / measured - 1.0)
        told, found = 1e3 * predicted.value, 1e3 * measured
        print(f"{geometry!s:<45} predicted {told:7.1f} ms, measured {found:7.1f}: {errors[-1]:+.1%}")
    close = sum(abs(error) <= 0.15 for error in errors)
    print(f"median absolute error {np.median(np.abs(errors)):.1%}, {close} of {len(errors)} within 15 %")
    return 0


if __name__ == "__main__":
    sys.exit(main())

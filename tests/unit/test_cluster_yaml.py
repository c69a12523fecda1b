from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import ray.autoscaler
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def schema():
    return json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())


@pytest.fixture
def cluster():
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


def test_it_keeps_the_schema_that_ray_ships(cluster, schema):
    jsonschema.validate(cluster, schema)


def test_the_schema_check_can_fail(cluster, schema):
    cluster["available_node_types"]["gpu_worker"]["resources"]["GPU"] = -1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(cluster, schema)


def test_ray_s_launcher_accepts_it_with_its_defaults_filled_in(cluster):
    prepared = prepare_config(cluster)
    validate_config(prepared)
    assert set(prepared["available_node_types"]) == {"head", "cpu_worker", "gpu_worker"}


def test_it_has_a_gpu_worker_and_a_bounded_number_of_workers(cluster):
    types = cluster["available_node_types"]
    assert types["gpu_worker"]["resources"]["GPU"] > 0
    workers = [types["cpu_worker"], types["gpu_worker"]]
    assert all(0 <= worker["min_workers"] <= worker["max_workers"] for worker in workers)
    assert sum(worker["max_workers"] for worker in workers) <= cluster["max_workers"]


def test_it_runs_the_ray_that_the_constraints_pin(cluster):
    (pinned,) = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("ray==")]
    version = pinned.removeprefix("ray==")
    images = [cluster["docker"]["image"], cluster["available_node_types"]["gpu_worker"]["docker"]["worker_image"]]
    assert all(image.startswith(f"rayproject/ray:{version}-py311") for image in images)


def test_nodes_install_the_project_that_is_copied_to_them(cluster):
    mounted = [path for path, local in cluster["file_mounts"].items() if local == "."]
    assert [f"cd {path} && pip install -c constraints.txt -e ." for path in mounted] == cluster["setup_commands"]

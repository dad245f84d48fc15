"""The examples beside each other on the box as `tonnage up` starts it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tonnage.kubernetes.api.quantity import to_bytes
from tonnage_box.plan import DEFAULT_POOL_SIZE

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples").glob("*.yaml"))


def objects(kind: str) -> Iterator[dict[str, Any]]:
    for file in FILES:
        yield from (found for found in yaml.safe_load_all(file.read_text()) if found["kind"] == kind)


@pytest.mark.parametrize("kind", ["Pod", "PersistentVolumeClaim"])
def test_no_two_have_a_name_in_common(kind: str) -> None:
    found = [each["metadata"]["name"] for each in objects(kind)]
    assert found
    assert sorted(set(found)) == sorted(found)


def test_only_inline_volumes_are_called_inline() -> None:
    for pod in objects("Pod"):
        is_inline = any("csi" in volume for volume in pod["spec"]["volumes"])
        assert is_inline == ("inline" in pod["metadata"]["name"]), pod["metadata"]["name"]


def test_all_parts_of_the_job_fit_on_one_node_as_finished_pods_keep_their_volumes() -> None:
    (job,) = (found for found in objects("Job") if found["metadata"]["name"] == "parts")
    volumes = job["spec"]["template"]["spec"]["volumes"]
    sizes = [
        to_bytes(v["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"]["requests"]["storage"]) for v in volumes
    ]
    assert job["spec"]["completions"] * sum(sizes) < to_bytes(DEFAULT_POOL_SIZE)


def test_the_readme_waits_for_a_pod_before_it_reads_its_log() -> None:
    text = (ROOT / "README.md").read_text()
    logs = list(re.finditer(r"^\$ kubectl logs (\S+)", text, re.M))
    assert logs
    for found in logs:
        assert f"$ kubectl wait --for=condition=Ready pod/{found[1]}\n" in text[: found.start()]

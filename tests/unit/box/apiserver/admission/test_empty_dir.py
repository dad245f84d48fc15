"""emptyDirs that become volumes: which, of whom, and that nothing else of a pod changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import ApiInvalidError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage_box.apiserver.admission.empty_dir import rewrite

LIMIT = {"sizeLimit": "1Gi"}
EMPTY_DIRS = st.fixed_dictionaries(
    {},
    optional={
        "sizeLimit": st.sampled_from(["0", "1Gi", "500M", "1", "0.5", 7]),
        "medium": st.sampled_from(["", "Memory", "HugePages"]),
    },
)
SOURCES = st.one_of(
    st.builds(lambda found: {"emptyDir": found}, EMPTY_DIRS),
    st.sampled_from([{"configMap": {"name": "c"}}, {"hostPath": {"path": "/"}}, {"emptyDir": None}]),
    st.just({"ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "x"}}}}),
)
SPECS = st.builds(
    lambda sources, more: {**more, "volumes": [{"name": f"v{n}", **one} for n, one in enumerate(sources)]},
    st.lists(SOURCES, max_size=6),
    st.fixed_dictionaries({"containers": st.just([{"name": "c"}])}, optional={"nodeName": st.sampled_from(["", "n1"])}),
)


def _is_limited(volume: dict[str, Any]) -> bool:
    found = volume.get("emptyDir") or {}
    return found.get("sizeLimit") not in (None, "0") and found.get("medium", "") == ""


@given(SPECS)
def test_what_is_rewritten_and_that_all_else_stays(spec: dict[str, Any]) -> None:
    before = copy.deepcopy(spec)
    rewrite(spec)
    for old, new in zip(before["volumes"], spec["volumes"], strict=True):
        if before.get("nodeName") or not _is_limited(old):
            assert new == old
            continue
        claim = new["ephemeral"]["volumeClaimTemplate"]["spec"]
        assert claim["resources"] == {"requests": {"storage": str(old["emptyDir"]["sizeLimit"])}}
        assert "storageClassName" not in claim, "the default class"
        assert new.keys() == {"name", "ephemeral"}
        assert new["name"] == old["name"]
    assert {key: spec[key] for key in spec if key != "volumes"} == {k: before[k] for k in before if k != "volumes"}
    once = copy.deepcopy(spec)
    rewrite(spec)
    assert spec == once


@pytest.mark.parametrize(
    ("namespace", "labels", "pod", "more", "becomes"),
    [
        ("team", {names.EMPTY_DIR: "limited"}, {}, {}, "ephemeral"),
        ("team", {}, {names.EMPTY_DIR: "limited"}, {}, "ephemeral"),
        ("team", {names.EMPTY_DIR: "limited"}, {names.EMPTY_DIR: "off"}, {}, "emptyDir"),
        ("team", {}, {}, {}, "emptyDir"),
        ("team", {names.EMPTY_DIR: "yes"}, {}, {}, "emptyDir"),
        ("team", {names.EMPTY_DIR: "limited"}, {}, {"nodeName": "n1"}, "emptyDir"),
        (names.SYSTEM_NAMESPACE, {names.EMPTY_DIR: "limited"}, {names.EMPTY_DIR: "limited"}, {}, "emptyDir"),
    ],
)
async def test_whose(
    namespace: str, labels: dict[str, str], pod: dict[str, str], more: dict[str, str], becomes: str, kube: Client
) -> None:
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": namespace, "labels": labels}})
    spec = {"containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "v", "emptyDir": LIMIT}], **more}
    made = await kube.create(kinds.PODS, {"metadata": {"name": "p", "labels": pod}, "spec": spec}, namespace)
    volume = next(volume for volume in made.spec.volumes if volume.name == "v")
    assert (volume.ephemeral is not None, volume.empty_dir is not None) == (
        becomes == "ephemeral",
        becomes == "emptyDir",
    )


async def test_a_pod_without_a_limit_and_one_with_nonsense(kube: Client) -> None:
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": "team", "labels": {names.EMPTY_DIR: "limited"}}})
    body: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "v", "emptyDir": {}}]}
    made = await kube.create(kinds.PODS, {"metadata": {"name": "p"}, "spec": body}, "team")
    assert next(volume for volume in made.spec.volumes if volume.name == "v").empty_dir is not None
    body["volumes"] = [{"name": "v", "emptyDir": {"sizeLimit": "-1"}}]
    with pytest.raises(ApiInvalidError):
        await kube.create(kinds.PODS, {"metadata": {"name": "q"}, "spec": body}, "team")

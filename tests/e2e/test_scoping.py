"""The policy that labels claims with the node that they were sent to, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.control_plane import ControlPlane

from tonnage.kubernetes.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.since("1.36")]
CLAIMS = "/api/v1/namespaces/scoping/persistentvolumeclaims"
LONG = ".".join(["a" * 43, "b" * 60, "c" * 60, "d" * 60])  # 226 characters, "." at the 44th


@pytest.fixture(scope="module")
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    """With a namespace of our own, and a class of another driver."""
    installed.kubectl("create", "namespace", "scoping")
    other = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "other-driver"}}
    late = {"volumeBindingMode": "WaitForFirstConsumer"}
    installed.apply({**other, "provisioner": "csi.example.com", **late})
    yield installed
    installed.kubectl("delete", "storageclass", "other-driver")
    installed.kubectl("delete", "namespace", "scoping")


def claim(
    name: str,
    *,
    storage_class: str | None = "tonnage-scratch",
    node: str = "",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    notes = {"annotations": {names.SELECTED_NODE: node}} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, **notes, **({"labels": labels} if labels else {})},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            **({"storageClassName": storage_class} if storage_class else {}),
            **spec,
        },
    }


def make(plane: ControlPlane, body: dict[str, Any]) -> Any:
    made = plane.send("POST", CLAIMS, body)
    assert made.status == 201, made.body
    return made.body["metadata"]


def patch(plane: ControlPlane, name: str, metadata: dict[str, Any]) -> Any:
    changed = plane.send("PATCH", f"{CLAIMS}/{name}", {"metadata": metadata})
    assert changed.status == 200, changed.body
    return changed.body["metadata"]


def label(metadata: Any) -> str | None:
    found: str | None = metadata.get("labels", {}).get(names.NODE_LABEL)
    return found


def test_label_comes_and_goes_in_the_same_write(plane: ControlPlane) -> None:
    made = make(plane, claim("sent"))
    assert label(made) is None
    sent = patch(plane, "sent", {"annotations": {names.SELECTED_NODE: "n1"}})
    moved = patch(plane, "sent", {"annotations": {names.SELECTED_NODE: "n2"}})
    back = patch(plane, "sent", {"annotations": {names.SELECTED_NODE: None}})
    assert [label(m) for m in (sent, moved, back)] == ["n1", "n2", None]

    seen = [event["object"]["metadata"] for event in plane.watched(CLAIMS, made["resourceVersion"])]
    versions = [m["resourceVersion"] for m in seen if m["name"] == "sent"]
    assert versions == [m["resourceVersion"] for m in (sent, moved, back)]


def test_another_nodes_watch_sees_nothing(plane: ControlPlane) -> None:
    made = make(plane, claim("scoped"))
    patch(plane, "scoped", {"annotations": {names.SELECTED_NODE: "n1"}})
    patch(plane, "scoped", {"labels": {"app": "x"}})
    patch(plane, "scoped", {"annotations": {names.SELECTED_NODE: None}})

    def seen(node: str) -> list[str]:
        path = f"{CLAIMS}?labelSelector=tonnage.dev%2Fnode%3D{node}"
        return [event["type"] for event in plane.watched(path, made["resourceVersion"])]

    assert (seen("n1"), seen("n2")) == (["ADDED", "MODIFIED", "DELETED"], [])


def test_provisioner_is_named_when_the_claim_is_made(plane: ControlPlane) -> None:
    notes = make(plane, claim("named"))["annotations"]
    assert {notes[names.STORAGE_PROVISIONER], notes[names.BETA_STORAGE_PROVISIONER]} == {names.DRIVER}


def test_claim_of_the_default_class(plane: ControlPlane) -> None:
    default = {"metadata": {"annotations": {names.DEFAULT_CLASS: "true"}}}
    path = "/apis/storage.k8s.io/v1/storageclasses/tonnage-scratch"
    assert plane.send("PATCH", path, default).status == 200
    try:
        plane.until(
            "the class is the default one",
            lambda: (
                "storageClassName"
                in plane.send("POST", f"{CLAIMS}?dryRun=All", claim("x", storage_class=None)).body["spec"]
            ),
        )
        made = make(plane, claim("default", storage_class=None, node="n1"))
    finally:
        assert plane.send("PATCH", path, {"metadata": {"annotations": {names.DEFAULT_CLASS: "false"}}}).status == 200
    assert (label(made), made["annotations"][names.STORAGE_PROVISIONER]) == ("n1", names.DRIVER)


def test_forged_label_is_put_right(plane: ControlPlane) -> None:
    made = make(plane, claim("forged", labels={names.NODE_LABEL: "n2", "app": "x"}))
    assert made["labels"] == {"app": "x"}
    assert patch(plane, "forged", {"labels": {names.NODE_LABEL: "n2"}})["labels"] == {"app": "x"}
    patch(plane, "forged", {"annotations": {names.SELECTED_NODE: "n1"}})
    assert label(patch(plane, "forged", {"labels": {names.NODE_LABEL: "n2"}})) == "n1"
    assert label(patch(plane, "forged", {"labels": {names.NODE_LABEL: None}})) == "n1"
    assert label(patch(plane, "forged", {"labels": None})) == "n1"


def test_node_with_a_long_name(plane: ControlPlane) -> None:
    """The scheduler's write must pass; the hash that the controller writes then stays, another's does not."""
    make(plane, claim("long"))
    assert label(patch(plane, "long", {"annotations": {names.SELECTED_NODE: LONG}})) is None
    right = names.label_value(LONG)
    assert label(patch(plane, "long", {"labels": {names.NODE_LABEL: right}})) == right
    assert label(patch(plane, "long", {"labels": {"app": "x"}})) == right

    others = [names.label_value(f"z{LONG}"), f"b{right[1:]}", "n2", right[:-1], f"a-{'0' * 16}"]
    for other in others:
        assert label(patch(plane, "long", {"labels": {names.NODE_LABEL: other}})) is None, other
    assert label(patch(plane, "long", {"annotations": {names.SELECTED_NODE: "n1"}})) == "n1"


def test_node_whose_name_is_as_long_as_a_label(plane: ControlPlane) -> None:
    for number, length in enumerate((63, 64)):
        node = "n" * 46 + "." + "n" * (length - 47)
        made = make(plane, claim(f"edge-{number}", node=node))
        assert label(made) == (node if length == 63 else None)
        assert label(patch(plane, f"edge-{number}", {"labels": {names.NODE_LABEL: names.label_value(node)}}))


def test_other_classes_are_left_alone(plane: ControlPlane) -> None:
    theirs = {names.NODE_LABEL: "whatever"}
    made = make(plane, claim("other", storage_class="other-driver", node="n1", labels=theirs))
    assert made["labels"] == theirs
    assert names.STORAGE_PROVISIONER not in made["annotations"]


def test_claim_of_a_volume_that_is_there_needs_no_provisioner(plane: ControlPlane) -> None:
    made = make(plane, claim("given", volumeName="some-volume"))
    assert names.STORAGE_PROVISIONER not in made.get("annotations", {})

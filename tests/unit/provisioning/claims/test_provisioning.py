"""What a claim and its class become: parameters, file system, access modes, secrets, places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tonnage.base.errors import InvalidError
from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.provisioning.claims.node_scope import DriverInfo, NodeScope
from tonnage.provisioning.claims.provisioning import (
    ClaimRequest,
    SecretRef,
    capacity_parameters,
    filled,
    parameters_of,
    plan,
    release_after,
    secret_of,
)
from tonnage.storage.content.spec import FolderSpec, decode

SEGMENT = {names.TOPOLOGY_NODE: "node-1"}
PREFIX = names.CSI_PREFIX


def _claim(**spec: Any) -> PersistentVolumeClaim:
    body = {
        "metadata": {"name": "data", "namespace": "ns", "uid": "u-1", "annotations": {"team": "blue"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "4Gi"}}, **spec},
    }
    return msgspec.convert(body, PersistentVolumeClaim)


def _class(parameters: dict[str, str] | None = None, **more: Any) -> StorageClass:
    body = {"metadata": {"name": "c"}, "provisioner": "d", "parameters": parameters or {}, **more}
    return msgspec.convert(body, StorageClass)


def _driver(*, pool: str = "scratch", fine: bool = True, topology: bool = True) -> DriverInfo:
    plugin = frozenset({types.CONTROLLER_SERVICE} | ({types.VOLUME_ACCESSIBILITY_CONSTRAINTS} if topology else set()))
    controller = frozenset({types.SINGLE_NODE_MULTI_WRITER} if fine else set())
    return DriverInfo(CsiClient(Path("/nowhere")), "d", pool, plugin, controller, SEGMENT if topology else {}, "id")


def _plan(claim: PersistentVolumeClaim, storage_class: StorageClass, driver: DriverInfo | None = None) -> ClaimRequest:
    return plan(claim, storage_class, driver or _driver(), NodeScope("node-1", "cluster-1"))


def test_the_name_is_the_claims_and_the_size_what_it_asks() -> None:
    asked = _plan(_claim(), _class())
    assert (asked.name, asked.size, asked.block) == ("pvc-u-1", 4 << 30, False)
    assert asked.topology == types.CsiTopologyRequirement((SEGMENT,), (SEGMENT,))


@pytest.mark.parametrize(
    ("parameters", "more", "why"),
    [
        ({names.RECLAIM_FINISHED: "yes"}, {}, "want true or false"),
        ({names.RECLAIM_FINISHED: "true"}, {"reclaim_policy": "Retain"}, "choose one"),
    ],
)
def test_reclaim_finished_is_checked(parameters: dict[str, str], more: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidError, match=why):
        parameters_of(msgspec.structs.replace(_class(parameters), **more))
    assert parameters_of(_class({names.RECLAIM_FINISHED: "true", "erase": "zero"})) == {"erase": "zero"}


def test_parameters_of_the_agent_stay_with_the_agent() -> None:
    mixed = {"pool": "fast", names.ROLLBACK: "true", names.CSI_FSTYPE: "xfs", f"{PREFIX}node-stage-secret-name": "n"}
    kept = {"pool": "fast", f"{PREFIX}node-stage-secret-namespace": "n", **mixed}
    asked = _plan(_claim(), _class(kept), _driver(pool=""))
    assert asked.parameters == {"pool": "fast"}
    assert names.ROLLBACK not in capacity_parameters(_class(kept))
    assert capacity_parameters(_class(kept))[names.CSI_FSTYPE] == "xfs"


def test_our_own_driver_gets_a_record_and_no_other() -> None:
    record = _plan(_claim(), _class(reclaimPolicy="Retain")).parameters
    assert record == {
        names.CSI_PVC_NAME: "data",
        names.CSI_PVC_NAMESPACE: "ns",
        names.CSI_PV_NAME: "pvc-u-1",
        names.PARAM_CLUSTER: "cluster-1",
        names.PARAM_EPHEMERAL: "false",
        names.PARAM_RECLAIM: "Retain",
    }
    assert _plan(_claim(), _class(), _driver(pool="")).parameters == {}


@pytest.mark.parametrize(
    ("parameters", "fstype"), [({}, ""), ({names.CSI_FSTYPE: "xfs"}, "xfs"), ({"fsType": "ext4"}, "ext4")]
)
def test_the_file_system_is_the_classs(parameters: dict[str, str], fstype: str) -> None:
    asked = _plan(_claim(), _class(parameters, mountOptions=["noatime"]))
    assert asked.fstype == fstype
    assert asked.capabilities == (
        types.VolumeCapability(types.AccessMode.SINGLE_NODE_MULTI_WRITER, fstype=fstype, mount_flags=("noatime",)),
    )


def test_raw_block_has_neither_file_system_nor_options() -> None:
    asked = _plan(_claim(volumeMode="Block"), _class({"fstype": "xfs"}, mountOptions=["noatime"]))
    mode = types.AccessMode.SINGLE_NODE_MULTI_WRITER
    assert asked.capabilities == (types.VolumeCapability(mode, block=True),)


@pytest.mark.parametrize(
    ("fine", "modes", "wanted"),
    [
        (False, ["ReadWriteOnce", "ReadWriteOncePod"], ["SINGLE_NODE_WRITER", "SINGLE_NODE_WRITER"]),
        (True, ["ReadWriteOncePod", "ReadOnlyMany"], ["SINGLE_NODE_SINGLE_WRITER", "MULTI_NODE_READER_ONLY"]),
    ],
)
def test_access_modes_follow_the_drivers_words(fine: bool, modes: list[str], wanted: list[str]) -> None:
    asked = _plan(_claim(accessModes=modes), _class(), _driver(fine=fine))
    assert [c.mode.name for c in asked.capabilities] == wanted


@pytest.mark.parametrize(
    ("spec", "parameters", "text"),
    [
        ({"selector": {}}, {}, "claim Selector is not supported"),
        ({"dataSourceRef": {"kind": "VolumeSnapshot", "name": "s"}}, {}, "data source VolumeSnapshot 's'"),
        ({"dataSource": {"kind": "PersistentVolumeClaim", "name": "s"}}, {}, "driver d cannot copy volumes"),
        (
            {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "s", "namespace": "elsewhere"}},
            {},
            "data source PersistentVolumeClaim 's' is not supported",
        ),
        ({"volumeAttributesClassName": "gold"}, {}, "changes no volumes (no MODIFY_VOLUME)"),
        ({}, {"fstype": "a", names.CSI_FSTYPE: "b"}, 'both "fstype" and "csi.storage.k8s.io/fstype"'),
        (
            {},
            {f"{PREFIX}colour": "red"},
            'unknown parameter key "csi.storage.k8s.io/colour" with reserved namespace csi.storage.k8s.io/',
        ),
        ({}, {f"{PREFIX}provisioner-secret-name": "x"}, "must name both its name and its namespace"),
    ],
)
def test_what_is_not_supported_is_rejected_by_name(spec: dict[str, Any], parameters: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidError) as rejection:
        _plan(_claim(**spec), _class(parameters))
    assert text in str(rejection.value)


def test_places_are_this_node_if_the_class_allows_it() -> None:
    def only(node: str) -> StorageClass:
        term = {"matchLabelExpressions": [{"key": names.TOPOLOGY_NODE, "values": [node]}]}
        return _class(allowedTopologies=[term])

    assert _plan(_claim(), only("node-1")).topology is not None
    with pytest.raises(InvalidError, match="not in the allowed topologies of class c"):
        _plan(_claim(), only("node-2"))
    assert _plan(_claim(), _class(), _driver(topology=False)).topology is None


@pytest.mark.parametrize(
    ("name", "namespace", "filled"),
    [
        ("fixed", "kube-system", SecretRef("fixed", "kube-system")),
        ("${pvc.name}-${pv.name}", "${pvc.namespace}", SecretRef("data-pvc-u-1", "ns")),
        ("key-${pvc.annotations['team']}", "x", SecretRef("key-blue", "x")),
    ],
)
def test_secret_templates_are_filled_in(name: str, namespace: str, filled: SecretRef) -> None:
    role = f"{PREFIX}node-stage-secret-"
    parameters = {f"{role}name": name, f"{role}namespace": namespace}
    assert secret_of(parameters, "node-stage-", _claim(), "pvc-u-1") == filled
    assert secret_of(parameters, "node-publish-", _claim(), "pvc-u-1") is None
    default = {f"{PREFIX}secret-name": name, f"{PREFIX}secret-namespace": namespace}
    assert secret_of(default, "node-publish-", _claim(), "pvc-u-1") == filled


@pytest.mark.parametrize(
    ("name", "namespace"), [("${pvc.uid}", "n"), ("${pvc.annotations['x']}", "n"), ("UPPER", "n"), ("n", "${pvc.name}")]
)
def test_secret_templates_that_cannot_be_filled_in_are_rejected(name: str, namespace: str) -> None:
    role = f"{PREFIX}provisioner-secret-"
    with pytest.raises(InvalidError, match="secret template"):
        secret_of({f"{role}name": name, f"{role}namespace": namespace}, "provisioner-", _claim(), "pvc-u-1")


# What a class may say of its volumes when their node is gone


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("keep", None),
        ("release-after:1m", 60),
        ("release-after:90s", 90),
        ("release-after:1h30m", 5400),
        ("release-after:7d", 7 * 86400),
        ("release-after:1d2h3m4s", 86400 + 7200 + 180 + 4),
    ],
)
def test_what_can_be_said(text: str, seconds: float | None) -> None:
    assert release_after({names.ON_NODE_GONE: text}) == seconds


def test_without_a_word_volumes_are_kept() -> None:
    assert release_after({}) is None


@pytest.mark.parametrize(
    "text",
    ["", "release", "release-after:", "release-after:1", "release-after:5x", "release-after:-1h", "release-after:1m1h",
     "release-after: 1h", "1h", "Keep", "release-after:59s", "release-after:0s", "release-after:9999999d"],
)  # fmt: skip
def test_anything_else_is_rejected(text: str) -> None:
    with pytest.raises(InvalidError, match=r"tonnage\.dev/on-node-gone"):
        release_after({names.ON_NODE_GONE: text})


def test_the_driver_never_sees_it_and_a_fault_in_it_is_the_classs() -> None:
    fine = {names.ON_NODE_GONE: "release-after:1h", names.ROLLBACK: "true", "erase": "zero"}
    assert parameters_of(_class(fine)) == {"erase": "zero"}
    with pytest.raises(InvalidError, match="the shortest time is 1m"):
        parameters_of(_class({names.ON_NODE_GONE: "release-after:1s"}))
    with pytest.raises(
        InvalidError, match=r"unknown parameter 'tonnage\.dev/on-node-lost': of those for the agent there are"
    ):
        parameters_of(_class({"tonnage.dev/on-node-lost": "keep"}))


def test_a_content_is_for_our_driver_only() -> None:
    claim = _claim(dataSourceRef={"apiGroup": "tonnage.dev", "kind": "Content", "name": "c"})
    with pytest.raises(InvalidError, match="driver d fills no volumes from a Content: use a class of tonnage's driver"):
        _plan(claim, _class(), _driver(pool=""))
    asked = filled(_plan(claim, _class()), FolderSpec("models"))
    assert asked.filled_from == "folder models"
    assert decode(asked.parameters[names.PARAM_CONTENT]) == FolderSpec("models")


def test_a_class_of_ours_fills_and_others_have_their_own_source() -> None:
    assert _plan(_claim(), _class({"source": "folder:models"})).filled_from == "folder models"
    assert _plan(_claim(), _class({"source": "dir:///models"})).filled_from == ""
    with pytest.raises(InvalidError, match="parameter source"):
        _plan(_claim(), _class({"source": "models"}))
    other = _plan(_claim(), _class({"source": "models"}), _driver(pool=""))
    assert (other.filled_from, other.parameters) == ("", {"source": "models"})


def test_no_class_names_the_content_itself() -> None:
    with pytest.raises(InvalidError, match=r"unknown parameter 'tonnage\.dev/content'"):
        _plan(_claim(), _class({names.PARAM_CONTENT: "{}"}))

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.makers import named

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
CLASSES, DRIVERS = "storage.k8s.io/storageclasses", "storage.k8s.io/csidrivers"
NODES, CAPACITIES = "storage.k8s.io/csinodes", "storage.k8s.io/csistoragecapacities"
ATTACHMENTS = "storage.k8s.io/volumeattachments"


def node(*drivers: Obj) -> Obj:
    return named(spec={"drivers": list(drivers)})


def attachment(**spec: Any) -> Obj:
    return named(spec={"attacher": "a.b", "nodeName": "n", "source": {"persistentVolumeName": "pv"}} | spec)


D = {"name": "d", "nodeID": "n1", "topologyKeys": ["a/b"]}
CAPACITY = named(storageClassName="fast", capacity="1Gi", nodeTopology={"matchLabels": {"k": "v"}})


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param(CLASSES, named(provisioner="a.b", parameters={"pool": "x"}), id="class"),
        pytest.param(DRIVERS, named(spec={"attachRequired": False}), id="driver"),
        pytest.param(NODES, node(D), id="csi node"),
        pytest.param(CAPACITIES, CAPACITY, id="capacity"),
        pytest.param(CAPACITIES, CAPACITY | {"maximumVolumeSize": "-1"}, id="maximumVolumeSize is not looked at"),
        pytest.param(ATTACHMENTS, attachment(), id="attachment"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(CLASSES, named(), "provisioner: Required value", id="class without provisioner"),
        pytest.param(
            CLASSES,
            named(provisioner="p", reclaimPolicy="Recycle"),
            'reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain"',
            id="class that recycles",
        ),
        pytest.param(
            CLASSES,
            named(provisioner="p", volumeBindingMode="Soon"),
            'volumeBindingMode: Unsupported value: "Soon": supported values: "Immediate", "WaitForFirstConsumer"',
            id="unknown binding mode",
        ),
        pytest.param(
            CLASSES,
            named(provisioner="p", parameters={str(i): "" for i in range(513)}),
            "parameters: Too long: may not be more than 512 bytes",
            id="too many parameters",
        ),
        pytest.param(
            CLASSES,
            named(provisioner="p", allowedTopologies=[{"matchLabelExpressions": [{"key": "k"}]}]),
            "allowedTopologies[0].matchLabelExpressions[0].values: Required value",
            id="topology without values",
        ),
        pytest.param(
            DRIVERS,
            named(spec={"volumeLifecycleModes": ["Eternal"]}),
            'spec.volumeLifecycleModes: Unsupported value: "Eternal": supported values: "Persistent", "Ephemeral"',
            id="unknown life cycle",
        ),
        pytest.param(
            DRIVERS,
            named(spec={"tokenRequests": [{"audience": "a"}, {"audience": "a"}]}),
            'spec.tokenRequests[1].audience: Duplicate value: "a"',
            id="audience twice",
        ),
        pytest.param(NODES, node(D, D), 'spec.drivers[1].name: Duplicate value: "d"', id="driver twice on a node"),
        pytest.param(NODES, node({"name": "d"}), "spec.drivers[0].nodeID: Required value", id="driver without node id"),
        pytest.param(
            NODES,
            node(D | {"allocatable": {"count": -1}}),
            "spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
            id="negative count",
        ),
        pytest.param(
            CAPACITIES,
            CAPACITY | {"capacity": "-1Gi"},
            'capacity: Invalid value: "-1Gi": must be greater than or equal to 0',
            id="negative capacity",
        ),
        pytest.param(
            ATTACHMENTS,
            attachment(source={}),
            "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            id="attachment of nothing",
        ),
    ],
)
def test_wrong_ones_are_told_what_is_wrong(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    assert said in faults(key, wrong)


@pytest.mark.parametrize(
    ("key", "new", "old", "said"),
    [
        pytest.param(
            CLASSES,
            named(provisioner="b"),
            named(provisioner="a"),
            'provisioner: Invalid value: "b": field is immutable',
            id="class's provisioner",
        ),
        pytest.param(
            CLASSES,
            named(provisioner="a", volumeBindingMode="WaitForFirstConsumer"),
            named(provisioner="a"),
            'volumeBindingMode: Invalid value: "WaitForFirstConsumer": field is immutable',
            id="class's binding mode",
        ),
        pytest.param(
            DRIVERS,
            named(spec={"attachRequired": False}),
            named(spec={}),
            "spec.attachedRequired: Invalid value: false: field is immutable",
            id="driver's attachRequired",
        ),
        pytest.param(NODES, node(D | {"nodeID": "n2"}), node(D), "spec.drivers: Invalid value", id="driver's node id"),
        pytest.param(
            CAPACITIES,
            CAPACITY | {"storageClassName": "slow"},
            CAPACITY,
            'storageClassName: Invalid value: "slow": field is immutable',
            id="capacity's class",
        ),
        pytest.param(
            CAPACITIES,
            CAPACITY | {"nodeTopology": {}},
            CAPACITY,
            "nodeTopology: Invalid value: {}: field is immutable",
            id="capacity's topology",
        ),
        pytest.param(
            ATTACHMENTS, attachment(nodeName="m"), attachment(), "spec: Invalid value", id="attachment's node"
        ),
    ],
)
def test_what_may_not_change(faults: Faults, key: str, new: Obj, old: Obj, said: str) -> None:
    assert any(fault.startswith(said) for fault in faults(key, new, old))


@pytest.mark.parametrize(
    ("key", "new", "old"),
    [
        pytest.param(
            CLASSES,
            named(provisioner="a", allowVolumeExpansion=True),
            named(provisioner="a", mountOptions=["x"]),
            id="class's expansion and options",
        ),
        pytest.param(DRIVERS, named(spec={"storageCapacity": True}), named(spec={}), id="driver's storageCapacity"),
        pytest.param(NODES, node(D | {"allocatable": {"count": 3}}), node(D), id="driver's count"),
        pytest.param(NODES, node(D | {"name": "e"}), node(D), id="another driver"),
        pytest.param(CAPACITIES, CAPACITY | {"capacity": "2Gi"}, CAPACITY, id="capacity"),
    ],
)
def test_what_may_change(faults: Faults, key: str, new: Obj, old: Obj) -> None:
    assert faults(key, new, old) == []

"""Which nodes a pod fits, and where it may stay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.pods import PodSpec
from tonnage.provisioning.claims.node_fit import Suitability

TAINT = {"key": "only", "value": "x", "effect": "NoSchedule"}
EVICTS = {"key": "away", "effect": "NoExecute"}
DISK = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme"]}]}
ON_NVME = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [DISK]}}}


def _node(*taints: dict[str, str], cordoned: bool = False, **labels: str) -> Node:
    spec = {"taints": list(taints), "unschedulable": cordoned}
    return msgspec.convert({"metadata": {"name": "n", "labels": labels}, "spec": spec}, Node)


@pytest.mark.parametrize(
    ("pod", "node", "fits"),
    [
        ({}, _node(), (True, True)),
        ({"nodeName": "n"}, _node(), (True, True)),
        ({"nodeName": "other"}, _node(), (False, False)),
        ({"nodeSelector": {"disk": "nvme"}}, _node(disk="nvme"), (True, True)),
        ({"nodeSelector": {"disk": "nvme"}}, _node(), (False, False)),
        ({"affinity": ON_NVME}, _node(disk="nvme"), (True, True)),
        ({"affinity": ON_NVME}, _node(disk="sata"), (False, False)),
        ({}, _node(TAINT), (False, True)),
        ({}, _node(EVICTS), (False, False)),
        ({"tolerations": [{"operator": "Exists"}]}, _node(TAINT, EVICTS), (True, True)),
        ({}, _node(cordoned=True), (False, True)),
    ],
)
def test_fit(pod: dict[str, Any], node: Node, fits: tuple[bool, bool]) -> None:
    assert Suitability(msgspec.convert({"containers": [], **pod}, PodSpec)).of(node) == fits

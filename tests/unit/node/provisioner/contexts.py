"""A NodeContext of caches in memory, for parts of the provisioner that need no agent."""

from __future__ import annotations

from typing import Any, cast

from tonnage.kubernetes.client.cache import Cache
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.provisioner.state import ClaimTable
from tonnage.provisioning.capacity.ledger import Ledger
from tonnage.provisioning.claims.node_scope import DriverSet, NodeScope
from tonnage_box.testing.clock import ManualClock

NODE = "node-1"


def context(**parts: Any) -> NodeContext:
    """Return a context of node-1, empty but for these parts."""
    own: dict[str, Any] = {
        "client": None,
        "events": None,
        "clock": ManualClock(),
        "scope": NodeScope(NODE, "cluster-1"),
        "drivers": DriverSet(),
        "ledger": Ledger(),
        "readings": None,
        "claims": Cache(),
        "volumes": Cache(),
        "classes": Cache(),
        "attributes": None,
        "table": ClaimTable(),
        "deletions": None,
    }
    return NodeContext(**cast("Any", {**own, **parts}))

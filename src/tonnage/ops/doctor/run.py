"""All checks in order of dependency: the first fault is most often the cause of the others."""

from __future__ import annotations

from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.box.data_dir import DataFolder
from tonnage.kube.client import Client
from tonnage.node.config.node import NodeConfig
from tonnage.ops import cluster_snapshot
from tonnage.ops.doctor import (
    box,
    capacity,
    claims,
    installation,
    machine,
    node_labels,
    rbac,
    registration,
    storage_classes,
    tiers,
    volumes,
)
from tonnage.ops.doctor.finding import Finding


async def examine(client: Client, namespace: str, *, clock: Clock, node: NodeConfig | None = None) -> list[Finding]:
    """Look at the installation in that namespace, and at the machine as that node where one is given. May be repeated.

    Raises Unavailable without a connection, ApiError for an answer of the API server that makes no sense.
    """
    found = await cluster_snapshot.read(client, namespace, now=clock.time())
    findings = [*installation.check(found), *registration.check(found)]
    findings += await rbac.check(found, client)
    findings += await node_labels.check(found, client)
    findings += [
        *storage_classes.check(found),
        *capacity.check(found),
        *tiers.check(found),
        *claims.check(found),
        *volumes.check(found),
    ]
    if node is not None:
        findings += await machine.check(found, client, node, clock)
    return findings


async def examine_box(client: Client, data: DataFolder | None, *, clock: Clock) -> list[Finding]:
    """Look at a box: machine and process first, then its objects. data: its folder, None where that is not known.

    Raises Unavailable without a connection, ApiError for an answer of the API server that makes no sense.
    """
    found = await cluster_snapshot.read(client, names.SYSTEM_NAMESPACE, now=clock.time())
    found.is_box = True
    return [
        *await box.check(found, data),
        *registration.check(found),
        *storage_classes.check(found),
        *capacity.check(found),
        *claims.check(found),
        *volumes.check(found),
    ]

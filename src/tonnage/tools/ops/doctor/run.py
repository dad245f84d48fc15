"""All checks in order of dependency: the first fault is most often the cause of the others."""

from __future__ import annotations

from tonnage.base.aio.clock import Clock
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.client import Client
from tonnage.node.config.node import NodeConfig
from tonnage.tools.ops import cluster_snapshot
from tonnage.tools.ops.doctor import (
    box,
    capacity,
    claims,
    installation,
    machine,
    node_labels,
    rbac,
    registration,
    snapshots,
    storage_classes,
    volumes,
)
from tonnage.tools.ops.doctor.finding import Finding
from tonnage.tools.ops.local_box import LocalBox


async def examine(client: Client, namespace: str, *, clock: Clock, node: NodeConfig | None = None) -> list[Finding]:
    """Check the installation in that namespace, and the machine as that node where one is given. Idempotent.

    Raises: UnavailableError without a connection, ApiError for an invalid answer of the API server.
    """
    found = await cluster_snapshot.read(client, namespace, now=clock.time())
    findings = [*installation.check(found), *registration.check(found)]
    findings += await rbac.check(found, client)
    findings += await node_labels.check(found, client)
    findings += [
        *storage_classes.check(found),
        *capacity.check(found),
        *capacity.check_tiers(found),
        *claims.check(found),
        *volumes.check(found),
        *snapshots.check(found),
    ]
    if node is not None:
        findings += await machine.check(found, client, node, clock)
    return findings


async def examine_box(client: Client, found_box: LocalBox | None, *, clock: Clock) -> list[Finding]:
    """Check a box: machine and process first, then its objects. found_box: None if its data folder is not known.

    Raises: UnavailableError without a connection, ApiError for an invalid answer of the API server.
    """
    found = await cluster_snapshot.read(client, names.SYSTEM_NAMESPACE, now=clock.time())
    found.is_box = True
    return [
        *await box.check(found, found_box),
        *registration.check(found),
        *storage_classes.check(found),
        *capacity.check(found),
        *claims.check(found),
        *volumes.check(found),
        *snapshots.check(found),
    ]

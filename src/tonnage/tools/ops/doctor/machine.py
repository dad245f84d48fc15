"""Checks that run on the node itself: driver socket, pools, kernel and programs, orphans."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ApiNotFoundError, InvalidError, TonnageError, UnavailableError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.driver.registration import SUFFIX
from tonnage.csi.errors import CsiError
from tonnage.host.run import PATH
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import from_bytes, to_bytes
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import Client
from tonnage.node.capacity.poller import ask_capacity
from tonnage.node.config import preflight
from tonnage.node.config.node import NodeConfig
from tonnage.provisioning.capacity.object import object_name
from tonnage.provisioning.claims.node_scope import DriverInfo, attach
from tonnage.provisioning.claims.provisioning import fstype_of
from tonnage.storage.pools import needs
from tonnage.tools.ops import inventory
from tonnage.tools.ops.cluster_snapshot import PUBLISHED, View
from tonnage.tools.ops.doctor.finding import Finding, fail, few, ok, warn
from tonnage.tools.ops.orphans import Owner, Registry

SLACK = 64 << 20
"""Tolerance in bytes: other programs write to the disk too, and free bytes are read once a minute."""
PAUSES = (0.0, 1.0, 1.0, 3.0, 10.0, 20.0, 40.0)
"""Seconds before each new comparison of differing numbers: an agent reads the disk's free bytes once a minute."""


async def check(view: View, client: Client, config: NodeConfig, clock: Clock) -> list[Finding]:
    """The node of that configuration. Nothing is made or changed. Raises: UnavailableError without an API server."""
    found = [*await asyncio.to_thread(_configured, config), *_kernel(view, config)]
    registration = config.driver.registry
    if registration is not None and not (socket := registration / f"{config.driver.driver_name}{SUFFIX}").exists():
        text = f"{socket} does not exist: the kubelet cannot find the driver"
        todo = "start the agent; is --kubelet the kubelet's folder?"
        found.append(fail("driver", config.driver.node_name, text, todo))
    async with CsiClient(config.driver.endpoint) as csi:
        try:
            driver = await attach(csi, node=config.driver.node_name, started_ms=0, number=0)
        except (CsiError, TonnageError) as failure:
            text = f"its socket does not answer: {failure}"
            found.append(fail("driver", str(config.driver.endpoint), text, "see the agent's log"))
            return found
        found += _driver(config, driver)
        found += await _capacities(view, client, config, driver, clock)
    found += await _orphans(client, config, clock)
    return found


def _configured(config: NodeConfig) -> Iterator[Finding]:
    for item in preflight.check(config.driver):
        about = f"{item.what} of {config.driver.node_name}"
        if item.fault is not None:
            yield fail("node", about, item.text, "correct it; the agent opens a repaired pool by itself")
        elif item.warning:
            yield warn("node", about, item.text, "tonnage node --check says more")
        else:
            yield ok("node", about, item.text)


def _driver(config: NodeConfig, driver: DriverInfo) -> Iterator[Finding]:
    wanted = {config.driver.topology_key: names.label_value(config.driver.node_name)}
    about = config.driver.node_name
    if driver.name != config.driver.driver_name or driver.segment != wanted:
        text = f"{config.driver.endpoint} is driver {driver.name} in {dict(driver.segment)}, not in {wanted}"
        yield fail("driver", about, text, "another process has that socket: end it, and restart the agent")
    elif lacking := [p.name for p in config.driver.pools if p.name not in driver.pools]:
        text = f"the running driver has no pool {few(lacking)}, which its file has"
        yield warn("driver", about, text, "restart the agent; pods are not interrupted")
    else:
        yield ok("driver", about, f"its socket answers, with pools {few(driver.pools)}")


# Kernel and programs


def _kernel(view: View, config: NodeConfig) -> Iterator[Finding]:
    real = [pool for pool in config.driver.pools if pool.kind.is_real]
    if not real:
        return
    about = config.driver.node_name
    lacking = list(dict.fromkeys(lack for pool in real for lack in needs.lacking(pool)))
    checked = {tool.program for pool in real for tool in pool.kind.needs(pool).tools}
    wanted = {name for pool in real for name in pool.kind.formats}
    for storage_class in view.ours:
        with suppress(InvalidError):
            wanted.add(fstype_of(storage_class) or "")
    for name in sorted(filter(None, wanted)):
        if f"mkfs.{name}" not in checked and shutil.which(f"mkfs.{name}", path=PATH) is None:
            lacking.append(f"the program mkfs.{name}")
        if not knows(name):
            lacking.append(f"file system {name}: load module {name}")
    if lacking:
        yield fail("kernel", about, f"the node lacks {few(lacking, 9)}", "install or load it on the node")
    else:
        yield ok("kernel", about, f"it can make and mount {few(sorted(filter(None, wanted))) or 'what its pools need'}")


def knows(filesystem: str, *, listed: Path = Path("/proc/filesystems"), modules: Path = Path("/lib/modules")) -> bool:
    """Return whether the kernel can mount a file system, or may load its module.

    A container may not see the modules of its node: then it may.
    """
    words = {line.split()[-1] for line in listed.read_text().splitlines() if line.split()}
    folder = modules / os.uname().release
    return filesystem in words or not folder.is_dir() or any(folder.glob(f"kernel/fs/{filesystem}/*.ko*"))


# Numbers


async def _capacities(
    view: View, client: Client, config: NodeConfig, driver: DriverInfo, clock: Clock
) -> list[Finding]:
    """Compare published capacity with the pool's."""
    found: list[Finding] = []
    compared = 0
    for storage_class in view.ours:
        if not storage_class.allows(driver.segment) or driver.publishes_ahead(storage_class):
            continue
        finding = await _compare(view, client, config, driver, storage_class, clock)
        compared += 1
        if finding is not None:
            found.append(finding)
    if compared and not found:
        text = f"published capacity of {compared} classes equals that of the pools, less reservations"
        found.append(ok("published", config.driver.node_name, text))
    return found


async def _compare(
    view: View, client: Client, config: NodeConfig, driver: DriverInfo, storage_class: StorageClass, clock: Clock
) -> Finding | None:
    """Compare again while they differ: capacity is published with delay, and volumes come and go."""
    node, name = config.driver.node_name, storage_class.metadata.name
    about, object_ = f"{node}/{name}", object_name(driver.name, name, node)
    waiting = _waiting(view, node)
    published = has = 0
    for pause in PAUSES:
        await clock.sleep(pause)
        try:
            has = (await ask_capacity(driver, storage_class))[0].available  # as the agent asks
            published = to_bytes((await client.get(PUBLISHED, object_, config.agent.namespace)).capacity or "0")
        except CsiError as failure:
            return fail("published", about, f"GetCapacity failed: {failure.message}", "see the agent's log")
        except ApiNotFoundError:
            return None  # capacity.py tells
        if abs(published - has) <= SLACK or (published < has and waiting):
            return None
    text = f"published capacity {from_bytes(published)} differs from the pool's {from_bytes(has)}, for over a minute"
    todo = f"kubectl -n {config.agent.namespace} delete csistoragecapacity {object_}: a running agent recreates it"
    if published > has:
        return fail("published", about, f"{text}: pods are scheduled where they do not fit", todo)
    return warn("published", about, f"{text}: capacity is not used", todo)


def _waiting(view: View, node: str) -> bool:
    """Whether the node has reserved capacity for claims without volumes, which lowers published capacity."""
    label = names.label_value(node)
    return any(c.metadata.labels.get(names.NODE_LABEL) == label and not c.spec.volume_name for c in view.our_claims)


async def _orphans(client: Client, config: NodeConfig, clock: Clock) -> list[Finding]:
    about = config.driver.node_name
    source = inventory.Served([config.driver.endpoint], config.driver.pools, node=about)
    registry = Registry(client, clock)
    try:
        await registry.look()
        contents = await source.contents()
        nobodys = [v.id for v in (*contents.volumes, *contents.snapshots) if await registry.owner(v) is Owner.NOBODY]
    except UnavailableError:
        raise
    except (CsiError, TonnageError) as failure:
        text = f"cannot find the owners of volumes: {failure}"
        return [warn("orphans", about, text, "run it with an administrator's kubeconfig")]
    if nobodys:
        text = f"{len(nobodys)} orphans, which are not deleted: {few(nobodys)}"
        return [warn("orphans", about, text, "tonnage volumes orphans on the node; then adopt or purge them")]
    return [ok("orphans", about, f"each of {len(contents.volumes)} volumes has an owner")]

"""`tonnage demo`: the main features on a temporary cluster, with a check of every line."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from tonnage.base.errors import ApiError
from tonnage.base.observe import log as logs
from tonnage.host.filesystem import may_grow_ext4
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import (
    CAPACITIES,
    CLAIMS,
    NODES,
    PODS,
    SNAPSHOT_CONTENTS,
    SNAPSHOTS,
    STORAGE_CLASSES,
    VOLUMES,
)
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.api.snapshot import VolumeSnapshot
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.kubernetes.client.kubeconfig import load
from tonnage.provisioning.claims.growth import awaits_node
from tonnage.tools.cli.output import Output
from tonnage_box.api.wait import until, until_gone
from tonnage_box.bootstrap import storage_class
from tonnage_box.cleanup import leftovers, remove
from tonnage_box.cli.workloads import claim_of, inline, pod_of_claim, pod_with
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import BoxPlan, plan

NAMESPACE = "default"
POOL_SIZE = "30716Mi"
POOL = "image,name=scratch,sparse=yes,overcommit=yes"  # the story is the same on a disk that has less
NODE_COUNT = 3
_WAIT = 60.0
CLASS = "demo-grows"
SIZES = "while sleep 0.1; do echo $(df -B1 --output=size /data | tail -1) bytes; done"
DF = "df -B1 --output=avail,target /data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--pool", help="KIND[:WHERE][,key=value...] (default: image files, sparse)")
    parser.add_argument("--runtime", choices=("bwrap", "none"), default="bwrap", help="how containers run")
    parser.add_argument("--keep", action="store_true", help="do not delete the data folder; the cluster ends anyway")


def run(options: argparse.Namespace) -> int:
    """Run the demo; 0 only if every check passed."""
    logs.setup("error")
    base = "/var/tmp" if os.path.isdir("/var/tmp") else tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="tonnage-demo-", dir=base, ignore_cleanup_errors=True) as folder:
        data = DataFolder(Path(folder) / "data")
        settings = Settings(nodes=NODE_COUNT, pools=[options.pool or POOL], runtime=options.runtime)
        story = Story(Output(), data, plan(data, settings, pool_size=POOL_SIZE))
        try:
            return asyncio.run(story.tell())
        finally:
            remove(data)


class Story:
    """The steps, in order. held: False after the first failed check."""

    def __init__(self, out: Output, data: DataFolder, plan_: BoxPlan) -> None:
        self.out, self.data, self.plan = out, data, plan_
        self.real = plan_.settings.runtime != "none"
        self.held = True
        self.client: Client

    async def tell(self) -> int:
        """Start a cluster, run all steps, stop it."""
        began = time.monotonic()
        self.out.title("tonnage: a cluster on this machine, and pods with local volumes")
        box = Box(self.data, self.plan, progress=self.out.step, waiting=self.out.waits)
        try:
            await box.start()
            self.client = Client(HttpTransport(load(self.data.kubeconfig)))
            await self._chapters()
            await self.client.close()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await box.stop()
        await self._nothing_left()
        seconds = time.monotonic() - began
        self.out.title(f"All checks passed, in {seconds:.1f} s." if self.held else "Some checks above FAILED.")
        if self.held:
            self.out.line("Next: `.venv/bin/tonnage up --nodes 3`, and use the kubectl that you have.")
        return 0 if self.held else 1

    async def _chapters(self) -> None:
        for chapter in (
            self._empty_nodes, self._own_disk, self._capacity_counts, self._another_node, self._too_large,
            self._two_volumes, self._full_disk, self._inline, self._growth, self._snapshot, self._all_back,
        ):  # fmt: skip
            try:
                await chapter()
            except (TimeoutError, ApiError) as failure:
                self._check(f"{chapter.__name__.strip('_').replace('_', ' ')} ended well", False, str(failure))

    def _check(self, text: str, held: object, detail: str = "") -> None:
        self.held = self.held and bool(held)
        self.out.check(text, held=bool(held), detail=detail)

    # ---- chapters

    async def _empty_nodes(self) -> None:
        self.out.title("1. Every node publishes its capacity")
        capacity = await self._capacities()
        self.out.table(["NODE", "CLASS", "CAPACITY"], [[n, names.SCRATCH_CLASS, c] for n, c in capacity.items()])
        nodes = (await self.client.list(NODES)).items
        self._check(f"{len(nodes)} nodes publish {POOL_SIZE} each", list(capacity.values()) == [POOL_SIZE] * NODE_COUNT)

    async def _own_disk(self) -> None:
        self.out.title("2. A pod requests 4Gi: a generic ephemeral volume")
        began = time.monotonic()
        pod = await self._running(pod_with("app", {"data": "4Gi"}, f"{DF}; sleep 100000"))
        took = time.monotonic() - began
        self._check("pod app is Running", True, f"on {pod.spec.node_name}, {took * 1000:.0f} ms after its creation")
        claim = await self.client.get(CLAIMS, "app-data", NAMESPACE)
        self._check("its claim app-data is Bound", claim.status.phase == "Bound", claim.spec.volume_name)
        owner = claim.metadata.owner_references[:1]
        self._check(
            "the claim belongs to the pod", claim.metadata.controller_uid() == pod.metadata.uid,
            f"{owner[0].kind} {owner[0].name}" if owner else "no owner",
        )  # fmt: skip
        await self._usable("app", "4Gi")

    async def _capacity_counts(self) -> None:
        self.out.title("3. That node publishes 4Gi less, the others are unchanged")
        node = (await self.client.get(PODS, "app", NAMESPACE)).spec.node_name
        capacity = await self._settled({node: "26620Mi"})
        self.out.table(["NODE", "CAPACITY", ""], [[n, c, "app" if n == node else ""] for n, c in capacity.items()])
        rest = [c for n, c in capacity.items() if n != node]
        self._check("30716Mi - 4Gi = 26620Mi", capacity.get(node) == "26620Mi" and rest == [POOL_SIZE] * len(rest))

    async def _another_node(self) -> None:
        self.out.title("4. A pod with 29Gi does not fit there any more: it is scheduled to another node")
        first = (await self.client.get(PODS, "app", NAMESPACE)).spec.node_name
        pod = await self._running(pod_with("big", {"data": "29Gi"}))
        self._check(f"pod big is Running, not on {first}", pod.spec.node_name != first, f"on {pod.spec.node_name}")

    async def _too_large(self) -> None:
        self.out.title("5. A pod with 40Gi fits on no node: it stays Pending, with the reason")
        message = await self._unschedulable(pod_with("huge", {"data": "40Gi"}))
        self._check("pod huge is Pending", "did not have enough free storage" in message, message)

    async def _two_volumes(self) -> None:
        self.out.title("6. Two volumes of 20Gi: each fits, both together fit on no node; the pod gets both or none")
        message = await self._unschedulable(pod_with("pair", {"one": "20Gi", "two": "20Gi"}))
        self._check("pod pair is Pending", "did not have enough free storage" in message, message)
        claims = [await self.client.get(CLAIMS, f"pair-{v}", NAMESPACE) for v in ("one", "two")]
        self._check("it has no volume meanwhile", not any(c.spec.volume_name for c in claims))

    async def _full_disk(self) -> None:
        self.out.title("7. A size is a limit: writing 100 MiB into 64Mi")
        if not self.real:
            self.out.line("    (skipped: --runtime none runs no programs)")
            return
        command = "dd if=/dev/zero of=/data/file bs=1M count=100"
        await self._make(pod_with("writer", {"data": "64Mi"}, command, restart="Never"))
        pod = await self._pod("writer", lambda p: p.terminated)
        shown = await self._log_line("writer", "No space")
        self._check('dd ends with "No space left on device"', shown.endswith("No space left on device"), shown)
        self._check("the pod is Failed, by its program's exit code", pod.status.phase == "Failed")

    async def _inline(self) -> None:
        self.out.title("8. An inline volume: no claim, just a size in the pod's spec")
        pod = await self._running(inline("inline", "1Gi", f"{DF}; sleep 100000"))
        self._check("pod inline is Running", True, f"on {pod.spec.node_name}")
        await self._usable("inline", "1Gi")

    async def _growth(self) -> None:
        self.out.title("9. A claim grows from 1Gi to 2Gi while its pod runs")
        # xfs and btrfs grow while they are mounted, ext4 only for a process with CAP_SYS_RESOURCE.
        is_xfs = self.real and shutil.which("mkfs.xfs") is not None
        parameters = {names.CSI_FSTYPE: "xfs"} if is_xfs else {}
        body = storage_class(names.DRIVER, parameters=parameters) | {"metadata": {"name": CLASS}}
        await self.client.create(STORAGE_CLASSES, body)
        await self.client.create(CLAIMS, claim_of("photos", "1Gi", CLASS), NAMESPACE)
        await self._running(pod_of_claim("album", "photos", f"echo first > /data/photo; {SIZES}"))
        before = await self._size("album")
        began = time.monotonic()
        wanted = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
        await self.client.patch(CLAIMS, "photos", wanted, NAMESPACE)
        claim = await until(self.client, CLAIMS, "photos", _has_grown, namespace=NAMESPACE, seconds=_WAIT)
        took = f"{(time.monotonic() - began) * 1000:.0f} ms after the patch"
        grows = not self.real or is_xfs or may_grow_ext4()
        has = claim.status.capacity.get("storage")
        self._check(
            "the claim has 2Gi" if grows else "it waits for its next mount", has == ("2Gi" if grows else "1Gi"), took
        )
        if self.real and grows:
            after = await self._size("album", above=before)
            self._check("df in the pod shows it", after > before, f"{before:,} bytes before, {after:,} bytes now")

    async def _snapshot(self) -> None:
        self.out.title("10. A snapshot of that claim, and a larger volume made from it")
        source = {"spec": {"source": {"persistentVolumeClaimName": "photos"}}}
        await self.client.create(SNAPSHOTS, {"metadata": {"name": "monday"}, **source}, NAMESPACE)
        made = await until(self.client, SNAPSHOTS, "monday", _is_ready, namespace=NAMESPACE, seconds=_WAIT)
        self._check("snapshot monday is ready", True, f"of {made.status.restore_size}")
        await self.client.create(CLAIMS, claim_of("restored", "3Gi", CLASS, snapshot="monday"), NAMESPACE)
        first = (await self.client.get(PODS, "album", NAMESPACE)).spec.node_name
        pod = await self._running(pod_of_claim("reader", "restored", f"cat /data/photo; {SIZES}"))
        self._check("pod reader is Running where the snapshot is", pod.spec.node_name == first, f"on {first}")
        if self.real:
            self._check("it reads what was written before", await self._log_line("reader", "first") == "first")

    async def _all_back(self) -> None:
        self.out.title("11. The pods are deleted, and all capacity is free again")
        for pod in (await self.client.list(PODS, NAMESPACE)).items:
            await self.client.delete(PODS, pod.metadata.name, NAMESPACE, grace_seconds=1)
        for name in ("photos", "restored"):
            await self.client.delete(CLAIMS, name, NAMESPACE)
        await self.client.delete(SNAPSHOTS, "monday", NAMESPACE)
        await until_gone(self.client, SNAPSHOT_CONTENTS, seconds=_WAIT)
        await until_gone(self.client, PODS, seconds=_WAIT)
        await until_gone(self.client, CLAIMS, seconds=_WAIT)
        await until_gone(self.client, VOLUMES, seconds=_WAIT)
        self._check("no pod, no claim, no volume is left", True)
        capacity = await self._settled({n.metadata.name: POOL_SIZE for n in (await self.client.list(NODES)).items})
        self.out.table(["NODE", "CAPACITY"], [[n, c] for n, c in capacity.items()])
        self._check(f"every node has {POOL_SIZE} again", set(capacity.values()) == {POOL_SIZE})

    async def _nothing_left(self) -> None:
        left = leftovers(self.data)
        self._check("no mount and no loop device is left on the machine", not left, ", ".join(left))

    # ---- looking

    async def _make(self, pod: dict[str, object]) -> str:
        """Create a pod and return its name."""
        return (await self.client.create(PODS, pod, NAMESPACE)).metadata.name

    async def _pod(self, name: str, holds: object) -> Pod:
        return await until(self.client, PODS, name, holds, namespace=NAMESPACE, seconds=_WAIT)  # type: ignore[arg-type]

    async def _running(self, body: dict[str, object]) -> Pod:
        name = await self._make(body)
        with self.out.waiting(f"waiting for pod {name}"):
            return await self._pod(name, lambda p: p.status.phase == "Running" and _condition(p, "Ready") is not None)

    async def _unschedulable(self, body: dict[str, object]) -> str:
        name = await self._make(body)
        with self.out.waiting(f"waiting for the condition of pod {name}"):
            pod = await self._pod(name, lambda p: "enough free storage" in (_condition(p, "PodScheduled") or ""))
        return _condition(pod, "PodScheduled") or ""

    async def _usable(self, pod: str, size: str) -> None:
        """Check that df in the pod shows the requested size, and hardly more."""
        if not self.real:
            return
        shown = await self._log_line(pod, "/data")
        available, wanted = int(shown.split()[0]), to_bytes(size)
        held = wanted <= available <= wanted * 1.02
        self._check(f"df in the pod: {size} can be written", held, f"{available:,} bytes; {size} are {wanted:,}")

    async def _size(self, pod: str, *, above: int = 0) -> int:
        """The bytes that a pod's program prints again and again, 0 without programs; waits for more than `above`."""
        deadline = time.monotonic() + _WAIT
        size = 0
        while self.real and size <= above and time.monotonic() < deadline:
            size = int((await self._log_line(pod, " bytes")).split()[0])
        return size

    async def _log_line(self, pod: str, word: str) -> str:
        """The last log line of a pod with that word in it; waits for it."""
        path = f"{PODS.path(NAMESPACE, pod)}/log"
        deadline = time.monotonic() + _WAIT
        while time.monotonic() < deadline:
            lines = (await self.client.read(path)).decode().splitlines()
            if found := [line for line in lines if word in line]:
                return found[-1]
            await asyncio.sleep(0.05)
        return f"no line with {word!r} in the log"

    async def _capacities(self) -> dict[str, str]:
        """Node -> published capacity of the default class."""
        found = {}
        for item in (await self.client.list(CAPACITIES)).items:
            if item.storage_class_name == names.SCRATCH_CLASS and item.node_topology is not None:
                found[item.node_topology.match_labels.get(names.TOPOLOGY_NODE, "?")] = item.capacity or "0"
        return dict(sorted(found.items()))

    async def _settled(self, wanted: dict[str, str]) -> dict[str, str]:
        """The published capacities as soon as they are as expected, or after the timeout as they are."""
        deadline = time.monotonic() + 15
        while True:
            found = await self._capacities()
            held = all(to_bytes(found.get(n, "0")) == to_bytes(c) for n, c in wanted.items())
            if held or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.05)


def _has_grown(claim: PersistentVolumeClaim) -> bool:
    """Whether the volume has its size; a file system that cannot grow while mounted counts too."""
    return claim.status.capacity.get("storage") == "2Gi" or awaits_node(claim)


def _is_ready(snapshot: VolumeSnapshot) -> bool:
    return snapshot.status.ready_to_use is True


def _condition(pod: Pod, type_: str) -> str | None:
    """The message of a condition; of Ready only when it is True."""
    for condition in pod.status.conditions:
        if condition.type == type_ and (type_ != "Ready" or condition.status == "True"):
            return condition.message
    return None

"""Mounts and unmounts FlexVolumes: each is a volume of the driver, inline or of a PersistentVolume.

An inline one ends with its unmount. A PersistentVolume that was made for a claim names its volume, which is never made
here. That of another one is named after the uid of that object, so another object of the same name never gets its data;
with the reclaim policy Delete, the object first gets our finalizer, so that the reclaim controller deletes the volume
by the policy of that moment. Unmount needs nothing but the record that mount wrote first.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import msgspec

from tonnage.base.aio.tasks import KeyedLocks
from tonnage.base.errors import ApiError, InvalidError, TonnageError, host_errors
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.host import mount
from tonnage.host.descriptor import closing
from tonnage.kubernetes.api import names, quantity
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.kinds import NAMESPACES, VOLUMES
from tonnage.kubernetes.api.matching import driver_volume
from tonnage.kubernetes.client.client import Client
from tonnage.node.flexvolume.protocol import MOUNT, FlexCall, FlexOptions, FlexTarget, parse_options
from tonnage.provisioning.claims.bind import change, find

log = logging.getLogger(__name__)
MOST = 10
"""Maximum number of volumes of vanished pods that one collection deletes."""


class FlexRecord(msgspec.Struct, frozen=True):
    """A mounted FlexVolume. volume: its id, or the handle of an inline one."""

    volume: str
    target: str
    inline: bool


class FlexMounts:
    """FlexVolumes of a node.

    driver: the CSI driver. state: its folder, below the kubelet's. changed: called when a volume was made.
    """

    def __init__(
        self,
        driver: CsiClient,
        client: Client,
        node: str,
        *,
        kubelet: Path,
        state: Path,
        changed: Callable[[], None],
    ) -> None:
        self._driver, self._client, self._node, self._kubelet = driver, client, node, kubelet
        self._state, self._changed = state / "flexvolume", changed
        self._locks = KeyedLocks()
        self._cluster = ""

    async def serve(self, call: FlexCall) -> None:
        """Do what a call asks. Idempotent. Raises: as the driver's calls, InvalidError, ApiError, HostError."""
        async with self._locks.hold(str(call.target.path)):
            if call.command == MOUNT:
                await self._mount(call.target, parse_options(call))
            else:
                await self._unmount(call.target.path)

    async def _mount(self, target: FlexTarget, options: FlexOptions) -> None:
        volume = await self._persistent(target.driver, options)
        if volume is None:
            await self._mount_inline(target, options)
        else:
            await self._mount_persistent(target, options, volume)

    async def _persistent(self, driver: str, options: FlexOptions) -> PersistentVolume | None:
        """The PersistentVolume of the mount, None for an inline volume.

        The kubelet passes only a name. An author may choose any name for an inline volume, so one counts as that of a
        PersistentVolume only where a claim of the pod's own namespace has it.
        """
        found = await find(self._client, VOLUMES, options.volume)
        if found is None or found.spec.flex_volume is None or found.spec.flex_volume.driver != driver:
            return None
        ref = found.spec.claim_ref
        return found if ref is not None and ref.namespace == options.pod_namespace else None

    async def _mount_inline(self, target: FlexTarget, options: FlexOptions) -> None:
        if not options.size:
            raise InvalidError('options: "size" is missing: an inline volume needs a size, such as "4Gi"')
        context = {
            **_safe(options),
            "size": str(options.size),
            names.CSI_EPHEMERAL: "true",
            names.CSI_POD_NAME: options.pod_name,
            names.CSI_POD_NAMESPACE: options.pod_namespace,
            names.CSI_POD_UID: options.pod_uid,
        }
        handle = _handle(target.path)
        self._write(FlexRecord(handle, str(target.path), inline=True))
        await self._driver.publish(
            handle, target.path, _capability(options), readonly=options.read_only, context=context
        )

    async def _mount_persistent(self, target: FlexTarget, options: FlexOptions, volume: PersistentVolume) -> None:
        capability, claimed = _capability(options), driver_volume(volume)
        handle = claimed[1] if claimed is not None else await self._create(options, volume, capability)
        async with self._locks.hold(handle):
            self._write(FlexRecord(handle, str(target.path), inline=False))
            staging = self._staging(handle)
            with host_errors(f"cannot make {staging}"):
                staging.mkdir(mode=0o700, exist_ok=True)
            await self._driver.stage(handle, staging, capability)
            await self._driver.publish(handle, target.path, capability, staging=staging, readonly=options.read_only)

    async def _create(self, options: FlexOptions, volume: PersistentVolume, capability: VolumeCapability) -> str:
        """Find or create the volume of a PersistentVolume that a person wrote; return its id."""
        await self._hold(volume)
        size = options.size or quantity.to_bytes(volume.spec.capacity.get("storage", "0"))
        parameters = {**_safe(options), names.PARAM_CLUSTER: await self._cluster_uid()}
        name = names.flex_volume(volume.metadata.uid)
        created = await self._driver.create_volume(name, size, [capability], parameters=parameters)
        self._changed()
        return created.id

    async def _cluster_uid(self) -> str:
        self._cluster = self._cluster or (await self._client.get(NAMESPACES, "kube-system")).metadata.uid
        return self._cluster

    async def _hold(self, volume: PersistentVolume) -> None:
        """Make a PersistentVolume of this node one that the reclaim controller deletes, if its policy is Delete.

        Not one that several nodes may mount: each has its own volume, and one label cannot name them all.
        """
        label = names.label_value(self._node)

        def held(now: PersistentVolume) -> dict[str, object] | None:
            meta = now.metadata
            has = names.PROVISIONER_FINALIZER in meta.finalizers
            if now.spec.persistent_volume_reclaim_policy != "Delete" or (meta.deleting and not has):
                return None
            if has and meta.labels.get(names.NODE_LABEL) == label and names.PROVISIONED_BY in meta.annotations:
                return None
            provisioner = meta.annotations.get(names.PROVISIONED_BY, names.FLEX_COUNTED)  # or that of localflex
            body = {
                "labels": {names.NODE_LABEL: label},
                "annotations": {names.PROVISIONED_BY: provisioner},
                "finalizers": meta.finalizers if has else [*meta.finalizers, names.PROVISIONER_FINALIZER],
            }
            return {"metadata": body}

        if not _is_only_on(volume, self._node):
            return
        try:
            await change(self._client, VOLUMES, volume, held)
        except ApiError as failure:
            if failure.code != HTTPStatus.FORBIDDEN:
                raise
            log.warning(
                "persistentvolume %s: its volume stays when it is deleted: %s; apply the manifests of this version",
                volume.metadata.name,
                failure,
            )

    async def _unmount(self, target: Path) -> None:
        record = self._read(self._record(target))
        if record is None or record.inline:
            await self._driver.unpublish(_handle(target), target)
        else:
            async with self._locks.hold(record.volume):
                await self._driver.unpublish(record.volume, target)
                if not any(other.volume == record.volume and other != record for other in self._records()):
                    await self._driver.unstage(record.volume, self._staging(record.volume))
                    with host_errors(f"cannot remove the staging of {record.volume}"), suppress(FileNotFoundError):
                        os.rmdir(self._staging(record.volume))
        with host_errors(f"cannot remove the record of {target}"), suppress(FileNotFoundError):
            self._record(target).unlink()  # last: until here a repeated call does all of it again

    async def collect(self) -> None:
        """Unmount volumes of pods that the kubelet no longer knows: it removes a pod's folder after its last unmount.

        A volume that fails is left for the next time. Does nothing where many would go: then it is more likely that the
        kubelet's folder is not what it was. Raises: HostError.
        """
        gone = [record for record in self._records() if not self._is_known(record.target)]
        if len(gone) > MOST:
            log.warning("FlexVolumes of vanished pods are left alone, too many count=%d most=%d", len(gone), MOST)
            return
        for record in gone:
            try:
                async with self._locks.hold(record.target):
                    await self._unmount(Path(record.target))
                log.warning("FlexVolume of a vanished pod unmounted volume=%s", record.volume)
            except TonnageError as failure:
                log.warning("FlexVolume of a vanished pod is left volume=%s error=%s", record.volume, failure)

    def _is_known(self, target: str) -> bool:
        pod = Path(target).parents[2]
        return pod.is_dir() or not pod.parent.is_dir() or mount.is_mount(target)

    # Records

    def _record(self, target: Path) -> Path:
        return self._state / f"{_digest(str(target))}.json"

    def _staging(self, volume: str) -> Path:
        return Path(os.path.realpath(self._state)) / _digest(volume)

    def _write(self, record: FlexRecord) -> None:
        path = self._record(Path(record.target))
        with host_errors(f"cannot write {path}"):
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            new, flags = path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing(os.open(new, flags, 0o600)) as fd:
                os.write(fd, msgspec.json.encode(record))
                os.fsync(fd)
            os.rename(new, path)

    def _read(self, path: Path) -> FlexRecord | None:
        """A record, None for none. Raises: InvalidError for a damaged one, which is left alone."""
        with host_errors(f"cannot read {path}"):
            try:
                return msgspec.json.decode(path.read_bytes(), type=FlexRecord)
            except FileNotFoundError:
                return None
            except msgspec.MsgspecError as failure:
                raise InvalidError(
                    f"{path}: damaged record of a FlexVolume ({failure}); unmount the volume by hand and remove it"
                ) from failure

    def _records(self) -> list[FlexRecord]:
        """All records that can be read."""
        found = []
        for path in sorted(self._state.glob("*.json")):
            try:
                record = self._read(path)
            except TonnageError as failure:
                log.error("record of a FlexVolume skipped error=%s", failure)
                continue
            if record is not None:
                found.append(record)
        return found


def _is_only_on(volume: PersistentVolume, node: str) -> bool:
    """Return whether the affinity of a PV names this node and no other, as the policies of agents require."""
    affinity = volume.spec.node_affinity
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else []
    return len(terms) == 1 and any(
        one.key in (names.TOPOLOGY_NODE, names.HOSTNAME_LABEL)
        and one.operator == "In"
        and one.values in ([node], [names.label_value(node)])
        for one in terms[0].match_expressions
    )


def _safe(options: FlexOptions) -> dict[str, str]:
    """The author's parameters, without keys that only an orchestrator may give. Raises: InvalidError."""
    for key in options.parameters:
        if key.startswith((names.CSI_PREFIX, names.PARAMETER_PREFIX)):
            raise InvalidError(f"option {key[:60]!r} is reserved")
    return dict(options.parameters)


def _capability(options: FlexOptions) -> VolumeCapability:
    return VolumeCapability(fstype=options.fs_type)


def _handle(target: Path) -> str:
    """The handle of the inline volume at a path, which has the pod's uid and the volume's name."""
    pod, volume = target.parents[2].name, target.name
    return f"flex-inline-{_digest(f'{pod}/{volume}')}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:40]

"""Volume manager: finds, mounts and unmounts all volumes of a pod, in order (pkg/volume/csi).

Called by the pod workers. It calls drivers for CSI volumes and writes built-in volumes itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tonnage.base.errors import ApiError, NotFoundError, PreconditionError, TonnageError, UnsupportedError
from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import (
    CSIPersistentVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    SecretReference,
)
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, VOLUMES
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.pods import Pod, Volume, claim_name
from tonnage.kubernetes.api.selectors import node_matcher
from tonnage.kubernetes.api.storage import CSIDriver, CSIDriverSpec
from tonnage.kubernetes.client.client import Client
from tonnage.provisioning.claims.growth import awaits_node
from tonnage_box.kubelet.containers.paths import IMAGE, Paths
from tonnage_box.kubelet.containers.runtime import Mounted
from tonnage_box.kubelet.folder import make_folder, remove_empty, remove_tree
from tonnage_box.kubelet.volumes import fsgroup
from tonnage_box.kubelet.volumes.attachments import Attachments
from tonnage_box.kubelet.volumes.builtin_volumes import FileVolumes, host_path
from tonnage_box.kubelet.volumes.csi_volumes import CsiMounts, CsiVolume, MountError
from tonnage_box.kubelet.volumes.expansion import Growing
from tonnage_box.kubelet.volumes.flex_volumes import FlexVolume, FlexVolumes
from tonnage_box.kubelet.volumes.plugins import RegisteredDrivers
from tonnage_box.kubelet.volumes.service_tokens import ServiceTokens
from tonnage_box.kubelet.volumes.sources import ObjectSources
from tonnage_box.kubelet.volumes.vol_data import EPHEMERAL, PERSISTENT

log = logging.getLogger(__name__)


BLOCK = "Block"
EMPTY: Mapping[str, str] = {}


@dataclass(frozen=True)
class Bound:
    """The PV that a volume of a pod is bound to."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume
    read_only: bool

    @property
    def block(self) -> bool:
        """Whether it is raw block."""
        return self.volume.spec.volume_mode == BLOCK


class ClaimError(PreconditionError):
    """A claim that the pod cannot use. waiting: others may change that soon."""

    def __init__(self, message: str, *, waiting: bool) -> None:
        super().__init__(message)
        self.waiting = waiting


async def find_bound(client: Client, pod: Pod, volume: Volume, *, known: bool) -> Bound:
    """The claim and PV of a volume. known: the pod ran here before, so that its claim may be going.

    Raises: ClaimError with `error processing PVC <ns>/<name>: ...`.
    """
    name, namespace = claim_name(pod.metadata.name, volume), pod.metadata.namespace
    try:
        claim = await _claim(client, pod, volume, name, known=known)
        pv = await _volume(client, claim)
    except ClaimError as failure:
        text = f"error processing PVC {namespace}/{name}: {failure}"
        raise ClaimError(text, waiting=failure.waiting) from failure
    source = volume.persistent_volume_claim
    return Bound(claim, pv, source is not None and source.read_only)


async def _claim(client: Client, pod: Pod, volume: Volume, name: str, *, known: bool) -> PersistentVolumeClaim:
    try:
        claim = await client.get(CLAIMS, name, pod.metadata.namespace)
    except TonnageError as failure:
        waiting = not isinstance(failure, ApiError) or failure.code == 404 or failure.code >= 500
        raise ClaimError(f"failed to fetch PVC from API server: {failure}", waiting=waiting) from failure
    if volume.ephemeral is not None and claim.metadata.controller_uid() != pod.metadata.uid:
        raise ClaimError(
            f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)",
            waiting=False,
        )
    if claim.metadata.deleting and not known:
        raise ClaimError("PVC is being deleted", waiting=False)
    if not claim.spec.volume_name:
        raise ClaimError("PVC has empty pvc.Spec.VolumeName", waiting=True)
    if claim.status.phase != "Bound":
        raise ClaimError("PVC is not bound", waiting=True)
    return claim


async def _volume(client: Client, claim: PersistentVolumeClaim) -> PersistentVolume:
    name = claim.spec.volume_name
    try:
        pv = await client.get(VOLUMES, name)
    except TonnageError as failure:
        raise ClaimError(f"failed to fetch PV {name} from API server: {failure}", waiting=True) from failure
    if pv.spec.claim_ref is None:
        raise ClaimError(
            f"found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
            waiting=True,
        )
    if pv.spec.claim_ref.uid != claim.metadata.uid:
        raise ClaimError(
            f"found PV object {name} but its pv.Spec.ClaimRef.UID {pv.spec.claim_ref.uid} "
            f"does not point to claim.UID {claim.metadata.uid}",
            waiting=False,
        )
    return pv


def check_mode(pod: Pod, volume: Volume, *, block: bool) -> None:
    """A Block volume must be used as a device, another one as a mount. Raises: ClaimError."""
    for container in pod.all_containers:
        if block and any(m.name == volume.name for m in container.volume_mounts):
            raise ClaimError(
                f"volume {volume.name} has volumeMode Block, but is specified in volumeMounts", waiting=False
            )
        if not block and any(d.name == volume.name for d in container.volume_devices):
            raise ClaimError(
                f"volume {volume.name} has volumeMode Filesystem, but is specified in volumeDevices", waiting=False
            )


class VolumesError(TonnageError):
    """Some volumes of a pod are not mounted. failures: one for each.

    waiting: all of them wait for others (a claim to be bound, a driver to register).
    waits: `claim <ns>/<name>` and `driver <name>`; a change of one of these is worth another try.
    """

    def __init__(self, pod: Pod, failures: Mapping[str, Exception]) -> None:
        super().__init__("; ".join(str(f) for f in failures.values()))
        self.failures = dict(failures)
        self.waiting = all(isinstance(f, (ClaimError, MountError)) and f.waiting for f in failures.values())
        self.waits: set[str] = set()
        for volume in pod.spec.volumes:
            failure = failures.get(volume.name)
            if isinstance(failure, ClaimError):
                self.waits.add(f"claim {pod.metadata.namespace}/{claim_name(pod.metadata.name, volume)}")
            elif isinstance(failure, MountError) and failure.topic:
                self.waits.add(failure.topic)


class VolumeManager:
    """The volumes of all pods of this node.

    csi_driver: returns the CSIDriver object of a name, or None. labels: the node's labels, for node affinity of PVs.
    prepare: called with the uid of a pod before its first CSI volume is mounted.
    """

    def __init__(
        self,
        client: Client,
        paths: Paths,
        drivers: RegisteredDrivers,
        sources: ObjectSources,
        *,
        csi_driver: Callable[[str], CSIDriver | None],
        labels: Callable[[], Mapping[str, str]],
        prepare: Callable[[str], Awaitable[None]],
    ) -> None:
        self._client = client
        self._paths = paths
        self._drivers = drivers
        self._sources = sources
        self._node = sources.node.name
        self._csi_driver = csi_driver
        self._labels = labels
        self._prepare = prepare
        self._tokens = ServiceTokens(client)
        self.files = FileVolumes(paths, sources)
        self.release: Callable[[str], Awaitable[None]] = _nothing
        """Called with the uid of a pod before its files are removed."""
        self.csi = CsiMounts(paths, drivers, self._node)
        self._flex = FlexVolumes(client, paths)
        self.attachments = Attachments(client, self._node)
        self.csi.on_unused = self.attachments.unstaged
        self.expand: Callable[[Growing], Awaitable[None]] = _nothing
        """Called with a volume that is being mounted and that is to grow. Raises: MountError."""
        self.on_mounted: Callable[[str], None] = lambda claim: None
        """Called with the claim of a volume that is mounted by now."""
        self._mounted: dict[str, dict[str, Mounted]] = {}

    async def mount(self, pod: Pod) -> dict[str, Mounted]:
        """Mount what is not yet mounted and return all volumes by name. Idempotent. Raises: VolumesError."""
        uid = pod.metadata.uid
        done = self._mounted.get(uid)
        known = done is not None or os.path.isdir(self._paths.pod(uid))
        if done is None:
            done = self._mounted[uid] = {}
        todo = [v for v in pod.spec.volumes if v.name not in done]
        if any(v.csi or v.ephemeral or v.persistent_volume_claim for v in todo):
            await self._prepare(uid)
        if len(todo) == 1:
            results: Sequence[Mounted | Exception] = [await self._one(pod, todo[0], known=known)]
        else:
            results = await asyncio.gather(*(self._one(pod, v, known=known) for v in todo))
        failures = {}
        for volume, result in zip(todo, results, strict=True):
            if isinstance(result, Mounted):
                done[volume.name] = result
                if result.claim:
                    self.on_mounted(f"{pod.metadata.namespace}/{result.claim}")
            else:
                failures[volume.name] = result
        if failures:
            raise VolumesError(pod, failures)
        return done

    def is_republished(self, pod: Pod) -> bool:
        """Whether a mounted volume of the pod is of a driver with requiresRepublish."""
        return bool(self._republished(pod))

    def _republished(self, pod: Pod) -> list[Volume]:
        mounted = self._mounted.get(pod.metadata.uid, {})
        found = []
        for volume in pod.spec.volumes:
            driver = mounted[volume.name].driver if volume.name in mounted else ""
            spec = self._csi_driver(driver) if driver else None
            if spec is not None and spec.spec.requires_republish:
                found.append(volume)
        return found

    async def republish(self, pod: Pod) -> None:
        """Publish again what is_republished() means, with fresh contexts. Raises: VolumesError; all stays mounted."""
        volumes = self._republished(pod)
        results = await asyncio.gather(*(self._one(pod, volume, known=True) for volume in volumes))
        pairs = zip(volumes, results, strict=True)
        failures = {volume.name: result for volume, result in pairs if isinstance(result, Exception)}
        if failures:
            raise VolumesError(pod, failures)

    async def _one(self, pod: Pod, volume: Volume, *, known: bool) -> Mounted | Exception:
        try:
            if volume.persistent_volume_claim is not None or volume.ephemeral is not None:
                return await self._persistent(pod, volume, known=known)
            if volume.csi is not None:
                return await self._inline(pod, volume)
            if volume.flex_volume is not None:
                return await self._flex_inline(pod, volume)
            if volume.image is not None:
                return await self._image(pod, volume, volume.image.reference)
            if not _has_source(volume):
                raise UnsupportedError(await self._name_source(pod, volume))
            is_written_here = volume.host_path is None and volume.empty_dir is None
            path = await self.files.mount(pod, volume)
            # A container never writes what the kubelet does, whatever its mount says (kubelet_pods.go, makeMounts).
            return Mounted(path, read_only=is_written_here, is_written_here=is_written_here)
        except (MountError, ClaimError) as failure:
            return failure
        except (TonnageError, OSError) as failure:
            return MountError(f'MountVolume.SetUp failed for volume "{volume.name}" : {failure}')

    async def _flex_inline(self, pod: Pod, volume: Volume) -> Mounted:
        given = volume.flex_volume
        assert given is not None
        check_mode(pod, volume, block=False)
        secret = (pod.metadata.namespace, given.secret_ref.name) if given.secret_ref else None
        flex = FlexVolume(volume.name, given.driver, given.fs_type, given.read_only, given.options, secret)
        return await self._flex_mount(pod, flex, claim="")

    async def _flex_persistent(self, pod: Pod, bound: Bound) -> Mounted:
        pv, given = bound.volume, bound.volume.spec.flex_volume
        assert given is not None
        if bound.block:
            raise UnsupportedError("FlexVolume drivers have no raw block volumes")
        ref, read_only = given.secret_ref, bound.read_only or given.read_only
        secret = (ref.namespace or bound.claim.metadata.namespace, ref.name) if ref else None
        flex = FlexVolume(pv.metadata.name, given.driver, given.fs_type, read_only, given.options, secret)
        return await self._flex_mount(pod, flex, claim=bound.claim.metadata.name)

    async def _flex_mount(self, pod: Pod, flex: FlexVolume, *, claim: str) -> Mounted:
        try:
            mounted = await self._flex.mount(pod, flex)
        except (TonnageError, OSError) as failure:
            raise MountError(f'MountVolume.SetUp failed for volume "{flex.name}" : {failure}') from failure
        return Mounted(mounted.path, read_only=flex.read_only, claim=claim, has_statfs=mounted.has_stats)

    async def _image(self, pod: Pod, volume: Volume, name: str) -> Mounted:
        """Mount an image's content, read-only (KEP-4639)."""
        path = self._paths.volume(pod.metadata.uid, IMAGE, volume.name)
        make_folder(path)
        await asyncio.to_thread(self.files.images.mount, name, path)
        return Mounted(path, read_only=True)

    async def _name_source(self, pod: Pod, volume: Volume) -> str:
        """The kind of a volume that we do not know: only the raw object tells it."""
        path = PODS.path(pod.metadata.namespace, pod.metadata.name)
        raw = msgspec.json.decode(await self._client.read(path))
        found: dict[str, object] = next((v for v in raw["spec"].get("volumes", ()) if v.get("name") == volume.name), {})
        kinds = ", ".join(sorted(found.keys() - {"name"})) or "no source"
        return f"volumes of kind {kinds} are not supported by this kubelet"

    async def _persistent(self, pod: Pod, volume: Volume, *, known: bool) -> Mounted:
        bound = await find_bound(self._client, pod, volume, known=known)
        check_mode(pod, volume, block=bound.block)
        self._check_affinity(bound)
        pv = bound.volume
        name, claim = pv.metadata.name, bound.claim.metadata.name
        if pv.spec.csi is not None:
            ready = await self._csi_volume(pod, bound)
            path = await self.csi.mount(pod, ready)
            if awaits_node(bound.claim):
                await self.expand(await self._growing(pod, bound, ready, path))
            return Mounted(path, bound.block, bound.read_only or ready.read_only, claim, ready.driver)
        if pv.spec.flex_volume is not None:
            return await self._flex_persistent(pod, bound)
        try:
            if pv.spec.local is not None:
                path = _local_path(pv.spec.local.path, block=bound.block)
            elif pv.spec.host_path is not None:
                path = host_path(pv.spec.host_path.path, pv.spec.host_path.type)
            else:
                raise UnsupportedError("only csi, flexVolume, local and hostPath volumes are supported by this kubelet")
            if pv.spec.local is not None and not (bound.block or bound.read_only):
                await fsgroup.give(path, pod.spec.security_context)
        except TonnageError as failure:
            raise MountError(f'MountVolume.SetUp failed for volume "{name}" : {failure}') from failure
        return Mounted(path, bound.block, bound.read_only, claim)

    async def find_growing(self, pod: Pod, claim: str) -> Growing | None:
        """What the pod has mounted of a driver's volume of that claim, None for nothing. Raises: TonnageError."""
        mounted = self.mounted(pod.metadata.uid)
        for volume in pod.spec.volumes:
            there = mounted.get(volume.name)
            if there is not None and there.claim == claim and there.driver:
                bound = await find_bound(self._client, pod, volume, known=True)
                return await self._growing(pod, bound, await self._csi_volume(pod, bound), there.path)
        return None

    async def _growing(self, pod: Pod, bound: Bound, ready: CsiVolume, path: str) -> Growing:
        assert bound.volume.spec.csi is not None
        secrets = await self._secrets(bound.volume.spec.csi.node_expand_secret_ref)
        read_only = bound.read_only or ready.read_only
        return Growing(pod, bound.claim, bound.volume, ready, path, read_only, secrets)

    def _check_affinity(self, bound: Bound) -> None:
        affinity = bound.volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return
        if not node_matcher(affinity.required)(self._labels(), self._node):
            name = bound.volume.metadata.name
            raise MountError(
                f'MountVolume.NodeAffinity check failed for volume "{name}" : '
                f"no matching NodeSelectorTerms: node {self._node} cannot reach this volume"
            )

    async def _csi_volume(self, pod: Pod, bound: Bound, *, inline: bool = False) -> CsiVolume:
        """Gather what a volume's calls need (6.3). A driver that can mount with a group gets it in the capability."""
        pv, source, security = bound.volume, bound.volume.spec.csi, pod.spec.security_context
        assert source is not None
        spec = self._spec(source.driver, pv.metadata.name, EPHEMERAL if inline else PERSISTENT)
        attachment, attached = "", EMPTY
        if spec.attach_required and not inline:
            attachment, attached = await self.attachments.wait(
                pod.metadata.uid, pv.metadata.name, source.driver, source.volume_handle
            )
        driver = self._drivers.find(source.driver)
        modes, read_only = pv.spec.access_modes, bound.read_only or source.read_only
        group, fstype, flags = security.fs_group, source.fs_type or "", tuple(pv.spec.mount_options)
        if bound.block:
            group, fstype, flags = None, "", ()
        delegated = driver is not None and driver.mount_group
        policy = spec.fs_group_policy
        gives = not delegated and fsgroup.wanted(policy, fstype=fstype, access_modes=modes, read_only=read_only)
        capability = VolumeCapability(
            AccessMode.of(modes[0], single_node_multi_writer=driver is not None and driver.multi_writer),
            block=bound.block,
            fstype=fstype,
            mount_flags=flags,
            mount_group=str(group) if group is not None and delegated else "",
        )
        publish_context = {**source.volume_attributes, **_pod_info(pod, spec, inline=inline)}
        publish_secrets = await self._secrets(source.node_publish_secret_ref)
        if tokens := await self._tokens.of(pod, spec.token_requests):
            if spec.service_account_token_in_secrets:
                publish_secrets = {**(publish_secrets or {}), **tokens}
            else:
                publish_context |= tokens
        return CsiVolume(
            pv.metadata.name,
            source.driver,
            source.volume_handle,
            capability,
            source.volume_attributes,
            publish_context,
            read_only=read_only,
            inline=inline,
            stage_secrets=await self._secrets(source.node_stage_secret_ref),
            publish_secrets=publish_secrets,
            pod_group=group if gives else None,
            group_policy=security.fs_group_change_policy,
            attachment=attachment,
            attached=attached,
            is_exclusive=modes == [names.READ_WRITE_ONCE_POD],
        )

    async def _inline(self, pod: Pod, volume: Volume) -> Mounted:
        """Mount an inline volume: as a PV that has no object."""
        given = volume.csi
        assert given is not None
        check_mode(pod, volume, block=False)
        secret, namespace = given.node_publish_secret_ref, pod.metadata.namespace
        source = CSIPersistentVolumeSource(
            driver=given.driver,
            volume_handle=names.inline_handle(pod.metadata.uid, volume.name),
            read_only=given.read_only,
            fs_type=given.fs_type,
            volume_attributes=given.volume_attributes,
            node_publish_secret_ref=SecretReference(name=secret.name, namespace=namespace) if secret else None,
        )
        spec = PersistentVolumeSpec(access_modes=[names.READ_WRITE_ONCE], csi=source)
        pv = PersistentVolume(metadata=ObjectMeta(name=volume.name), spec=spec)
        bound = Bound(PersistentVolumeClaim(), pv, read_only=given.read_only)
        ready = await self._csi_volume(pod, bound, inline=True)
        return Mounted(await self.csi.mount(pod, ready), read_only=given.read_only, driver=given.driver)

    def _spec(self, driver: str, volume: str, mode: str) -> CSIDriverSpec:
        """The driver's CSIDriver spec; rejects what it does not support and what we do not. Raises: MountError."""
        found = self._csi_driver(driver)
        prefix = f'MountVolume.SetUp failed for volume "{volume}" : '
        if mode == EPHEMERAL and found is None:
            raise MountError(f'{prefix}volume mode "{mode}" not supported by driver {driver} (no CSIDriver object)')
        spec = found.spec if found is not None else CSIDriverSpec()
        if mode not in spec.volume_lifecycle_modes:
            only = " ".join(f'"{m}"' for m in spec.volume_lifecycle_modes)
            raise MountError(f'{prefix}volume mode "{mode}" not supported by driver {driver} (only supports [{only}])')
        return spec

    async def _secrets(self, ref: SecretReference | None) -> dict[str, str] | None:
        if ref is None:
            return None
        found = await self._sources.secret(ref.namespace, ref.name)
        if found is None:
            raise NotFoundError(f'secret "{ref.namespace}/{ref.name}" not found')
        return {key: value.decode(errors="surrogateescape") for key, value in found.items()}

    def mounted(self, uid: str) -> Mapping[str, Mounted]:
        """What is mounted for a pod, by the volume's name in it."""
        return self._mounted.get(uid, {})

    async def unmount(self, uid: str, *, keep_files: bool = False) -> None:
        """Unmount all volumes of a pod, as recorded on disk; its containers have ended. Idempotent.

        keep_files: the pod goes on later, so volumes stay that end with their unmount.
        """
        await self.release(uid)
        await self.csi.unmount(uid, keep_inline=keep_files)
        self.attachments.left(uid)
        if not keep_files:  # which FlexVolumes end with their unmount, only their drivers know
            await self._flex.unmount(uid)
        if keep_files:
            await asyncio.to_thread(self.files.unmount, uid)
        elif os.path.isdir(self._paths.pod(uid) + "/volumes"):
            await self._remove_files(uid)
        self._mounted.pop(uid, None)

    async def _remove_files(self, uid: str) -> None:
        left = [name for name in os.listdir(self._paths.pod(uid) + "/volumes") if name != "kubernetes.io~csi"]
        if left:
            await asyncio.to_thread(self.files.remove, uid)

    def remove(self, uid: str) -> None:
        """Remove the pod's folder after unmount(). Raises: HostError when something is still mounted in it."""
        self._tokens.forget(uid)
        pod = self._paths.pod(uid)
        for name in ("volumes/kubernetes.io~csi", "volumes", "volumeDevices/kubernetes.io~csi", "volumeDevices"):
            remove_empty(f"{pod}/{name}")
        if os.path.isdir(f"{pod}/containers"):
            remove_tree(f"{pod}/containers")
        remove_empty(pod)


async def _nothing(about: object) -> None:
    """Wait for nothing."""


def _has_source(volume: Volume) -> bool:
    return any((volume.config_map, volume.secret, volume.host_path)) or any(
        part is not None for part in (volume.empty_dir, volume.downward_api, volume.projected)
    )


def _local_path(path: str, *, block: bool) -> str:
    """A local PV's path, which must be there. Raises: UnsupportedError, NotFoundError."""
    path = host_path(path, "")
    if block:
        return host_path(path, "BlockDevice")
    if not os.path.isdir(path):
        if os.path.exists(path):
            raise UnsupportedError(f"local volume {path} is no directory: devices are not formatted here")
        raise NotFoundError(f'path "{path}" does not exist')
    return path


def _pod_info(pod: Pod, spec: CSIDriverSpec, *, inline: bool) -> dict[str, str]:
    if not spec.pod_info_on_mount:
        return {}
    return {
        names.CSI_POD_NAME: pod.metadata.name,
        names.CSI_POD_NAMESPACE: pod.metadata.namespace,
        names.CSI_POD_UID: pod.metadata.uid,
        names.CSI_SERVICE_ACCOUNT: pod.spec.service_account_name,
        names.CSI_EPHEMERAL: "true" if inline else "false",
    }

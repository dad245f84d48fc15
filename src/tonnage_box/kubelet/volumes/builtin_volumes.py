"""Built-in pod volumes: emptyDir, configMap, secret, downwardAPI, projected, hostPath.

Secrets (and volumes that may contain them) are on a tmpfs where the kubelet may mount one, so that they never reach a
disk.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from tonnage.base.errors import ApiError, HostError, InvalidError, NotFoundError, UnsupportedError
from tonnage.host import atomic_writer
from tonnage.host import mount as mounts
from tonnage.host.atomic_writer import Content
from tonnage.host.encoding import encode
from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.names import TOKEN_VOLUME
from tonnage.kubernetes.api.pods import (
    ClusterTrustBundleProjection,
    ConfigMapVolumeSource,
    KeyToPath,
    Pod,
    PodCertificateProjection,
    SecretVolumeSource,
    Volume,
)
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage_box.kubelet.containers.paths import CONFIG_MAP, DOWNWARD, EMPTY_DIR, IMAGE, PROJECTED, SECRET, Paths
from tonnage_box.kubelet.folder import names, remove_tree
from tonnage_box.kubelet.images.node_images import NO_IMAGES
from tonnage_box.kubelet.volumes import fsgroup
from tonnage_box.kubelet.volumes.csi_volumes import MountError
from tonnage_box.kubelet.volumes.pod_certificates import PodCertificates
from tonnage_box.kubelet.volumes.projected_schedule import token_wait
from tonnage_box.kubelet.volumes.sources import ObjectSources

Files = dict[str, Content]
PLUGINS = (EMPTY_DIR, CONFIG_MAP, SECRET, DOWNWARD, PROJECTED, IMAGE)
_ON_TMPFS = frozenset({SECRET, PROJECTED})
BUNDLES = "clustertrustbundles"
"""What a volume waits for whose trust bundle is missing: see MountError.topic."""
_MODE, _PRIVATE = 0o644, 0o600
_TOKEN_SECONDS = 3600
_LOOK_SECONDS = 300.0
"""Between looks at trust bundles whose change was not seen."""
_SMALL = "nr_inodes=4096"
_HOST_PATH: dict[str, tuple[Callable[[int], bool], str]] = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class FileVolumes:
    """Creates and removes such volumes of one node."""

    def __init__(self, paths: Paths, sources: ObjectSources) -> None:
        self._paths = paths
        self._sources = sources
        self._root = os.geteuid() == 0
        self.images = NO_IMAGES
        self.certificates = PodCertificates(sources.client, sources.node.name)
        self.on_written: Callable[[Pod, Volume, float], None] = lambda pod, volume, seconds: None
        """Called after each write of a volume whose content changes, with the seconds until the next write."""

    async def mount(self, pod: Pod, volume: Volume) -> str:
        """Create the volume and return its path.

        Idempotent. Raises: InvalidError, NotFoundError, UnsupportedError, HostError.
        """
        if volume.host_path is not None:
            return host_path(volume.host_path.path, volume.host_path.type)
        if volume.empty_dir is not None:
            return await self._empty_dir(pod, volume)
        if (cm := volume.config_map) is not None:
            return await self._write(pod, volume, CONFIG_MAP, await self._keys(pod, "configmap", cm.name, cm))
        if (secret := volume.secret) is not None:
            files = await self._keys(pod, "secret", secret.secret_name, secret)
            return await self._write(pod, volume, SECRET, files)
        if volume.downward_api is not None:
            mode = volume.downward_api.get("defaultMode", _MODE)
            return await self._write(pod, volume, DOWNWARD, self._downward(pod, volume.downward_api, mode))
        assert volume.projected is not None
        if self._sources.node.server is None and volume.name.startswith(TOKEN_VOLUME):
            return self._paths.volume(pod.metadata.uid, PROJECTED, volume.name)  # no container runs that could read it
        path = await self._write(pod, volume, PROJECTED, await self._projected(pod, volume, volume.projected))
        waits = [self._wait(pod, volume, *one) for one in _numbered(volume.projected)]
        if known := [wait for wait in waits if wait is not None]:
            self.on_written(pod, volume, min(known))
        return path

    def _wait(self, pod: Pod, volume: Volume, number: int, kind: str, body: dict[str, Any]) -> float | None:
        """Seconds until a source is to be written again, None if never."""
        if kind == "serviceAccountToken":
            return token_wait(body.get("expirationSeconds") or _TOKEN_SECONDS)
        if kind == "podCertificate":
            return self.certificates.wait(pod, volume.name, number)
        return _LOOK_SECONDS if kind == "clusterTrustBundle" else None

    async def _empty_dir(self, pod: Pod, volume: Volume) -> str:
        assert volume.empty_dir is not None
        path = self._paths.volume(pod.metadata.uid, EMPTY_DIR, volume.name)
        medium, limit = volume.empty_dir.medium, volume.empty_dir.size_limit
        if medium not in ("", "Memory"):
            raise UnsupportedError(f"emptyDir medium {medium!r} is not supported: only Memory and the default are")
        os.makedirs(path, mode=0o750, exist_ok=True)
        os.chmod(path, 0o777)
        if medium == "Memory":
            size = [f"size={to_bytes(limit)}"] if limit else []
            await self._tmpfs(path, [*size, "mode=777"])
        await fsgroup.give(path, pod.spec.security_context)
        return path

    async def _write(self, pod: Pod, volume: Volume, plugin: str, files: Files) -> str:
        path = self._paths.volume(pod.metadata.uid, plugin, volume.name)
        os.makedirs(path, mode=0o755, exist_ok=True)
        if plugin in _ON_TMPFS:
            await self._tmpfs(path, ["mode=755", _SMALL])
        await asyncio.to_thread(atomic_writer.write, path, files)
        await fsgroup.give(path, pod.spec.security_context, read_only=True)
        return path

    async def _tmpfs(self, path: str, options: list[str]) -> None:
        if not self._root or mounts.is_mount(path):
            return
        await asyncio.to_thread(mounts.mount, "tmpfs", path, "tmpfs", [*options, "nosuid", "nodev"])

    def _downward(self, pod: Pod, source: dict[str, Any], mode: int) -> Files:
        files: Files = {}
        for item in source.get("items") or ():
            if item.get("fieldRef"):
                text = self._sources.field(pod, item["fieldRef"].get("fieldPath", ""))
            else:
                text = self._sources.resource(pod, item.get("resourceFieldRef") or {}, None)
            files[item.get("path", "")] = Content(text.encode(), item.get("mode") or mode)
        return files

    async def _projected(self, pod: Pod, volume: Volume, projected: dict[str, Any]) -> Files:
        files: Files = {}
        mode = projected.get("defaultMode") or _MODE
        for number, kind, body in _numbered(projected):
            if kind == "podCertificate":
                files |= await self._certificate(pod, volume, number, body, mode)
            elif kind == "clusterTrustBundle":
                files |= await self._trust_anchors(pod, volume, body, mode)
            else:
                files |= await self._project(pod, kind, body, mode)
        return files

    async def _project(self, pod: Pod, kind: str, body: dict[str, Any], mode: int) -> Files:
        if kind == "downwardAPI":
            return self._downward(pod, body, mode)
        if kind == "serviceAccountToken":
            return await self._token(pod, body, mode)
        if kind not in ("configMap", "secret"):
            raise UnsupportedError(
                f"projected volume source {kind} is not supported: only configMap, secret, downwardAPI, "
                "serviceAccountToken, podCertificate and clusterTrustBundle are"
            )
        source = convert({**body, "defaultMode": mode}, ConfigMapVolumeSource)
        return await self._keys(pod, kind.lower(), source.name, source)

    async def _token(self, pod: Pod, source: dict[str, Any], mode: int) -> Files:
        seconds = source.get("expirationSeconds") or _TOKEN_SECONDS
        try:
            data = await self._sources.token(pod, audience=source.get("audience", ""), seconds=seconds)
        except ApiError as failure:
            raise NotFoundError(f"failed to fetch token: {failure.message}") from failure
        return {source.get("path", ""): _private(pod, data, mode)}

    async def _certificate(self, pod: Pod, volume: Volume, number: int, body: dict[str, Any], mode: int) -> Files:
        source = convert(body, PodCertificateProjection)
        shown = await self.certificates.shown(pod, volume.name, number, source)
        files = {
            source.credential_bundle_path: shown.key + shown.chain,
            source.key_path: shown.key,
            source.certificate_chain_path: shown.chain,
        }
        return {path: _private(pod, data, mode) for path, data in files.items() if path}

    async def _trust_anchors(self, pod: Pod, volume: Volume, body: dict[str, Any], mode: int) -> Files:
        source = convert(body, ClusterTrustBundleProjection)
        try:
            data = await self._sources.trust_anchors(source)
        except NotFoundError as failure:
            text = f'MountVolume.SetUp failed for volume "{volume.name}" : {failure}'
            raise MountError(text, topic=BUNDLES) from failure
        return {source.path: _private(pod, data, mode)}

    async def _keys(self, pod: Pod, kind: str, name: str, source: ConfigMapVolumeSource | SecretVolumeSource) -> Files:
        keys = await self._sources.of(kind, pod.metadata.namespace, name, optional=source.optional)
        return pick(keys, source.items, source.default_mode, optional=source.optional)

    def unmount(self, uid: str) -> None:
        """Unmount the tmpfs and images of a pod's volumes; files on disk stay. Blocking.

        Raises: HostError, PreconditionError.
        """
        for plugin in PLUGINS:
            folder = self._paths.volumes(uid, plugin)
            for name in names(folder):
                if mounts.is_mount(f"{folder}/{name}"):
                    unmount = self.images.unmount if plugin == IMAGE else mounts.umount
                    unmount(f"{folder}/{name}")

    def remove(self, uid: str) -> None:
        """Remove all such volumes of a pod with what is in them.

        Blocking. Raises: HostError, PreconditionError (in use).
        """
        self.unmount(uid)
        for plugin in PLUGINS:
            folder = self._paths.volumes(uid, plugin)
            if os.path.isdir(folder):
                remove_tree(folder)


def _numbered(projected: dict[str, Any]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Each source: its number, kind and body."""
    for number, source in enumerate(projected.get("sources") or ()):
        for kind, body in source.items():
            yield number, kind, body


def follows_bundles(volume: Volume) -> bool:
    """Whether a volume shows trust bundles."""
    return any(kind == "clusterTrustBundle" for _, kind, _ in _numbered(volume.projected or {}))


def _private(pod: Pod, data: bytes, mode: int) -> Content:
    """A file for the pod's only user or group, where it has one, else as other files."""
    user = _only_user(pod)
    private = user is not None or pod.spec.security_context.fs_group is not None
    return Content(data, _PRIVATE if private else mode, -1 if user is None else user)


def _only_user(pod: Pod) -> int | None:
    """The user that all containers run as, None where that is not said or differs (pkg/volume/util, FsUserFrom)."""
    of_pod = pod.spec.security_context.run_as_user
    users = {
        of_pod if container.security_context.run_as_user is None else container.security_context.run_as_user
        for container in (*pod.spec.init_containers, *pod.spec.containers)
    }
    return users.pop() if len(users) == 1 else None


def pick(keys: dict[str, bytes], items: list[KeyToPath], default: int | None, *, optional: bool) -> Files:
    """Which keys become which files; all when items is empty. Raises: NotFoundError for a key that is missing."""
    mode = _MODE if default is None else default
    if not items:
        return {key: Content(data, mode) for key, data in keys.items()}
    files = {}
    for item in items:
        if item.key in keys:
            files[item.path] = Content(keys[item.key], mode if item.mode is None else item.mode)
        elif not optional:
            raise NotFoundError(f"references non-existent config key: {item.key}")
    return files


def host_path(path: str, kind: str) -> str:
    """Check a path of the machine against the type of a hostPath volume. Raises: InvalidError, HostError."""
    encode(path, "hostPath")
    if not path.startswith("/") or ".." in path.split("/"):
        raise InvalidError(f"hostPath {path!r}: want an absolute path without '..'")
    if not kind:
        return path
    if kind not in _HOST_PATH:
        raise UnsupportedError(f"hostPath type {kind!r} is not supported")
    try:
        if kind == "DirectoryOrCreate":
            os.makedirs(path, mode=0o755, exist_ok=True)
        elif kind == "FileOrCreate" and not os.path.exists(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        mode = os.stat(path).st_mode
    except OSError as failure:
        raise HostError(f"hostPath type check failed: {path}: {failure.strerror}") from failure
    fits, what = _HOST_PATH[kind]
    if not fits(mode):
        raise InvalidError(f"hostPath type check failed: {path} is not {what}")
    return path

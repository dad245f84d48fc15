"""Paths below a kubelet's root, the same as Kubernetes' (docs/reference/kubernetes/kubelet.md).

Names from outside become single path components; names that could leave their folder are rejected.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tonnage.base.errors import InvalidError
from tonnage.host.encoding import encode

CSI = "kubernetes.io~csi"
EMPTY_DIR = "kubernetes.io~empty-dir"
CONFIG_MAP = "kubernetes.io~configmap"
SECRET = "kubernetes.io~secret"
DOWNWARD = "kubernetes.io~downward-api"
PROJECTED = "kubernetes.io~projected"
IMAGE = "kubernetes.io~image"


def component(text: str) -> str:
    """text, if it is a single component of a path. Raises: InvalidError."""
    if not text or "/" in text or text in (".", "..") or len(encode(text, f"name {text[:60]!r}")) > 255:
        raise InvalidError(f"{text[:60]!r} cannot be the name of a file: it is empty, too long, '..' or contains '/'")
    return text


class Paths:
    """All paths of one kubelet, as text. Creates nothing."""

    def __init__(self, root: Path, *, registry: Path | None = None) -> None:
        self.root = str(root)
        self.registry = str(registry or root / "plugins_registry")
        self.plugins = f"{self.root}/plugins/kubernetes.io/csi"
        self.flexvolume = f"{self.root}/volumeplugins"
        self.pods = f"{self.root}/pods"
        self.logs = f"{self.root}/pods-logs"

    def pod(self, uid: str) -> str:
        """Everything of one pod but its logs."""
        return f"{self.pods}/{component(uid)}"

    def volumes(self, uid: str, plugin: str) -> str:
        """The pod's volumes of one plugin."""
        return f"{self.pod(uid)}/volumes/{plugin}"

    def volume(self, uid: str, plugin: str, name: str) -> str:
        """One volume; of a CSI volume the folder that holds `mount` and vol_data.json."""
        return f"{self.volumes(uid, plugin)}/{component(name)}"

    def staging(self, driver: str, handle: str) -> str:
        """The folder that holds `globalmount` and vol_data.json of a staged volume."""
        return f"{self.plugins}/{component(driver)}/{hashlib.sha256(handle.encode()).hexdigest()}"

    def block_staging(self, pv: str) -> str:
        """Staging path of a block volume."""
        return f"{self.plugins}/volumeDevices/staging/{component(pv)}"

    def block_publish(self, pv: str, uid: str) -> str:
        """Where the driver puts a block volume's device for a pod."""
        return f"{self.plugins}/volumeDevices/publish/{component(pv)}/{component(uid)}"

    def block_data(self, pv: str) -> str:
        """The folder that holds vol_data.json of a block volume."""
        return f"{self.plugins}/volumeDevices/{component(pv)}/data"

    def block_links(self, uid: str) -> str:
        """The pod's links to its block volumes."""
        return f"{self.pod(uid)}/volumeDevices/{CSI}"

    def containers(self, uid: str) -> str:
        """What the runtime keeps of the pod's containers."""
        return f"{self.pod(uid)}/containers"

    def subpaths(self, uid: str) -> str:
        """Bind mounts of single parts of volumes."""
        return f"{self.pod(uid)}/volume-subpaths"

    def pod_logs(self, namespace: str, name: str, uid: str) -> str:
        """The folder of a pod's logs, one folder a container below it."""
        return f"{self.logs}/{component(namespace)}_{component(name)}_{component(uid)}"

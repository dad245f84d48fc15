"""Options of an installation on Kubernetes, from the command line of `tonnage manifests`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from tonnage import __version__
from tonnage.base.errors import InvalidError
from tonnage.base.option import Values
from tonnage.controller.config import parse_certificate_issuers
from tonnage.kubernetes.api import names
from tonnage.node.config.agent import BINDINGS, SCOPES
from tonnage.node.config.node import KUBELET
from tonnage.node.inline.config import parse_inlines
from tonnage.node.inline.sources import image_folders
from tonnage.provisioning.capacity import tier
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools import kinds

IMAGE = f"tonnage.dev/tonnage:{__version__}"
KUBERNETES = (1, 36)
DEFAULT_POOL: Mapping[str, Any] = {"name": "scratch", "kind": "image", "path": "/var/lib/tonnage", "rootfs": True}
"""Works on any node: on the disk that the node lives on, of which it leaves the kubelet its share."""
GROUP_LABEL = "tonnage.dev/group"
"""Label of nodes whose pools differ from those of the others."""
LONGEST_GROUP = 40
"""Characters: it is a part of the names of pods."""
CLASS_FIELDS = ("reclaimPolicy", "volumeBindingMode", "allowVolumeExpansion")
ALWAYS_WRITTEN = {"bind": BINDINGS[0], "scope": SCOPES[0], "capacity": tier.MODES[0], "kubelet": str(KUBELET)}
"""Options that a node's file has even if they are not given, so that people see them there."""
MOUNTED = ("/dev", "/etc/tonnage", "/run/lock/lvm", "/run/tonnage", "/sys/fs/cgroup", "/tmp")
"""Where an agent's pod has other folders; the kubelet's too."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)(\..*)?")


@dataclass(frozen=True)
class Class:
    """A StorageClass of ours. default: whether claims without class get it. fields: override the common fields."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    default: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class InstalledIssuer:
    """An issuer whose certificates the controller signs. secret: of type kubernetes.io/tls, in the own namespace.

    options: as on the controller's command line, each with its comma.
    """

    name: str
    secret: str
    options: str = ""

    @property
    def folder(self) -> str:
        """Where the controller has the Secret."""
        return f"/issuers/{self.name}"

    @property
    def argument(self) -> str:
        """The value of the controller's option."""
        return f"{self.name}={self.folder}{self.options}"


def parse_installed_issuer(text: str) -> InstalledIssuer:
    """`NAME=SECRET[,allow=KIND:PATTERN][,days=N]...`. Raises: InvalidError."""
    name, _, rest = text.partition("=")
    secret, comma, options = rest.partition(",")
    if not names.is_dns_subdomain(secret):
        raise InvalidError(f"--certificate-issuer {text[:80]!r}: want NAME=SECRET, a Secret of type kubernetes.io/tls")
    issuer = InstalledIssuer(name, secret, comma + options)
    parse_certificate_issuers([issuer.argument])
    return issuer


@dataclass(frozen=True)
class Installation:
    """Options of one installation.

    pools: as in a node's file. node: other options of the nodes' file, by their names. secrets: those that classes may
    name, namespace -> names, none for all of it. drivers: external CSI drivers that agents serve, name -> topology key;
    their sockets are in the kubelet's plugin folder. kubernetes: the oldest version that must accept the objects.
    monitoring: with PodMonitor, alert rules (the Prometheus operator's kinds) and dashboard. inline: whether pods may
    have CSI inline volumes, which no quota counts. groups: pools of nodes that have GROUP_LABEL with that value; all
    others have `pools`. network_policy: whether pods may connect only to the API server and be scraped. scheduler: how
    `tonnage scheduler` chooses nodes, None for none. group_labels, templates: template nodes that the controller
    publishes for an autoscaler, as on its command line. evict_unfit: whether the controller may evict pods whose inline
    volume does not fit on their node and that allow it. free_populators: whether it may evict pods of volume populators
    that wait on a node which their claims have left. issuers: of certificates of inline volumes, that the controller
    signs. attach_endpoints: sockets, on the nodes, of drivers whose volumes the controller attaches.
    snapshot_controller: whether the controller is the cluster's snapshot controller. snapshot_class: with a default
    VolumeSnapshotClass and VolumeGroupSnapshotClass, for clusters that have the kinds.
    """

    namespace: str = names.SYSTEM_NAMESPACE
    image: str = IMAGE
    pools: Sequence[Mapping[str, Any]] = (DEFAULT_POOL,)
    classes: Sequence[Class] = (Class(names.SCRATCH_CLASS),)
    node: Values = field(default_factory=dict)
    secrets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    drivers: Mapping[str, str] = field(default_factory=dict)
    kubernetes: tuple[int, int] = KUBERNETES
    monitoring: bool = False
    inline: bool = True
    evict_unfit: bool = False
    free_populators: bool = False
    issuers: Sequence[InstalledIssuer] = ()
    snapshot_controller: bool = False
    attach_endpoints: Sequence[str] = ()
    snapshot_class: bool = False
    groups: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    network_policy: bool = False
    scheduler: ScoringStrategy | None = None
    group_labels: Sequence[str] = ()
    templates: Sequence[str] = ()

    @property
    def file(self) -> Values:
        """The options of the nodes' file, also those that it always has."""
        return {**ALWAYS_WRITTEN, **self.node}

    @property
    def selinux_mount(self) -> bool:
        """Whether every volume of every node can be mounted with an SELinux context of its own."""
        pools = (*self.pools, *(pool for pools in self.groups.values() for pool in pools))
        return kinds.take_contexts(str(pool.get("kind", "")) for pool in pools)


def parse_class(text: str) -> Class:
    """`NAME[,key=value...]`: fields of a StorageClass by their names, `default=yes`, all else parameters.

    Raises: InvalidError.
    """
    name, *pairs = text.split(",")
    if not names.is_dns_subdomain(name):
        raise InvalidError(f"class {text[:80]!r}: want NAME[,key=value...], as fast,pool=nvme")
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or key in values:
            raise InvalidError(f"class {name}: {pair[:80]!r}: want key=value, each key once")
        values[key] = value
    default = _is_yes(name, "default", values.pop("default", "no"))
    fields: dict[str, Any] = {key: values.pop(key) for key in CLASS_FIELDS if key in values}
    if "allowVolumeExpansion" in fields:
        fields["allowVolumeExpansion"] = _is_yes(name, "allowVolumeExpansion", fields["allowVolumeExpansion"])
    for key, known in (
        ("reclaimPolicy", ("Delete", "Retain")),
        ("volumeBindingMode", (names.IMMEDIATE, names.WAIT_FOR_FIRST_CONSUMER)),
    ):
        if fields.get(key, known[0]) not in known:
            raise InvalidError(f"class {name}: {key} {fields[key][:40]!r}: want {' or '.join(known)}")
    return Class(name, values, default, fields)


def parse_secrets(texts: Sequence[str]) -> dict[str, list[str]]:
    """Each `NAMESPACE/NAME`, or `NAMESPACE` for all of its secrets: namespace -> names. Raises: InvalidError."""
    found: dict[str, list[str]] = {}
    for text in texts:
        namespace, slash, name = text.partition("/")
        if not names.is_dns_label(namespace) or (slash and not names.is_dns_subdomain(name)):
            raise InvalidError(f"secret {text[:80]!r}: want NAMESPACE or NAMESPACE/NAME")
        found.setdefault(namespace, []).append(name)
    return {namespace: [] if "" in given else given for namespace, given in found.items()}


def parse_pool(text: str) -> dict[str, Any]:
    """A pool as in --pool, as an entry of a node's file. Raises: InvalidError."""
    config = pool_config.parse(text)
    head, *pairs = text.split(",")
    _, _, where = head.partition(":")
    given = dict(pair.split("=", 1) for pair in pairs)
    return {"name": config.name, "kind": config.kind.name, **({"path": where} if where else {}), **given}


def parse_groups(texts: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Each `GROUP:POOL`, the pool as in --pool: group -> pools, in their order. Raises: InvalidError."""
    found: dict[str, list[dict[str, Any]]] = {}
    for text in texts:
        group, colon, pool = text.partition(":")
        if not colon or not names.is_dns_label(group) or len(group) > LONGEST_GROUP:
            raise InvalidError(
                f"group {text[:80]!r}: want NAME:POOL, as nvme:lvm:vg0,name=scratch; the name a DNS label of at most"
                f" {LONGEST_GROUP} characters"
            )
        found.setdefault(group, []).append(parse_pool(pool))
    return found


def parse_version(text: str) -> tuple[int, int]:
    """A version of Kubernetes, as 1.30. Raises: InvalidError."""
    found = _VERSION.fullmatch(text)
    if found is None:
        raise InvalidError(f"version of Kubernetes {text[:40]!r}: want one as 1.36")
    return int(found[1]), int(found[2])


def pool_folders(pools: Sequence[Mapping[str, Any]], kubelet: str) -> list[str]:
    """The folders of the node that pools need a mount for, each once. Raises: InvalidError.

    None inside another's folder or the kubelet's: those are mounted with propagation, so a mount in them would
    show on the node and stay there, and their number would double each time that the agent starts.
    """
    found: list[str] = []
    for pool in pools:
        path = str(pool.get("path", ""))
        if not path.startswith("/"):
            continue  # a volume group or a region: reached through /dev
        if ".." in PurePosixPath(path).parts or str(PurePosixPath(path)) != path:
            raise InvalidError(
                f"pool {pool.get('name', path)}: path {path[:120]!r}: want it absolute, without '..' or '//'"
            )
        for other in (kubelet, *MOUNTED):
            if is_within(other, [path]):
                raise InvalidError(
                    f"pool {pool.get('name', path)}: path {path[:120]}: the agent's pod has another folder at {other};"
                    " name a folder that does not hold it"
                )
        found.append(path)
    return [
        path for path in dict.fromkeys(found) if not is_within(path, [kubelet, *(one for one in found if one != path)])
    ]


def is_within(path: str, folders: Iterable[str]) -> bool:
    """Whether that folder is one of the others or is in one."""
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


@dataclass(frozen=True)
class ContentFolder:
    """A folder of the node that volumes are filled from. type: of its hostPath. is_written: by the agent."""

    path: str
    type: str
    is_written: bool = False


def content_folders(file: Values, pools: Sequence[Mapping[str, Any]]) -> list[ContentFolder]:
    """The image stores and sources of a node's file, each once; none in a pool's folder or the kubelet's.

    An empty folder may become an image store. A source that is not there is a fault, never an empty volume. The inline
    driver `image` notes in the stores which layers are in use, and pulls into them. Raises: InvalidError.
    """
    shared = [file["kubelet"], *pool_folders(pools, file["kubelet"])]
    images = [one for one in parse_inlines(file.get("inline", ())) if one.kind == "image"]
    inline = [str(path) for one in images for path in image_folders(one)]
    found: dict[str, ContentFolder] = {}
    for option, texts, kind in (
        ("image_stores", file.get("image_stores", ()), "DirectoryOrCreate"),
        ("sources", file.get("sources", ()), "Directory"),
        ("inline", inline, "Directory"),
    ):
        for text in texts:
            path = str(PurePosixPath(text))
            if ".." in PurePosixPath(path).parts:
                raise InvalidError(f"{option} {path[:120]!r}: want it without '..'")
            if path in (*MOUNTED, file["kubelet"], "/"):
                raise InvalidError(f"{option} {path}: the agent's pod has another folder there; name one below it")
            if not is_within(path, shared):
                is_written = bool(images) and option == "image_stores"
                found.setdefault(path, ContentFolder(path, kind, is_written))
    return list(found.values())


def _is_yes(name: str, key: str, text: str) -> bool:
    if text not in ("yes", "no", "true", "false"):
        raise InvalidError(f"class {name}: {key}={text[:40]}: want yes or no")
    return text in ("yes", "true")

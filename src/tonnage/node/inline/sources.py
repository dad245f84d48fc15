"""The table of inline sources: which kinds there are and how each is built. The one place that names them all.

A new kind adds a row here and a module of its own. Building a source does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import InvalidError
from tonnage.csi.inline.base import InlineSource, PodEvents
from tonnage.csi.inline.cert.attributes import CERT_MANAGER
from tonnage.csi.inline.cert.issuers.table import OPTIONS as CERTIFICATE_OPTIONS
from tonnage.csi.inline.cert.issuers.table import CertificateContext, OwnIssuer, configured_source
from tonnage.csi.inline.node_labels import NodeLabelSource
from tonnage.csi.inline.trees import TreePools
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.client import Client
from tonnage.node.inline.config import NAME, InlineConfig


@dataclass(frozen=True)
class InlineContext:
    """What a node offers to sources.

    client: of the API server, None where there is none (also for manifests, which build a source to read its needs).
    events: emits Events on pods. image_stores: in the order of look-up. pools: makes writable layers. state: a folder
    on disk for all drivers of the node. namespace: of the controller. own_issuer: of certificates that this process
    signs itself, as the box does.
    """

    node: str
    client: Client | None
    events: PodEvents
    clock: Clock
    image_stores: tuple[Path, ...] = ()
    pools: TreePools | None = None
    state: Path = Path("/nonexistent")
    namespace: str = names.SYSTEM_NAMESPACE
    own_issuer: OwnIssuer | None = None


@dataclass(frozen=True)
class InlineKind:
    """A row of the table.

    options: keys of `--inline` that the kind takes. aliases: word of --compat -> name of a driver whose manifests it
    runs. shows_trees: whether its volumes may be writable trees, whose group the kubelet sets.
    """

    build: Callable[[InlineContext, Mapping[str, str]], InlineSource]
    options: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)
    shows_trees: bool = False


def _node_labels(context: InlineContext, _options: Mapping[str, str]) -> InlineSource:
    return NodeLabelSource(context.node, context.client, context.clock)


def _image(context: InlineContext, options: Mapping[str, str]) -> InlineSource:
    from tonnage.csi.inline.image.source import DEFAULT_SIZE, image_inline
    from tonnage.storage.registry.client import parse_access

    registries, mirrors = (options[key].split("+") if options.get(key) else [] for key in ("registry", "mirror"))
    access = parse_access(registries, Path(options["ca"]) if "ca" in options else None, mirrors)
    size = to_bytes(options["writable"]) if "writable" in options else DEFAULT_SIZE
    accepts = context.pools.accepts if context.pools is not None else lambda key: False
    return image_inline(
        context.image_stores,
        access,
        folder=_path(options, "folder"),
        containerd=_path(options, "containerd"),
        default_size=size or None,
        accepts=accepts,
        events=context.events,
    )


def _path(options: Mapping[str, str], key: str) -> Path | None:
    """Raises: InvalidError for a relative one."""
    if key not in options:
        return None
    if not options[key].startswith("/") or ".." in options[key].split("/"):
        raise InvalidError(f"--inline image: {key}={options[key][:120]}: want an absolute path without '..'")
    return Path(options[key])


def _certificates(context: InlineContext, options: Mapping[str, str]) -> InlineSource:
    node = CertificateContext(context.client, context.clock, context.node, context.own_issuer, context.namespace)
    return configured_source(options[NAME], options, node)


def image_folders(config: InlineConfig) -> list[Path]:
    """The folders that a driver of the kind `image` reads, apart from image stores. Raises: InvalidError."""
    folder, socket = _path(config.options, "folder"), _path(config.options, "containerd")
    return [path for path in (folder, socket.parent if socket else None) if path is not None]


KINDS: Mapping[str, InlineKind] = {
    "image": InlineKind(
        _image,
        frozenset({"registry", "mirror", "ca", "writable", "folder", "containerd"}),
        {"image-populator": names.IMAGE_POPULATOR, "container-image": names.CONTAINER_IMAGE},
        shows_trees=True,
    ),
    "cert": InlineKind(_certificates, CERTIFICATE_OPTIONS, aliases={"cert-manager": CERT_MANAGER}),
    "node-labels": InlineKind(_node_labels),
}


def kind_of(config: InlineConfig) -> InlineKind:
    """Return the row of a kind. Raises: InvalidError for an unknown kind or option."""
    kind = KINDS.get(config.kind)
    if kind is None:
        raise InvalidError(f"--inline {config.kind[:63]!r}: there is no such kind; there is {', '.join(KINDS)}")
    for key in config.options:
        if key not in kind.options:
            known = ", ".join(sorted({"name", "memory", *kind.options}))
            raise InvalidError(f"--inline {config.kind}: unknown option {key[:63]!r}; there is {known}")
    return kind


def compat_inlines() -> dict[str, str]:
    """Word of --compat -> the inline driver that it serves, as after --inline."""
    return {word: f"{name},name={driver}" for name, kind in KINDS.items() for word, driver in kind.aliases.items()}


def build(config: InlineConfig, context: InlineContext) -> InlineSource:
    """Return the source of one driver. Raises: InvalidError."""
    return kind_of(config).build(context, {NAME: config.name, **config.options})


def csi_drivers(configs: Sequence[InlineConfig], clock: Clock) -> list[dict[str, Any]]:
    """Return the CSIDriver objects of drivers. Raises: InvalidError."""
    nowhere = InlineContext("", None, lambda pod, type_, reason, message: None, clock)
    return [csi_driver(config, build(config, nowhere), kind_of(config)) for config in configs]


def csi_driver(config: InlineConfig, source: InlineSource, kind: InlineKind) -> dict[str, Any]:
    """Return the CSIDriver object of a driver."""
    needs = source.needs
    tokens: list[dict[str, Any]] = [{"audience": audience} for audience in needs.audiences]
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {
            "name": config.name,
            "labels": {"security.openshift.io/csi-ephemeral-volume-profile": "restricted"},
        },
        "spec": {
            "attachRequired": False,
            "podInfoOnMount": True,
            "storageCapacity": False,
            "fsGroupPolicy": "File" if kind.shows_trees else "None",
            "volumeLifecycleModes": ["Ephemeral", *(["Persistent"] if needs.persistent else [])],
            "requiresRepublish": needs.republish or bool(tokens),
            **({"tokenRequests": tokens, "serviceAccountTokenInSecrets": True} if tokens else {}),
        },
    }

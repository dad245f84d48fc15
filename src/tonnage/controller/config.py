"""Configuration of `tonnage controller`, the one declaration of its options, and the context of its controllers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.errors import InvalidError
from tonnage.base.option import Option
from tonnage.controller.attach.drivers import AttachEndpoint
from tonnage.controller.certificates.authority_folder import AuthorityFolder
from tonnage.csi.inline.cert.authority import LoadAuthority
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.csi.server.sockets import socket_path
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.number import whole
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.leader_process import ReplicaConfig
from tonnage.provisioning.capacity import tier
from tonnage.provisioning.capacity.node_template import NodeTemplate, TemplateCapacity

OUR_DRIVERS = {names.DRIVER: names.TOPOLOGY_NODE}


def parse_drivers(texts: Sequence[str]) -> dict[str, str]:
    """Return driver or other provisioner -> topology key, of NAME=TOPOLOGY_KEY. Raises: InvalidError."""
    found = {}
    for text in texts:
        name, equals, key = text.partition("=")
        is_name = name in names.FLEX_PROVISIONERS or names.is_dns_subdomain(name.lower())
        if not equals or not is_name or not key:
            raise InvalidError(
                f"--driver {text[:80]!r}: want NAME=TOPOLOGY_KEY, as csi.example.com=topology.example.com/node"
            )
        found[name] = key
    return found


def _all_drivers(texts: Sequence[str]) -> dict[str, str]:
    return {**OUR_DRIVERS, **parse_drivers(texts)}


@dataclass(frozen=True)
class SigningConfig:
    """An issuer of certificates. load: returns its authority, read anew; raises UnavailableError, ApiError."""

    load: LoadAuthority
    policy: NamePolicy


def parse_certificate_issuers(texts: Sequence[str]) -> dict[str, SigningConfig]:
    """Return the issuers by name. Raises: InvalidError."""
    return dict(_signing(text) for text in texts)


def _signing(text: str) -> tuple[str, SigningConfig]:
    wanted = "want NAME=FOLDER[,allow=KIND:PATTERN][,days=N][,domain=DOMAIN][,is-ca=true]"
    name, equals, rest = text.partition("=")
    folder, *options = rest.split(",")
    pairs = [option.partition("=") for option in options]
    given = {key: value for key, _, value in pairs}
    if not names.is_dns_subdomain(name) or not equals or not folder.startswith("/"):
        raise InvalidError(f"--certificate-issuer {text[:80]!r}: {wanted}; FOLDER is an absolute path")
    days = whole(given.get("days", "90"))
    if given.keys() - {"allow", "days", "domain", "is-ca"} or not days or given.get("is-ca", "true") != "true":
        raise InvalidError(f"--certificate-issuer {text[:80]!r}: {wanted}")
    policy = NamePolicy(
        cluster_domain=given.get("domain", "cluster.local"),
        allow=tuple(value for key, _, value in pairs if key == "allow"),
        is_ca="is-ca" in given,
        longest=days * 86400.0,
    )
    return name, SigningConfig(AuthorityFolder(Path(folder)), policy)


def parse_group_labels(texts: Sequence[str]) -> list[str]:
    """Check keys of labels whose values are node groups. Raises: InvalidError."""
    for text in texts:
        if not _is_group_label(text):
            raise InvalidError(f"--node-group-label {text[:80]!r}: want a label's key, as eks.amazonaws.com/nodegroup")
    return list(texts)


def parse_templates(texts: Sequence[str]) -> list[NodeTemplate]:
    """Return the template nodes, one for each group. Raises: InvalidError."""
    found = [_template(text) for text in texts]
    groups = [template.group for template in found]
    if doubles := [group for number, group in enumerate(groups) if group in groups[:number]]:
        raise InvalidError(
            f"--node-template: {doubles[0]} is given twice: name all its classes in one, parted by commas"
        )
    return found


def parse_endpoints(texts: Sequence[str]) -> list[AttachEndpoint]:
    """Return the endpoints of drivers whose volumes are attached. Raises: InvalidError."""
    return [AttachEndpoint(socket_path(text)) for text in dict.fromkeys(texts)]


def _is_group_label(key: str) -> bool:
    """Return whether a label can identify groups: the label of template nodes is the same for all of them."""
    return names.is_label_key(key) and key != names.TEMPLATE_NODE


def _template(text: str) -> NodeTemplate:
    group, colon, by_class = text.partition(":")
    label, equals, value = group.partition("=")
    if not colon or not equals or not _is_group_label(label) or not names.is_label_value(value):
        raise InvalidError(
            f"--node-template {text[:80]!r}: want LABEL=VALUE:CLASS=SIZE, as pool=big:tonnage-scratch=100Gi"
        )
    return NodeTemplate(group, dict(_class_capacity(part, text) for part in by_class.split(",")))


def _class_capacity(text: str, whole: str) -> tuple[str, TemplateCapacity]:
    name, equals, sizes = text.partition("=")
    size, slash, largest = sizes.partition("/")
    if not equals or not names.is_dns_subdomain(name):
        raise InvalidError(f"--node-template {whole[:80]!r}: {text[:60]!r} is not CLASS=SIZE or CLASS=SIZE/LARGEST")
    free = to_bytes(size)
    most = min(free, to_bytes(largest)) if slash else free
    if most < 0:
        raise InvalidError(f"--node-template {whole[:80]!r}: {text[:60]!r}: a size is at least 0")
    return name, TemplateCapacity(free, most)


@dataclass(frozen=True)
class ControllerConfig(ReplicaConfig):
    """Configuration of a controller process.

    namespace: also of capacity objects. drivers: CSI drivers of our agents -> their topology key. capacity: how
    capacity is published, exact or in tiers. evict_unfit: whether pods that opt in are evicted if their inline volume
    does not fit. templates: capacity of template nodes. group_labels: labels of node groups whose template capacity is
    learned. certificate_issuers: issuers whose certificates are signed here, by name. snapshot_controller: whether
    VolumeSnapshots are bound here. attach_endpoints: sockets of the drivers whose volumes are attached here.
    """

    drivers: Annotated[
        Mapping[str, str],
        Option(
            f"another CSI driver that the agents serve, in addition to {names.DRIVER}; repeatable",
            "NAME=TOPOLOGY_KEY",
            written=list[str],
            parse=_all_drivers,
        ),
    ] = field(default_factory=lambda: OUR_DRIVERS)
    certificate_issuers: Annotated[
        Mapping[str, SigningConfig],
        Option(
            "sign certificates of inline volumes for signer tonnage.dev/NAME with tls.crt and tls.key of a folder;"
            " repeatable. allow: a name beyond the pod's own, as dns:*.example.com; days: longest life, 90 by default;"
            " domain: the cluster's, cluster.local by default; is-ca: true, pods may be authorities",
            "NAME=FOLDER[,allow=KIND:PATTERN][,days=N][,domain=DOMAIN][,is-ca=true]",
            written=list[str],
            parse=parse_certificate_issuers,
        ),
    ] = field(default_factory=dict)
    capacity: Annotated[
        str,
        Option(
            "how capacity is published: exact, one object for each node and class; tiers, by node labels;"
            f" auto (default): tiers on more than {tier.AUTO_ABOVE} nodes",
            choices=tier.MODES,
        ),
    ] = tier.MODES[0]
    evict_unfit: Annotated[
        bool,
        Option(
            "evict pods whose inline volume does not fit on their node, if pod or namespace has"
            f" {names.EVICT_UNFIT}=true and a controller replaces the pod",
            written=bool,
        ),
    ] = False
    free_populators: Annotated[
        bool,
        Option(
            "evict pods of volume populators that wait on a node which their claims have left (lib-volume-populator)",
            written=bool,
        ),
    ] = False
    group_labels: Annotated[
        Sequence[str],
        Option(
            "a label whose value is a node's group: the capacity of its new nodes is learned and published for the"
            " cluster autoscaler; repeatable",
            "LABEL",
            name="node_group_labels",
            written=list[str],
            parse=parse_group_labels,
        ),
    ] = ()
    snapshot_controller: Annotated[
        bool,
        Option(
            "be the snapshot controller of the cluster, for all CSI drivers, unless another one holds its Lease",
            written=bool,
        ),
    ] = False
    attach_endpoints: Annotated[
        Sequence[AttachEndpoint],
        Option(
            "a CSI driver whose volumes must be attached: attach and detach them, in place of its external-attacher,"
            " and publish its capacity if it has no topology; the socket of its controller service; repeatable",
            "unix:///DIR/csi.sock",
            written=list[str],
            parse=parse_endpoints,
        ),
    ] = ()
    templates: Annotated[
        Sequence[NodeTemplate],
        Option(
            "capacity of a new node of such a group for each class, and its maximum volume size; repeatable",
            "LABEL=VALUE:CLASS=SIZE[/LARGEST],...",
            name="node_templates",
            written=list[str],
            parse=parse_templates,
        ),
    ] = ()


class LoopKey(NamedTuple):
    """A key of a controller that handles several kinds. what: the kind, as the controller names it."""

    what: str
    key: str


@dataclass(frozen=True)
class LoopContext:
    """Client, shared caches, Events, clock and configuration.

    provisioners: of claims that the controllers handle; empty: all. pod_fields: narrows the watch of pods
    (`status.phase=Pending`). seeing: schedulers that report class errors on pods themselves. choosing: schedulers that
    check sources of clones themselves; None: all do.
    """

    client: Client
    informers: Informers
    events: EventRecorder
    config: ControllerConfig
    clock: Clock = field(default_factory=RealClock)
    provisioners: Collection[str] = ()
    pod_fields: str = ""
    seeing: Collection[str] = ()
    choosing: Collection[str] | None = None

    def handles(self, provisioner: str) -> bool:
        """Return whether claims of a provisioner are handled."""
        return not self.provisioners or provisioner in self.provisioners


def is_unstarted(pod: Pod) -> bool:
    """Return whether a pod waits for its first container."""
    return pod.status.phase in ("", "Pending") and not pod.metadata.deleting


def node_label_of(obj: KubeObject) -> str:
    """Return the node of a volume or capacity object by its label, "" without one."""
    return obj.metadata.labels.get(names.NODE_LABEL, "")

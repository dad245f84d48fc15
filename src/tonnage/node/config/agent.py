"""Configuration of a node agent: the one declaration of its options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tonnage.base.option import Option
from tonnage.csi.server.sockets import socket_path
from tonnage.kubernetes.api import names
from tonnage.provisioning.capacity import tier
from tonnage.provisioning.claims.node_scope import NodeScope

BINDINGS = ("agent", "controller")
SCOPES = ("auto", "label", "all")


def _socket_paths(texts: list[str]) -> tuple[Path, ...]:
    return tuple(map(socket_path, texts))


@dataclass(frozen=True)
class AgentConfig:
    """Configuration of a node agent, passed whole to its controllers.

    namespace: of capacity objects. binding: who binds claims, `agent` or `controller` (the PV controller). scope: the
    watch scope of claims. capacity: how capacity is published, exact or in tiers. starvation_guard: reschedules of a
    pod after which the node reserves capacity for it, 0 for never. endpoints: CSI sockets of external drivers.
    elsewhere: CSI sockets on other nodes, for drivers without topology whose controller service is not here.

    cluster_uid: uid of the namespace kube-system. former_clusters: uids that it had before the cluster's database was
    lost.
    startup_taint: drivers that the kubelet must list before the agent removes the start-up taint; empty: the agent does
    not check for it. kubelet: the kubelet's directory, below which volumes are staged. poll: seconds between two
    GetCapacity calls that notice foreign use of the disk, 0 for none.
    sweep_every: seconds between two sweeps, 0 for sweeps only at start and after a loss. flexvolume: classes of
    FlexVolume provisioners are served. state: the node's folder in which the agent remembers the API server's history,
    None for none.
    """

    node_name: str
    namespace: Annotated[
        str,
        Option(
            f"namespace of capacity objects (default: $POD_NAMESPACE, else {names.SYSTEM_NAMESPACE})",
            "NAME",
            environ="POD_NAMESPACE",
        ),
    ] = names.SYSTEM_NAMESPACE
    binding: Annotated[
        str,
        Option(
            "who binds claims to this node's volumes: agent (default) or controller, the cluster's PV controller",
            "WHO",
            name="bind",
            choices=BINDINGS,
        ),
    ] = BINDINGS[0]
    scope: Annotated[
        str,
        Option(
            "which claims are watched: those labeled with this node, all, or as the cluster allows (auto, default)",
            choices=SCOPES,
        ),
    ] = SCOPES[0]
    capacity: Annotated[
        str,
        Option(
            "how capacity is published: exact, an object for each class; tiers, by node labels; auto"
            " (default): as the cluster's controller",
            choices=tier.MODES,
        ),
    ] = tier.MODES[0]
    starvation_guard: Annotated[
        int,
        Option(
            "reserve a node's capacity for a pod with several volumes whose claims were rescheduled N times, so that"
            " smaller pods do not starve it (default: never)",
            "N",
            written=int,
            wanted="a number of reschedules, 0 for never",
        ),
    ] = 0
    endpoints: Annotated[
        tuple[Path, ...],
        Option(
            "another CSI driver of this node that the agent serves as well; repeatable",
            "unix:///DIR/csi.sock",
            name="csi_endpoints",
            written=list[str],
            parse=_socket_paths,
            adds=True,
        ),
    ] = ()
    elsewhere: tuple[Path, ...] = ()
    cluster_uid: str = ""
    former_clusters: tuple[str, ...] = ()
    startup_taint: tuple[str, ...] = ()
    kubelet: Path = Path("/var/lib/kubelet")
    poll: float = 60.0
    sweep_every: float = 3600.0
    flexvolume: bool = False
    state: Path | None = None

    @property
    def node_scope(self) -> NodeScope:
        """Which claims and PVs are this node's."""
        return NodeScope(self.node_name, self.cluster_uid, frozenset(self.former_clusters))

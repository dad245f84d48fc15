"""The source of a snapshot, its default class, Secret and node.

Used by the decision and the loops. Nothing here writes to the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tonnage.base.errors import InvalidError
from tonnage.controller.config import node_label_of
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import NODES
from tonnage.kubernetes.api.selectors import node_matcher
from tonnage.kubernetes.client.client import Client
from tonnage.provisioning.claims.snapshot_shape import K


def driver_of(claim: PersistentVolumeClaim, volume: PersistentVolume | None, snapshot: str) -> str:
    """The driver of a claim's volume. snapshot: key of what is made. Raises: InvalidError for what is no source."""
    name = claim.metadata.name
    if claim.metadata.deleting:
        raise InvalidError(f"claim {claim.key} is being deleted")
    if not claim.spec.volume_name or claim.status.phase != "Bound" or volume is None:
        raise InvalidError(f"the PVC {name} is not yet bound to a PV, will not attempt to take a snapshot")
    ref = volume.spec.claim_ref
    if ref is None or (ref.namespace, ref.name) != (claim.metadata.namespace, name) or ref.uid != claim.metadata.uid:
        raise InvalidError(f"PersistentVolume {volume.metadata.name} is not bound to claim {claim.key}")
    if volume.spec.csi is None:
        raise InvalidError(f"snapshotting non-CSI volumes is not supported, snapshot:{snapshot}")
    return volume.spec.csi.driver


def default_class(defaults: Sequence[K], driver: str, *, what: str) -> K:
    """The default class of a driver. what: of snapshots or of groups. Raises: InvalidError."""
    found = [one for one in defaults if one.driver == driver]
    if not found:
        raise InvalidError(f"cannot find default {what} class of driver {driver}: name a class")
    if len(found) > 1:
        raise InvalidError(f"{len(found)} default {what} classes were found for driver {driver}: name one of them")
    return found[0]


def secret_of(chosen: K, role: str, tokens: Mapping[str, str]) -> tuple[str, str] | None:
    """Name and namespace of the Secret of a class, None where it has none.

    role: of the driver's call, as its keys name it. tokens: what the class may refer to; those that end in `.name` of
    the snapshot itself are for the Secret's name only. Raises: InvalidError.
    """
    given, where = chosen.parameters, f"class {chosen.metadata.name}"
    if chosen.driver == names.DRIVER:
        keys = sorted(key for key in given if key.startswith(names.CSI_PREFIX) and "secret" in key)
        if keys:
            raise InvalidError(f"{where}: {keys[0]}: {names.DRIVER} uses no secrets: remove it")
        return None
    prefix = f"{names.CSI_PREFIX}{role}-secret-"
    name, namespace = given.get(f"{prefix}name", ""), given.get(f"{prefix}namespace", "")
    if not name and not namespace:
        return None
    if not name or not namespace:
        raise InvalidError(f"either name and namespace for {role} secrets specified, Both must be specified")
    filled = _filled(name, tokens)
    place = _filled(namespace, {key: value for key, value in tokens.items() if not key.endswith("snapshot.name")})
    if not names.is_dns_subdomain(filled) or not names.is_dns_label(place):
        raise InvalidError(f"{where}: secret {place[:80]}/{filled[:80]} is no name of a Secret")
    return filled, place


def _filled(template: str, tokens: Mapping[str, str]) -> str:
    for word, value in tokens.items():
        template = template.replace(f"${{{word}}}", value)
    return template


async def node_of(client: Client, volume: PersistentVolume | None) -> str:
    """The node that makes snapshots of a volume, as a label's value; "" where every node can, or none is known."""
    if volume is None or (label := node_label_of(volume)):
        return label if volume is not None else ""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return ""
    matches = node_matcher(affinity.required)
    nodes = (await client.list(NODES, tolerant=True)).items
    found = sorted(node.metadata.name for node in nodes if matches(node.metadata.labels, node.metadata.name))
    return names.label_value(found[0]) if found else ""

"""From a claim to a CreateVolume request, and from its result to a PersistentVolume, as external-provisioner.

Pure, except for secrets and VolumeAttributesClasses. What this agent does not support is rejected by name.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tonnage.base.errors import InvalidError
from tonnage.csi.client import types
from tonnage.csi.client.types import CreatedVolume
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, SECRETS
from tonnage.kubernetes.api.matching import requested
from tonnage.kubernetes.api.meta import to_builtins
from tonnage.kubernetes.api.origin import is_clone, is_content, is_restore, reference
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.api.storage import StorageClass, VolumeAttributesClass
from tonnage.kubernetes.client.client import Client, refer
from tonnage.provisioning.claims import autogrow
from tonnage.provisioning.claims.attributes import AttributesClasses
from tonnage.provisioning.claims.node_scope import DriverInfo, NodeScope, is_ephemeral
from tonnage.storage.content import spec as spec_of
from tonnage.storage.content.spec import ContentSpec
from tonnage.storage.pools.base.parameters import SOURCE, KeyReader, keys_of

_ROLES = ("", "provisioner-", "controller-publish-", "node-stage-", "node-publish-", "controller-expand-",
          "node-expand-", "controller-modify-")  # fmt: skip
_SECRET_KEYS = frozenset(f"{names.CSI_PREFIX}{role}secret-{part}" for role in _ROLES for part in ("name", "namespace"))
_OLD_SECRET_KEYS = frozenset(
    f"csi{role}Secret{part}"
    for role in ("Provisioner", "ControllerPublish", "NodeStage", "NodePublish")
    for part in ("Name", "Namespace")
)
_RESERVED = _SECRET_KEYS | _OLD_SECRET_KEYS | {names.CSI_FSTYPE}
AGENT_KEYS = keys_of(KeyReader.AGENT)
"""Class parameters that are for the agent, not for the driver."""
_NOT_FLEX = frozenset({names.ON_NODE_GONE, names.RECLAIM_FINISHED, *names.AUTOGROW_KEYS})
"""Of those, the ones that need a PersistentVolume of a CSI driver."""
_UNUSED = {"monostream.com/localflex-provisioner": frozenset({"path", "affinity"})}
"""Class parameters of a provisioner that are accepted and not used: no path of a class is followed."""
_TOKEN = re.compile(r"\$\{([^}]*)\}")
_ANNOTATION = re.compile(r"pvc\.annotations\['([^']+)'\]")

KEEP = "keep"
_RELEASE = "release-after:"
_TIME = re.compile(r"(?:(\d{1,5})d)?(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,6})s)?")
_UNITS = (86400, 3600, 60, 1)
_SECRETS = {
    "controllerPublishSecretRef": "controller-publish-",
    "nodeStageSecretRef": "node-stage-",
    "nodePublishSecretRef": "node-publish-",
    "controllerExpandSecretRef": "controller-expand-",
    "nodeExpandSecretRef": "node-expand-",
}
_SHORTEST = 60
"""Minimum seconds: a node that registers again is gone for a moment."""


@dataclass(frozen=True)
class SecretRef:
    """Name and namespace of a Secret."""

    name: str
    namespace: str


@dataclass(frozen=True)
class ClaimRequest:
    """One CreateVolume request.

    name: also the PV's name. size: bytes. content: content source, None for an empty volume. attributes: the claim's
    VolumeAttributesClass, None for none. filled_from: what our driver fills it with, for people, "" for nothing: then
    CreateVolume may take long, and is repeated meanwhile.
    """

    name: str
    size: int
    capabilities: tuple[types.VolumeCapability, ...]
    parameters: Mapping[str, str]
    topology: types.CsiTopologyRequirement | None
    secret: SecretRef | None
    fstype: str
    block: bool
    content: types.ContentSource | None = None
    filled_from: str = ""
    attributes: VolumeAttributesClass | None = None

    @property
    def mutable(self) -> Mapping[str, str]:
        """The parameters of the VolumeAttributesClass."""
        return self.attributes.parameters if self.attributes is not None else {}


def plan(
    claim: PersistentVolumeClaim, storage_class: StorageClass, driver: DriverInfo, scope: NodeScope
) -> ClaimRequest:
    """Return the request for a claim, without its content source and its VolumeAttributesClass.

    Raises: InvalidError with what is not supported.
    """
    spec = claim.spec
    ours = {names.RECLAIM_FINISHED: reclaims_finished(storage_class), names.UNDELETE: undelete(storage_class)}
    if not driver.default_pool and (named := [key for key, value in ours.items() if value]):
        raise InvalidError(f"parameter {named[0]}: driver {driver.name} is not tonnage's: leave it out")
    if spec.selector is not None:
        raise InvalidError("claim Selector is not supported")
    _check_source(claim, driver)
    if spec.volume_attributes_class_name:
        _check_modifiable(spec.volume_attributes_class_name, storage_class, driver)
    name = names.volume_name(claim.metadata.uid)
    block = spec.volume_mode == "Block"
    if storage_class.provisioner in driver.flex:
        _check_flex(claim)
    fstype = "" if block else fstype_of(storage_class)
    return ClaimRequest(
        name,
        requested(claim),
        _capabilities(claim, storage_class, driver, block=block, fstype=fstype),
        {**parameters_of(storage_class), **_record(claim, storage_class, driver, scope)},
        _topology(storage_class, driver, scope),
        secret_of(storage_class.parameters, "provisioner-", claim, name),
        fstype,
        block,
        filled_from=_filled_from(storage_class, driver),
    )


async def planned(
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    driver: DriverInfo,
    scope: NodeScope,
    classes: AttributesClasses,
) -> ClaimRequest:
    """Return the request for a claim with its VolumeAttributesClass, without its content source.

    Raises: InvalidError; PreconditionError while its VolumeAttributesClass does not exist; ApiError, UnavailableError.
    """
    request = plan(claim, storage_class, driver, scope)
    if not claim.spec.volume_attributes_class_name:
        return request
    return replace(request, attributes=await classes.of_claim(claim, driver))


def _check_modifiable(name: str, storage_class: StorageClass, driver: DriverInfo) -> None:
    if types.MODIFY_VOLUME not in driver.controller:
        why = f"driver {driver.name} changes no volumes (no MODIFY_VOLUME)"
    elif driver.publishes_ahead(storage_class):
        why = "volumes of its StorageClass are whole disks, which have no such attributes"
    else:
        return
    raise InvalidError(f"VolumeAttributesClass {name!r} is not supported: {why}; make the claim without it")


def _check_flex(claim: PersistentVolumeClaim) -> None:
    """Raise InvalidError for what a claim cannot have of a FlexVolume."""
    if claim.spec.volume_mode == "Block":
        raise InvalidError(f"volumeMode Block: a FlexVolume has a file system; use a class of {names.DRIVER}")
    if claim.spec.volume_attributes_class_name:
        raise InvalidError(f"VolumeAttributesClass: a FlexVolume cannot have one; use a class of {names.DRIVER}")


def _check_flex_class(storage_class: StorageClass) -> None:
    """Raise InvalidError for what a class of FlexVolumes cannot have: the kubelet, or Kubernetes, would ignore it."""
    asked = [key for key in storage_class.parameters if key in _NOT_FLEX or key in _SECRET_KEYS | _OLD_SECRET_KEYS]
    asked = [f"parameter {key}" for key in asked]
    asked += ["mountOptions"] if storage_class.mount_options else []
    asked += ["allowVolumeExpansion"] if storage_class.allow_volume_expansion else []
    if asked:
        raise InvalidError(f"{asked[0]}: not offered for FlexVolumes; leave it out, or use a class of {names.DRIVER}")


def _check_source(claim: PersistentVolumeClaim, driver: DriverInfo) -> None:
    """Raise InvalidError for a data source that no driver, or not this one, can copy."""
    source = reference(claim)
    if source is None:
        return
    if is_content(claim):
        if not driver.default_pool:
            raise InvalidError(
                f"driver {driver.name} fills no volumes from a Content: use a class of tonnage's driver, {names.DRIVER}"
            )
    elif is_restore(claim):
        if types.CREATE_DELETE_SNAPSHOT not in driver.controller:
            raise InvalidError(f"driver {driver.name} cannot restore snapshots: claim an empty volume")
    elif not is_clone(claim):
        raise InvalidError(
            f"data source {source.kind} {source.name!r} is not supported: claim an empty volume, or a copy of a claim"
            " or snapshot of the namespace"
        )
    elif types.CLONE_VOLUME not in driver.controller:
        raise InvalidError(f"driver {driver.name} cannot copy volumes: claim an empty volume")


def _filled_from(storage_class: StorageClass, driver: DriverInfo) -> str:
    """Return what volumes of the class are filled with, "" for nothing. Raises: InvalidError."""
    content = spec_of.of_source(storage_class.parameters.get(SOURCE, "")) if driver.default_pool else None
    return str(content or "")


def filled(request: ClaimRequest, content: ContentSpec) -> ClaimRequest:
    """Return the request for a volume with that content, whatever its class says."""
    parameters = {**request.parameters, names.PARAM_CONTENT: spec_of.encode(content)}
    return replace(request, parameters=parameters, filled_from=str(content))


def parameters_of(storage_class: StorageClass) -> dict[str, str]:
    """Return the class parameters that the driver gets.

    Raises: InvalidError for an unknown reserved key or an invalid value of ours.
    """
    release_after(storage_class.parameters)
    autogrow.check(storage_class.parameters)
    reclaims_finished(storage_class)
    undelete(storage_class)
    if storage_class.provisioner in names.FLEX_PROVISIONERS:
        _check_flex_class(storage_class)
    result = {}
    for key, value in _given(storage_class).items():
        if key in _RESERVED or key.lower() == "fstype" or key in AGENT_KEYS:
            continue
        if key.startswith(names.PARAMETER_PREFIX):
            known = ", ".join(sorted(AGENT_KEYS))
            raise InvalidError(f"unknown parameter {key[:60]!r}: of those for the agent there are {known}")
        if key.startswith(names.CSI_PREFIX):
            raise InvalidError(f'found unknown parameter key "{key}" with reserved namespace {names.CSI_PREFIX}')
        result[key] = value
    return result


def _given(storage_class: StorageClass) -> dict[str, str]:
    """Return the class's parameters, without those that are not used."""
    unused = _UNUSED.get(storage_class.provisioner, ())
    return {key: value for key, value in storage_class.parameters.items() if key not in unused}


def reclaims_finished(storage_class: StorageClass) -> bool:
    """Return whether an ephemeral volume of the class loses its data as soon as its pod has finished.

    Raises: InvalidError for another value than true and false, and for reclaim policy Retain.
    """
    text = storage_class.parameters.get(names.RECLAIM_FINISHED, "false")
    if text not in ("true", "false"):
        raise InvalidError(f"parameter {names.RECLAIM_FINISHED} {text[:60]!r}: want true or false")
    if text == "true" and storage_class.reclaim_policy == "Retain":
        raise InvalidError(
            f"parameter {names.RECLAIM_FINISHED} deletes data, reclaimPolicy Retain retains it: choose one"
        )
    return text == "true"


def release_after(parameters: Mapping[str, str]) -> float | None:
    """Return seconds until volumes of a lost node are released; None: never.

    Raises: InvalidError for other text.
    """
    text = parameters.get(names.ON_NODE_GONE, KEEP)
    if text == KEEP:
        return None
    seconds = _seconds(text.removeprefix(_RELEASE)) if text.startswith(_RELEASE) else None
    if seconds is None:
        raise InvalidError(
            f"parameter {names.ON_NODE_GONE} {text[:60]!r}: want {KEEP}, or {_RELEASE}TIME as {_RELEASE}1h30m"
            " (d, h, m, s)"
        )
    if seconds < _SHORTEST:
        raise InvalidError(f"parameter {names.ON_NODE_GONE} {text[:60]!r}: the shortest time is 1m")
    return float(seconds)


def undelete(storage_class: StorageClass) -> int:
    """Return seconds for which a deleted volume of the class can be restored, 0 for not at all.

    Raises: InvalidError for other text, less than a minute, and with `tonnage.dev/reclaim-finished`.
    """
    text = storage_class.parameters.get(names.UNDELETE, "")
    if not text:
        return 0
    seconds = _seconds(text)
    if seconds is None or seconds < _SHORTEST:
        raise InvalidError(f"parameter {names.UNDELETE} {text[:60]!r}: want a time as 24h (d, h, m, s), at least 1m")
    if reclaims_finished(storage_class):
        raise InvalidError(f"parameters {names.UNDELETE} and {names.RECLAIM_FINISHED}: choose one")
    return seconds


def _seconds(text: str) -> int | None:
    """Return the seconds of a time as 1h30m, None for other text."""
    match = _TIME.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    return sum(int(number or 0) * unit for number, unit in zip(match.groups(), _UNITS, strict=True))


def capacity_parameters(storage_class: StorageClass) -> dict[str, str]:
    """Return GetCapacity's parameters: the class's, and of the agent's the one that not every pool can serve."""
    passed = {k: v for k, v in _given(storage_class).items() if not k.startswith(names.PARAMETER_PREFIX)}
    with suppress(InvalidError):  # reported by parameters_of()
        passed |= {names.UNDELETE: str(seconds)} if (seconds := undelete(storage_class)) else {}
    return passed


def fstype_of(storage_class: StorageClass) -> str:
    """Return the class's file system, "" for the driver's default.

    Raises: InvalidError when the class names two.
    """
    named = [v for k, v in storage_class.parameters.items() if k == names.CSI_FSTYPE or k.lower() == "fstype"]
    if len(named) > 1:
        raise InvalidError(f'fstype specified in parameters with both "fstype" and "{names.CSI_FSTYPE}" keys')
    return named[0] if named else ""


def secret_of(
    parameters: Mapping[str, str], role: str, claim: PersistentVolumeClaim | None, volume: str
) -> SecretRef | None:
    """Return a class's Secret for a role, with templates filled in, or None.

    role: prefix such as "provisioner-" or "node-stage-". claim None: the claim is gone, so only `${pv.name}` can be
    filled in.

    Raises: InvalidError.
    """
    if not any("ecret" in key for key in parameters):  # the usual case
        return None
    name, namespace = _template(parameters, role, "name"), _template(parameters, role, "namespace")
    if not name and not namespace:
        return None
    if not name or not namespace:
        raise InvalidError(f"{role or 'default '}secret: the class must name both its name and its namespace")
    tokens = {"pv.name": volume}
    if claim is not None:
        tokens["pvc.namespace"] = claim.metadata.namespace
    more = tokens if claim is None else {**tokens, "pvc.name": claim.metadata.name}
    annotations = {} if claim is None else claim.metadata.annotations
    return SecretRef(
        _fill(name, more, annotations, check=names.is_dns_subdomain),
        _fill(namespace, tokens, {}, check=names.is_dns_label),
    )


async def read_secret(client: Client, ref: SecretRef | None) -> dict[str, str]:
    """Return the Secret's data as text. Raises: ApiNotFoundError, InvalidError."""
    if ref is None:
        return {}
    secret = await client.get(SECRETS, ref.name, ref.namespace)
    try:
        return {key: base64.b64decode(value).decode() for key, value in secret.data.items()}
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidError(
            f"secret {ref.namespace}/{ref.name} holds a value that is not text: CSI takes text"
        ) from None


def _template(parameters: Mapping[str, str], role: str, part: str) -> str:
    old = f"csi{''.join(w.capitalize() for w in role.split('-') if w)}Secret{part.capitalize()}"
    prefix = names.CSI_PREFIX
    own = parameters.get(f"{prefix}{role}secret-{part}") or parameters.get(old)
    return own or parameters.get(f"{prefix}secret-{part}", "")


def _fill(
    template: str, tokens: Mapping[str, str], annotations: Mapping[str, str], *, check: Callable[[str], bool]
) -> str:
    def value(match: re.Match[str]) -> str:
        token = match[1]
        if token in tokens:
            return tokens[token]
        noted = _ANNOTATION.fullmatch(token)
        if noted and noted[1] in annotations:
            return annotations[noted[1]]
        raise InvalidError(f"secret template {template!r}: {token!r} cannot be filled in")

    text = _TOKEN.sub(value, template)
    if not check(text):
        raise InvalidError(f"secret template {template!r} gives {text[:80]!r}, which is not a valid name")
    return text


def _capabilities(
    claim: PersistentVolumeClaim, storage_class: StorageClass, driver: DriverInfo, *, block: bool, fstype: str
) -> tuple[types.VolumeCapability, ...]:
    fine = types.SINGLE_NODE_MULTI_WRITER in driver.controller
    flags = () if block else tuple(storage_class.mount_options)
    try:
        modes = [types.AccessMode.of(mode, single_node_multi_writer=fine) for mode in claim.spec.access_modes]
    except KeyError as unknown:
        raise InvalidError(f"access mode {unknown} is not known") from None
    return tuple(types.VolumeCapability(mode, block=block, fstype=fstype, mount_flags=flags) for mode in modes)


def capability_of(volume: PersistentVolume, driver: DriverInfo) -> types.VolumeCapability | None:
    """Return how a PV is used, None for an access mode that is not known."""
    spec, fine = volume.spec, types.SINGLE_NODE_MULTI_WRITER in driver.controller
    try:
        mode = types.AccessMode.of(next(iter(spec.access_modes), ""), single_node_multi_writer=fine)
    except KeyError:
        return None
    block, fstype = spec.volume_mode == "Block", (spec.csi.fs_type if spec.csi is not None else None) or ""
    return types.VolumeCapability(mode, block=block, fstype="" if block else fstype)


def _record(
    claim: PersistentVolumeClaim, storage_class: StorageClass, driver: DriverInfo, scope: NodeScope
) -> dict[str, str]:
    """Return the parameters that our driver records, so that a sweep knows the claim."""
    if not driver.default_pool:
        return {}
    return {
        names.CSI_PVC_NAME: claim.metadata.name,
        names.CSI_PVC_NAMESPACE: claim.metadata.namespace,
        names.CSI_PV_NAME: names.volume_name(claim.metadata.uid),
        names.PARAM_CLUSTER: scope.cluster_uid,
        names.PARAM_EPHEMERAL: "true" if is_ephemeral(claim) else "false",
        names.PARAM_RECLAIM: storage_class.reclaim_policy,
        **({names.UNDELETE: str(seconds)} if (seconds := undelete(storage_class)) else {}),
    }


def _topology(storage_class: StorageClass, driver: DriverInfo, scope: NodeScope) -> types.CsiTopologyRequirement | None:
    """Return the topology requirement: this node only.

    Each node has its own agent, so there is no other choice.
    """
    if not driver.topology:
        return None
    if not driver.segment:
        raise InvalidError(f"driver {driver.name} has topology but reported no segment for node {scope.node}")
    if not storage_class.allows(driver.segment):
        raise InvalidError(
            f'selected node "{scope.node}" with topology {dict(driver.segment)} is not in the allowed topologies'
            f" of class {storage_class.metadata.name}"
        )
    return types.CsiTopologyRequirement((driver.segment,), (driver.segment,))


def volume_of_claim(
    request: ClaimRequest,
    made: CreatedVolume,
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    driver: DriverInfo,
    scope: NodeScope,
) -> dict[str, Any]:
    """Return the PV to create: its node affinity, node label and claimRef."""
    spec: dict[str, Any] = {
        **_of_class(made, storage_class, block=request.block),
        "capacity": {"storage": from_bytes(made.size or request.size)},
        "accessModes": claim.spec.access_modes,
        "claimRef": to_builtins(refer(CLAIMS, claim)),
        **_source_of_claim(request, made, claim, storage_class, driver),
    }
    metadata: dict[str, Any] = {
        "name": request.name,
        "labels": {names.NODE_LABEL: scope.label},
        "annotations": {
            names.PROVISIONED_BY: storage_class.provisioner,
            names.DELETION_SECRET_NAME: request.secret.name if request.secret else "",
            names.DELETION_SECRET_NAMESPACE: request.secret.namespace if request.secret else "",
            **_modify_secret(storage_class, claim, driver, request.name),
        },
        **_held(storage_class),
    }
    if request.attributes is not None:
        spec["volumeAttributesClassName"] = request.attributes.metadata.name
    return {"metadata": metadata, "spec": spec}


def _held(storage_class: StorageClass) -> dict[str, Any]:
    """Return the finalizer of a PV whose volume is to be deleted.

    Without it, a PV that a person deletes goes unseen, and with it what policy it had at last (KEP-2644).
    """
    return {"finalizers": [names.PROVISIONER_FINALIZER]} if storage_class.reclaim_policy == "Delete" else {}


def _source_of_claim(
    request: ClaimRequest,
    made: CreatedVolume,
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    driver: DriverInfo,
) -> dict[str, Any]:
    """Return the PV's source: a FlexVolume for a class of a FlexVolume provisioner, else of the CSI driver."""
    if flex := driver.flex.get(storage_class.provisioner):
        filesystem = {"fsType": request.fstype} if request.fstype else {}
        return {"flexVolume": {"driver": flex, "options": {names.FLEX_HANDLE: made.id}, **filesystem}}
    source = _source(made, driver, fstype=request.fstype, block=request.block)
    return {"csi": {**source, **_secrets(storage_class, claim, request.name)}}


def volume_of_disk(
    name: str,
    made: CreatedVolume,
    storage_class: StorageClass,
    driver: DriverInfo,
    scope: NodeScope,
    *,
    fstype: str,
    block: bool,
) -> dict[str, Any]:
    """Return the pre-provisioned PV of a disk: as volume_of_claim(), without claimRef.

    ReadWriteOnce only: the API server rejects ReadWriteOncePod together with other modes.

    Raises: InvalidError for secrets that are named after a claim.
    """
    metadata: dict[str, Any] = {
        "name": name,
        "labels": {names.NODE_LABEL: scope.label, names.POOL_LABEL: names.label_value(driver.pool(storage_class))},
        "annotations": {names.PROVISIONED_BY: driver.name, names.DISK: made.context.get(names.DISK, "")},
        **_held(storage_class),
    }
    spec = {
        **_of_class(made, storage_class, block=block),
        "capacity": {"storage": from_bytes(made.size)},
        "accessModes": [names.READ_WRITE_ONCE],
        "csi": {**_source(made, driver, fstype=fstype, block=block), **_secrets(storage_class, None, name)},
    }
    return {"metadata": metadata, "spec": spec}


def _of_class(made: CreatedVolume, storage_class: StorageClass, *, block: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "persistentVolumeReclaimPolicy": storage_class.reclaim_policy,
        "storageClassName": storage_class.metadata.name,
        "volumeMode": "Block" if block else "Filesystem",
    }
    if storage_class.mount_options and not block:
        spec["mountOptions"] = storage_class.mount_options
    if made.topologies:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [topology_term(t) for t in made.topologies]}}
    return spec


def _source(made: CreatedVolume, driver: DriverInfo, *, fstype: str, block: bool) -> dict[str, Any]:
    source: dict[str, Any] = {
        "driver": driver.name,
        "volumeHandle": made.id,
        "volumeAttributes": {**made.context, names.CSI_PROVISIONER_IDENTITY: driver.identity},
    }
    return source if block or not fstype else {**source, "fsType": fstype}


def check_secrets(storage_class: StorageClass) -> None:
    """Raise InvalidError if the class's secrets are named after a claim."""
    _secrets(storage_class, None, "any")


def _secrets(storage_class: StorageClass, claim: PersistentVolumeClaim | None, volume: str) -> Mapping[str, Any]:
    found = {}
    for key, role in _SECRETS.items():
        if ref := secret_of(storage_class.parameters, role, claim, volume):
            found[key] = {"name": ref.name, "namespace": ref.namespace}
    return found


def _modify_secret(
    storage_class: StorageClass, claim: PersistentVolumeClaim, driver: DriverInfo, volume: str
) -> dict[str, str]:
    """Return the annotations that name the Secret for changes of the volume; a PV has no field for it."""
    if types.MODIFY_VOLUME not in driver.controller:
        return {}
    ref = secret_of(storage_class.parameters, "controller-modify-", claim, volume)
    return {names.MODIFY_SECRET_NAME: ref.name, names.MODIFY_SECRET_NAMESPACE: ref.namespace} if ref else {}


def topology_term(topology: Mapping[str, str]) -> dict[str, Any]:
    """Return the node selector term of a topology."""
    return {"matchExpressions": [{"key": k, "operator": "In", "values": [topology[k]]} for k in sorted(topology)]}

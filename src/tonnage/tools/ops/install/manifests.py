"""Kubernetes objects of an installation, rendered from the texts in `templates/`.

The templates are the only source of these objects: `tonnage manifests` fills them in, and a script generates the Helm
chart from them. A template is YAML with `${name}`: within a line it is replaced by text, alone on a line by a block of
YAML with the line's indentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from tonnage import __version__
from tonnage.base.aio.clock import RealClock
from tonnage.base.option import Option
from tonnage.controller.config import parse_endpoints
from tonnage.csi.inline.cert.issuers.remote import SIGNER_DOMAIN
from tonnage.csi.inline.cert.issuers.table import CSR, parse_targets
from tonnage.kubernetes.api import names
from tonnage.node.inline import sources
from tonnage.node.inline.config import parse_inlines
from tonnage.tools.ops.install.options import (
    GROUP_LABEL,
    Class,
    ContentFolder,
    Installation,
    content_folders,
    is_within,
    pool_folders,
)

SCOPE_POLICY_SINCE = EMPTY_DIR_POLICY_SINCE = (1, 36)
AGENT_POLICY_SINCE = (1, 30)
METRICS_PORT = 9809
API_PORTS = (443, 6443)
RUNBOOKS = "https://tonnage.dev/docs/tasks/alerts"
"""Where docs/tasks/alerts.md can be read; alerts lead to their headings there."""
_EVERYWHERE = [{"operator": "Exists"}]
_NODE_RESOURCES = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
_CONTROLLER_RESOURCES = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
_SCHEDULER_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}
PLACE = re.compile(r"^(?P<indent> *)\$\{(?P<block>\w+)\}\n|\$\{(?P<word>\w+)\}", re.M)
Values = Mapping[str, str]


def _once(chosen: Installation) -> list[Values]:
    return [{}]


@dataclass(frozen=True)
class Part:
    """One template and the items that it is rendered for, with their values in addition to the common ones."""

    file: str
    each: Callable[[Installation], Iterable[Values]] = _once


PARTS = (
    Part("namespace.yaml"),
    Part("csidriver.yaml"),
    Part("flex-driver.yaml", lambda chosen: [{}] if chosen.file.get("flexvolume") else []),
    Part("inline-driver.yaml", lambda chosen: _inline_drivers(chosen)),
    Part("content-crd.yaml"),
    Part("class.yaml", lambda chosen: [_class(found) for found in chosen.classes]),
    Part("snapshotclass.yaml", lambda chosen: [{}] if chosen.snapshot_class else []),
    Part("groupsnapshotclass.yaml", lambda chosen: [{}] if chosen.snapshot_class else []),
    Part("rbac-node.yaml"),
    Part("rbac-secrets.yaml", lambda chosen: [_secrets(*found) for found in chosen.secrets.items()]),
    Part("rbac-controller.yaml"),
    Part("rbac-evict.yaml", lambda chosen: [{}] if chosen.evict_unfit or chosen.free_populators else []),
    Part("rbac-certificates.yaml", lambda chosen: [{}] if chosen.issuers else []),
    Part("rbac-snapshots.yaml", lambda chosen: [{}] if chosen.snapshot_controller else []),
    Part("rbac-attach.yaml", lambda chosen: [{}] if chosen.attach_endpoints else []),
    Part("rbac-scheduler.yaml", lambda chosen: [{}] if chosen.scheduler is not None else []),
    Part("scope-policy.yaml", lambda chosen: [{}] if _has_scope_policy(chosen) else []),
    Part("empty-dir-policy.yaml", lambda chosen: [{}] if chosen.kubernetes >= EMPTY_DIR_POLICY_SINCE else []),
    Part("agent-policy.yaml", lambda chosen: [{}] if chosen.kubernetes >= AGENT_POLICY_SINCE else []),
    Part("config.yaml", lambda chosen: _groups(chosen)),
    Part("node.yaml", lambda chosen: _groups(chosen)),
    Part("controller.yaml"),
    Part("scheduler.yaml", lambda chosen: [{}] if chosen.scheduler is not None else []),
    Part("networkpolicy.yaml", lambda chosen: [{}] if chosen.network_policy else []),
    Part("podmonitor.yaml", lambda chosen: [{}] if chosen.monitoring else []),
    Part("rules.yaml", lambda chosen: [{}] if chosen.monitoring else []),
    Part("dashboard.yaml", lambda chosen: [{"dashboard": template("dashboard.json")}] if chosen.monitoring else []),
)


def template(file: str) -> str:
    """A template's text."""
    return (resources.files("tonnage.tools.ops.install") / "templates" / file).read_text()


def render(chosen: Installation) -> str:
    """All objects as one text of YAML, in the order in which they are to be made. Raises: InvalidError."""
    texts = [render_part(part.file, chosen) for part in PARTS]
    return "---\n".join(text for text in texts if text)


def render_part(file: str, chosen: Installation) -> str:
    """The objects of one template, "" for none. Raises: InvalidError."""
    common = _common(chosen)
    part = next(part for part in PARTS if part.file == file)
    return "---\n".join(fill(template(file), {**common, **values}) for values in part.each(chosen))


def fill(text: str, values: Values) -> str:
    """Render a template with its values. Raises: KeyError for an unknown value."""

    def value(found: re.Match[str]) -> str:
        if word := found["word"]:
            return values[word]
        return "".join(f"{found['indent']}{line}\n" for line in values[found["block"]].splitlines())

    return PLACE.sub(value, text)


def _has_scope_policy(chosen: Installation) -> bool:
    return chosen.file["scope"] != "all" and chosen.kubernetes >= SCOPE_POLICY_SINCE


def _common(chosen: Installation) -> Values:
    labels = {
        "app.kubernetes.io/name": "tonnage",
        "app.kubernetes.io/instance": "tonnage",
        "app.kubernetes.io/version": __version__,
        "app.kubernetes.io/managed-by": "tonnage",
    }
    return {
        "namespace": chosen.namespace,
        "image": json.dumps(chosen.image),
        "kubelet": chosen.file["kubelet"],
        "metricsPort": str(METRICS_PORT),
        "runbooks": RUNBOOKS,
        **_driver_values(chosen),
        **_signer_values(chosen),
        "secrets": _cel({namespace: list(found) for namespace, found in chosen.secrets.items()}),
        "labels": _yaml(labels),
        "tolerations": _yaml(_EVERYWHERE),
        "nodeSelector": "",
        "nodeAnnotations": "",
        "nodeResources": _yaml(_NODE_RESOURCES),
        "controllerResources": _yaml(_CONTROLLER_RESOURCES),
        "controllerReplicas": "2",
        "capacity": chosen.file["capacity"],
        "controllerEvicts": _yaml(["--evict-unfit"] if chosen.evict_unfit else []),
        "controllerFrees": _yaml(["--free-populators"] if chosen.free_populators else []),
        "controllerSnapshots": _yaml(["--snapshot-controller"] if chosen.snapshot_controller else []),
        "controllerIssuers": _yaml([f"--certificate-issuer={issuer.argument}" for issuer in chosen.issuers]),
        "controllerAttaches": _yaml([f"--attach-endpoint={endpoint}" for endpoint in chosen.attach_endpoints]),
        "controllerUser": _yaml(_controller_user(chosen)),
        "controllerNodeSelector": "",
        "attachSecretReader": _yaml(_attach_secret_reader(chosen)),
        "controllerMounts": _controller_mounts(chosen),
        "controllerVolumes": _controller_volumes(chosen),
        "controllerTemplates": _yaml(
            [f"--node-group-label={label}" for label in chosen.group_labels]
            + [f"--node-template={text}" for text in chosen.templates]
        ),
        "schedulerReplicas": "2",
        "schedulerResources": _yaml(_SCHEDULER_RESOURCES),
        "scoring": chosen.scheduler or "",
        "seLinuxMount": json.dumps(chosen.selinux_mount),
        "lifecycleModes": json.dumps(["Persistent", "Ephemeral"] if chosen.inline else ["Persistent"]),
        "pullPolicy": "IfNotPresent",
        "pullSecrets": "",
        "metricsFrom": "",
        "apiPorts": _yaml([{"port": port, "protocol": "TCP"} for port in API_PORTS]),
        "apiServers": "",
        "moreEgress": "",
    }


def _driver_values(chosen: Installation) -> Values:
    """Provisioners of classes, and drivers of PVs, that agents may serve: the controller and the policies name them."""
    flex = names.FLEX_PROVISIONERS if chosen.file.get("flexvolume") else {}
    provisioners = {**dict.fromkeys(flex, names.TOPOLOGY_NODE), **chosen.drivers}
    drivers = {names.DRIVER: names.TOPOLOGY_NODE, **dict.fromkeys(flex.values(), names.TOPOLOGY_NODE), **chosen.drivers}
    return {
        "provisioners": _cel([names.DRIVER, *sorted(provisioners)]),
        "drivers": _cel(drivers),
        "flexProvisioners": _cel(flex),
        "controllerDrivers": _yaml([f"--driver={name}={key}" for name, key in sorted(provisioners.items())]),
    }


def _signer_values(chosen: Installation) -> Values:
    """Signers that agents may ask, and those of them that the controller signs for. Raises: InvalidError."""
    ours = sorted(f"{SIGNER_DOMAIN}{issuer.name}" for issuer in chosen.issuers)
    configs = parse_inlines(chosen.node.get("inline", ()))
    targets = [parse_targets(found.split(";")) for one in configs if (found := one.options.get("issuers", ""))]
    others = sorted({target.where for found in targets for target in found.values() if target.kind == CSR} - {*ours})
    return {"issuerSigners": _cel(ours), "signers": _cel([*ours, *others])}


def _controller_user(chosen: Installation) -> dict[str, Any]:
    """Root, without capabilities, where the controller connects to sockets of drivers."""
    if chosen.attach_endpoints:
        return {"runAsUser": 0, "runAsGroup": 0}
    return {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532}


def _attach_secret_reader(chosen: Installation) -> list[dict[str, str]]:
    """The controller as a subject of the Secrets that classes may name."""
    if not chosen.attach_endpoints:
        return []
    return [{"kind": "ServiceAccount", "name": "tonnage-controller", "namespace": chosen.namespace}]


def _socket_folders(chosen: Installation) -> list[str]:
    """The folders of the attached drivers' sockets, each once."""
    found = parse_endpoints(chosen.attach_endpoints)
    return list(dict.fromkeys(str(endpoint.socket.parent) for endpoint in found))


def _controller_mounts(chosen: Installation) -> str:
    found: list[dict[str, Any]] = [
        {"name": f"issuer-{number}", "mountPath": issuer.folder, "readOnly": True}
        for number, issuer in enumerate(chosen.issuers)
    ]
    found += [{"name": f"driver-{n}", "mountPath": folder} for n, folder in enumerate(_socket_folders(chosen))]
    return _yaml({"volumeMounts": found}) if found else ""


def _controller_volumes(chosen: Installation) -> str:
    found: list[dict[str, Any]] = [
        {"name": f"issuer-{number}", "secret": {"secretName": issuer.secret}}
        for number, issuer in enumerate(chosen.issuers)
    ]
    found += [
        {"name": f"driver-{n}", "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}
        for n, folder in enumerate(_socket_folders(chosen))
    ]
    return _yaml({"volumes": found}) if found else ""


def _groups(chosen: Installation) -> list[Values]:
    """The nodes of no group, then those of each."""
    others = {"key": GROUP_LABEL, "operator": "NotIn", "values": list(chosen.groups)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [others]}]}
    affinity = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    return [
        _group("", chosen.pools, chosen, affinity if chosen.groups else {}),
        *(_group(name, pools, chosen, {}) for name, pools in chosen.groups.items()),
    ]


def _group(name: str, pools: Sequence[Mapping[str, Any]], chosen: Installation, affinity: dict[str, Any]) -> Values:
    folders = list(enumerate(pool_folders(pools, chosen.file["kubelet"])))
    contents = list(enumerate(content_folders(chosen.file, pools)))
    plugins = _plugin_folder(chosen, pools)
    return {
        "nodeName": f"tonnage-node-{name}" if name else "tonnage-node",
        "groupLabel": _yaml({GROUP_LABEL: name}) if name else "",
        "nodeAffinity": _yaml(affinity),
        "config": _yaml(_config(chosen, pools)),
        "poolMounts": _yaml(
            [{"name": f"pool-{n}", "mountPath": path, "mountPropagation": "Bidirectional"} for n, path in folders]
        ),
        "poolVolumes": _yaml(
            [{"name": f"pool-{n}", "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for n, path in folders]
        ),
        "contentMounts": _yaml(
            [_content_mount(n, folder) for n, folder in contents]
            + [{"name": "flexvolume", "mountPath": path} for path in plugins]
        ),
        "contentVolumes": _yaml(
            [{"name": f"content-{n}", "hostPath": {"path": folder.path, "type": folder.type}} for n, folder in contents]
            + [{"name": "flexvolume", "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for path in plugins]
        ),
    }


def _plugin_folder(chosen: Installation, pools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The kubelet's folder of FlexVolume drivers, where the pod needs a mount for it: not in one that is shared."""
    path, kubelet = chosen.file.get("flexvolume") or "", chosen.file["kubelet"]
    return [path] if path and not is_within(path, [kubelet, *pool_folders(pools, kubelet)]) else []


def _content_mount(number: int, folder: ContentFolder) -> dict[str, Any]:
    return {
        "name": f"content-{number}",
        "mountPath": folder.path,
        **({} if folder.is_written else {"readOnly": True}),
        "mountPropagation": "HostToContainer",
    }


def _config(chosen: Installation, pools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a node's file."""
    endpoints = [f"unix://{chosen.file['kubelet']}/plugins/{name}/csi.sock" for name in sorted(chosen.drivers)]
    return {
        "pools": [dict(pool) for pool in pools],
        **{Option("", name=name).key: value for name, value in chosen.file.items()},
        "metrics": f"0.0.0.0:{METRICS_PORT}",
        **({"csiEndpoints": endpoints} if endpoints else {}),
    }


def _inline_drivers(chosen: Installation) -> list[Values]:
    """The inline drivers of the nodes' file. Raises: InvalidError."""
    configs = parse_inlines(chosen.node.get("inline", ()))
    return [_inline_driver(found) for found in sources.csi_drivers(configs, RealClock())]


def _inline_driver(found: Mapping[str, Any]) -> Values:
    return {"inlineName": found["metadata"]["name"], "inlineSpec": json.dumps(found["spec"])}


def inline_specs() -> str:
    """The specification of the CSIDriver object of each kind of inline driver, as JSON."""
    configs = parse_inlines(sorted(sources.KINDS))
    found = zip(configs, sources.csi_drivers(configs, RealClock()), strict=True)
    return json.dumps({config.kind: driver["spec"] for config, driver in found}, indent=2) + "\n"


def _class(found: Class) -> Values:
    fields: dict[str, Any] = {
        "reclaimPolicy": "Delete",
        "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
        "allowVolumeExpansion": True,
        **({"parameters": dict(found.parameters)} if found.parameters else {}),
        **found.fields,
    }
    return {
        "className": found.name,
        "classDefault": json.dumps(str(found.default).lower()),
        "classFields": _yaml(fields),
    }


def _secrets(namespace: str, chosen: Sequence[str]) -> Values:
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    return {
        "secretNamespace": namespace,
        "secretRule": _yaml([rule | ({"resourceNames": list(chosen)} if chosen else {})]),
    }


def _cel(value: Any) -> str:
    """A literal of CEL, which JSON is."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _yaml(value: Any) -> str:
    """A block of YAML, "" for an empty value."""
    return str(yaml.safe_dump(value, sort_keys=True, width=1000)) if value else ""

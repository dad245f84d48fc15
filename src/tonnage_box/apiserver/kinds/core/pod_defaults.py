"""Defaulting of pods and their templates (pkg/apis/core/v1/defaults.go). Pure functions of normalized dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tonnage_box.apiserver.kinds.shared.defaults import times
from tonnage_box.apiserver.storage.store import Obj

_FILE_MODE = 0o644
_POD: Mapping[str, str | int] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}
_STATUS_LISTS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")


def containers(spec: Obj) -> Iterator[tuple[str, int, Obj]]:
    """Every container of a pod's spec with the list it is in and its index."""
    for word in _CONTAINER_LISTS:
        for index, container in enumerate(spec.get(word) or ()):
            yield word, index, container


def pod(obj: Obj) -> None:
    """Pod: policies, probes, modes, requests from limits."""
    spec = obj.setdefault("spec", {})
    pod_spec(spec)
    for word, _, container in containers(spec):
        if word != "ephemeralContainers":
            _requests(container["resources"])
    _pod_times(obj.get("status") or {})


def _pod_times(status: Obj) -> None:
    """Times that Kubernetes prints also where they are not known."""
    times(status, "lastProbeTime", "lastTransitionTime")
    for word in _STATUS_LISTS:
        for container in status.get(word) or ():
            for state in (container.get("state") or {}, container.get("lastState") or {}):
                if "running" in state:
                    state["running"].setdefault("startedAt", None)
                if "terminated" in state:
                    state["terminated"].setdefault("startedAt", None)
                    state["terminated"].setdefault("finishedAt", None)


def pod_spec(spec: Obj) -> None:
    """The spec of a pod or of a template of pods: all but requests from limits."""
    for key, value in _POD.items():
        spec.setdefault(key, value)
    spec.setdefault("securityContext", {})
    for _, _, container in containers(spec):
        _container(container)
        if spec.get("hostNetwork"):
            for port in container.get("ports") or ():
                port.setdefault("hostPort", port.get("containerPort", 0))
    for volume in spec.get("volumes") or ():
        _volume(volume)


def _container(container: Obj) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        container["imagePullPolicy"] = _pull_policy(container.get("image", ""))
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        _field_ref((variable.get("valueFrom") or {}).get("fieldRef"))
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            _probe(container[probe])
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):
            _http(handler.get("httpGet"))


def _pull_policy(image: str) -> str:
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if "@" not in image and tag in ("", "latest") else "IfNotPresent"


def _requests(resources: Obj) -> None:
    if "limits" in resources:
        resources["requests"] = resources["limits"] | resources.get("requests", {})


def _probe(probe: Obj) -> None:
    for key, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        probe[key] = probe.get(key) or value
    _http(probe.get("httpGet"))
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _http(action: Obj | None) -> None:
    if action is not None:
        action.setdefault("path", "/")
        action.setdefault("scheme", "HTTP")


def _field_ref(ref: Obj | None) -> None:
    if ref is not None:
        ref.setdefault("apiVersion", "v1")


def _volume(volume: Obj) -> None:
    if not volume.keys() - {"name"}:
        volume["emptyDir"] = {}
    for word in ("configMap", "secret", "downwardAPI", "projected"):
        if word in volume:
            volume[word].setdefault("defaultMode", _FILE_MODE)
    sources = (volume.get("projected") or {}).get("sources") or ()
    for source in (volume, *sources):
        for item in (source.get("downwardAPI") or {}).get("items") or ():
            _field_ref(item.get("fieldRef"))
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
    if template is not None:
        template.setdefault("metadata", {})
        template.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    if "image" in volume and "pullPolicy" not in volume["image"]:
        volume["image"]["pullPolicy"] = _pull_policy(volume["image"].get("reference", ""))


def templated(obj: Obj) -> Obj:
    """Default the template of pods in an object's spec; returns the spec."""
    spec: Obj = obj.setdefault("spec", {})
    pod_spec(spec.setdefault("template", {}).setdefault("spec", {}))
    return spec

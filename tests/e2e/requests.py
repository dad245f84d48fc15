"""Requests that the box's API server and the real one answer in the same way, and those that they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Obj = dict[str, Any]
SPACE = "same-answers"
CORE = f"/api/v1/namespaces/{SPACE}"
CLAIMS, PODS = f"{CORE}/persistentvolumeclaims", f"{CORE}/pods"
VOLUMES, CLASSES = "/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/storageclasses"
DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"
STRATEGIC = "application/strategic-merge-patch+json"
BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
DRY = "?dryRun=All"


@dataclass(frozen=True)
class Ask:
    """One request. A list is a JSON patch."""

    method: str
    path: str
    body: Any = None
    content_type: str = ""


def post(path: str, body: Obj) -> Ask:
    return Ask("POST", path, body)


def patch(path: str, body: Any, content_type: str = "") -> Ask:
    return Ask("PATCH", path, body, content_type)


def claim(name: str, *, notes: Obj | None = None, meta: Obj | None = None, **spec: Any) -> Obj:
    """A claim of a class without an object, which no controller touches."""
    head = {"name": name, **({"annotations": notes} if notes else {}), **(meta or {})}
    size = {"requests": {"storage": spec.pop("size", "1Gi")}}
    base = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none-such", "resources": size}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": head, "spec": {**base, **spec}}


def volume(name: str, *, notes: Obj | None = None, **spec: Any) -> Obj:
    head = {"name": name, "labels": {"same": "answers"}, **({"annotations": notes} if notes else {})}
    base = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "none-such-either"}
    if not {"hostPath", "local", "csi", "nfs"} & spec.keys():
        base["csi"] = {"driver": "csi.example.com", "volumeHandle": name}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": head, "spec": {**base, **spec}}


def storage_class(name: str, **more: Any) -> Obj:
    head = {"name": name, "labels": {"same": "answers"}}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": head,
        "provisioner": "x.io/y",
        **more,
    }


def driver(name: str, **spec: Any) -> Obj:
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}, "spec": spec}


def container(**more: Any) -> Obj:
    return {"name": "c", "image": "i", **more}


def pod(name: str, *containers: Obj, notes: Obj | None = None, **spec: Any) -> Obj:
    """A pod that no scheduler takes."""
    head = {"name": name, **({"annotations": notes} if notes else {})}
    base = {"schedulerName": "nobody", "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
    shown = list(containers) or [container()]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": {**base, "containers": shown, **spec}}


def required(key: str, operator: str = "In", values: Sequence[str] = ("a",)) -> Obj:
    """Required node affinity."""
    terms = [{"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}]
    return {"nodeSelectorTerms": terms}


def ephemeral(size: str = "1Gi", **template: Any) -> Obj:
    """A generic ephemeral volume."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": spec, **template}}}


def affinity_of_pods(key: str, **term: Any) -> Obj:
    return {key: {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", **term}]}}


def env(*pairs: tuple[str, str]) -> list[Obj]:
    return [{"name": name, "value": value} for name, value in pairs]


OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
CASES: Mapping[str, Sequence[Ask]] = {
    # Claims
    "claim": [post(CLAIMS, claim("plain"))],
    "claim, dry run": [post(CLAIMS + DRY, claim("dry"))],
    "claim twice": [post(CLAIMS, claim("twice")), post(CLAIMS, claim("twice"))],
    "claim with a fractional size": [post(CLAIMS, claim("fraction", size="0.5"))],
    "claim with a fractional limit": [
        post(CLAIMS, claim("limit", resources={"requests": {"storage": "1"}, "limits": {"storage": "1500m"}}))
    ],
    "claim with the old class annotation": [post(CLAIMS, claim("old", notes={BETA_CLASS: "x"}))],
    "claim of a block device": [post(CLAIMS, claim("block", volumeMode="Block"))],
    "claim with a selector": [post(CLAIMS, claim("selects", selector={"matchLabels": {"a": "b"}}))],
    "claim of a snapshot": [
        post(
            CLAIMS,
            claim(
                "restored",
                dataSource={"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"},
            ),
        )
    ],
    "claim with an empty class": [post(CLAIMS, claim("classless", storageClassName=""))],
    "claim without size": [post(CLAIMS, claim("sizeless", resources={}))],
    "claim without access modes": [post(CLAIMS, claim("modeless", accessModes=[]))],
    "claim with a wrong access mode": [post(CLAIMS, claim("mode", accessModes=["Sometimes"]))],
    "claim with a negative size": [post(CLAIMS, claim("negative", size="-1"))],
    "claim with a size that is none": [post(CLAIMS, claim("text", size="many"))],
    "claim with a wrong name": [post(CLAIMS, claim("Wrong_Name"))],
    "claim with an unknown field": [post(CLAIMS, claim("unknown", speed="fast"))],
    "claim with an unknown field, strict": [post(f"{CLAIMS}?fieldValidation=Strict", claim("strict", speed="fast"))],
    "claim with a wrong type": [post(CLAIMS, claim("typed", volumeMode=7))],
    "claim with nulls": [post(CLAIMS, claim("nulls", selector=None, meta={"labels": None, "annotations": None}))],
    "claim with a status": [post(CLAIMS, {**claim("status"), "status": {"phase": "Bound"}})],
    "claim with a generation": [post(CLAIMS, claim("counted", meta={"generation": 7}))],
    "claim labeled": [post(CLAIMS, claim("labels")), patch(f"{CLAIMS}/labels", {"metadata": {"labels": {"a": "b"}}})],
    "claim labeled by a JSON patch": [
        post(CLAIMS, claim("json")),
        patch(f"{CLAIMS}/json", [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]),
    ],
    "claim patched by a failing JSON patch": [
        post(CLAIMS, claim("tests")),
        patch(f"{CLAIMS}/tests", [{"op": "test", "path": "/metadata/name", "value": "other"}]),
    ],
    "claim labeled by a strategic patch": [
        post(CLAIMS, claim("strategic")),
        patch(f"{CLAIMS}/strategic", {"metadata": {"labels": {"a": "b"}}}, STRATEGIC),
    ],
    "claim given a volume": [post(CLAIMS, claim("bound")), patch(f"{CLAIMS}/bound", {"spec": {"volumeName": "pv-x"}})],
    "claim that is not bound enlarged": [
        post(CLAIMS, claim("grows")),
        patch(f"{CLAIMS}/grows", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
    ],
    "claim of another class": [
        post(CLAIMS, claim("moves")),
        patch(f"{CLAIMS}/moves", {"spec": {"storageClassName": "other"}}),
    ],
    "claim's status": [
        post(CLAIMS, claim("told")),
        patch(f"{CLAIMS}/told/status", {"status": {"conditions": [{"type": "Resizing", "status": "True"}]}}),
    ],
    "claim's old annotation at an update": [
        post(CLAIMS, claim("older", notes={BETA_CLASS: "x"})),
        patch(f"{CLAIMS}/older", {"metadata": {"labels": {"a": "b"}}}),
    ],
    "claim patched that is not there": [patch(f"{CLAIMS}/none", {"metadata": {"labels": {"a": "b"}}})],
    "claim read that is not there": [Ask("GET", f"{CLAIMS}/none")],
    "claim deleted": [post(CLAIMS, claim("free")), Ask("DELETE", f"{CLAIMS}/free")],
    "claim's size told": [
        post(CLAIMS, claim("sized")),
        patch(f"{CLAIMS}/sized/status", {"status": {"capacity": {"storage": "1Gi"}}}),
    ],
    "claim with a wrong label": [post(CLAIMS, claim("labelled", meta={"labels": {"a b": "c"}}))],
    "claim made into another namespace": [post(CLAIMS, claim("elsewhere", meta={"namespace": "default"}))],
    "claim of another kind": [post(CLAIMS, {**claim("kind"), "kind": "Pod"})],
    "claim deleted that is not there": [Ask("DELETE", f"{CLAIMS}/none")],
    "claim deleted with a finalizer": [
        post(CLAIMS, claim("kept", meta={"finalizers": ["example.com/x"]})),
        Ask("DELETE", f"{CLAIMS}/kept"),
    ],
    # PersistentVolumes
    "volume": [post(VOLUMES, volume("same-plain"))],
    "volume, dry run": [post(VOLUMES + DRY, volume("same-dry"))],
    "volume of a folder": [post(VOLUMES, volume("same-folder", hostPath={"path": "/x"}))],
    "local volume": [
        post(
            VOLUMES,
            volume("same-local", local={"path": "/x"}, nodeAffinity={"required": required("kubernetes.io/hostname")}),
        )
    ],
    "local volume without affinity": [post(VOLUMES, volume("same-nowhere", local={"path": "/x"}))],
    "volume with an old zone": [post(VOLUMES, volume("same-zone", nodeAffinity={"required": required(OLD_ZONE)}))],
    "volume that is recycled": [
        post(VOLUMES, volume("same-recycled", hostPath={"path": "/x"}, persistentVolumeReclaimPolicy="Recycle"))
    ],
    "volume with the old class annotation": [post(VOLUMES, volume("same-old", notes={BETA_CLASS: "x"}))],
    "volume with old mount options": [
        post(VOLUMES, volume("same-mount", notes={"volume.beta.kubernetes.io/mount-options": "ro"}))
    ],
    "volume without size": [post(VOLUMES, volume("same-sizeless", capacity={}))],
    "volume without source": [post(VOLUMES, {**volume("same-empty"), "spec": {"capacity": {"storage": "1Gi"}}})],
    "volume with two sources": [post(VOLUMES, volume("same-two", hostPath={"path": "/x"}, local={"path": "/x"}))],
    "volume labeled": [
        post(VOLUMES, volume("same-labels")),
        patch(f"{VOLUMES}/same-labels", {"metadata": {"labels": {"a": "b"}}}),
    ],
    "volume enlarged": [
        post(VOLUMES, volume("same-grows")),
        patch(f"{VOLUMES}/same-grows", {"spec": {"capacity": {"storage": "2Gi"}}}),
    ],
    "volume with another source": [
        post(VOLUMES, volume("same-moves")),
        patch(f"{VOLUMES}/same-moves", {"spec": {"csi": {"volumeHandle": "other"}}}),
    ],
    "volume's policy": [
        post(VOLUMES, volume("same-policy")),
        patch(f"{VOLUMES}/same-policy", {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
    ],
    # StorageClasses
    "class": [post(CLASSES, storage_class("same-plain"))],
    "class, dry run": [post(CLASSES + DRY, storage_class("same-dry"))],
    "class with all": [
        post(
            CLASSES,
            storage_class(
                "same-all",
                parameters={"a": "b"},
                reclaimPolicy="Retain",
                volumeBindingMode="WaitForFirstConsumer",
                allowVolumeExpansion=True,
                mountOptions=["ro"],
            ),
        )
    ],
    "class with an old zone": [
        post(
            CLASSES,
            storage_class(
                "same-zone", allowedTopologies=[{"matchLabelExpressions": [{"key": OLD_ZONE, "values": ["a"]}]}]
            ),
        )
    ],
    "class without provisioner": [post(CLASSES, storage_class("same-none", provisioner=""))],
    "class with a wrong mode": [post(CLASSES, storage_class("same-mode", volumeBindingMode="Later"))],
    "class's parameters changed": [
        post(CLASSES, storage_class("same-fixed", parameters={"a": "b"})),
        patch(f"{CLASSES}/same-fixed", {"parameters": {"a": "c"}}),
    ],
    "class's provisioner changed": [
        post(CLASSES, storage_class("same-made")),
        patch(f"{CLASSES}/same-made", {"provisioner": "x.io/z", "reclaimPolicy": "Retain"}),
    ],
    "class with a wrong policy": [post(CLASSES, storage_class("same-policy", reclaimPolicy="Recycle"))],
    "class deleted": [post(CLASSES, storage_class("same-gone")), Ask("DELETE", f"{CLASSES}/same-gone")],
    "class labeled": [
        post(CLASSES, storage_class("same-labels")),
        patch(f"{CLASSES}/same-labels", {"metadata": {"labels": {"a": "b"}}}),
    ],
    # A kind that counts its changes, but not its creation
    "driver's change": [
        post(DRIVERS, driver("same.example.com")),
        patch(f"{DRIVERS}/same.example.com", {"spec": {"requiresRepublish": True}}),
        Ask("DELETE", f"{DRIVERS}/same.example.com"),
    ],
    # Pods
    "pod": [post(PODS, pod("plain"))],
    "pod, dry run": [post(PODS + DRY, pod("dry"))],
    "pod labeled": [post(PODS, pod("labels")), patch(f"{PODS}/labels", {"metadata": {"labels": {"a": "b"}}})],
    "pod's image changed": [
        post(PODS, pod("image")),
        patch(f"{PODS}/image", [{"op": "replace", "path": "/spec/containers/0/image", "value": "j"}]),
    ],
    "pod's node changed": [post(PODS, pod("moves")), patch(f"{PODS}/moves", {"spec": {"nodeName": "n"}})],
    "pod with an ephemeral volume": [post(PODS, pod("eph", volumes=[ephemeral()]))],
    "pod with an ephemeral volume and labels": [
        post(PODS, pod("eph-labels", volumes=[ephemeral(metadata={"labels": {"a": "b"}})]))
    ],
    "pod with an ephemeral volume of a fractional size": [
        post(PODS, pod("eph-fraction", volumes=[ephemeral("0.5")])),
        patch(f"{PODS}/eph-fraction", {"metadata": {"labels": {"a": "b"}}}),
    ],
    "pod with an ephemeral volume without size": [
        post(PODS, pod("eph-none", volumes=[{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]))
    ],
    "pod with a claim": [
        post(PODS, pod("claim", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "plain"}}]))
    ],
    "pod with an inline volume": [post(PODS, pod("inline", volumes=[{"name": "v", "csi": {"driver": "x.io"}}]))],
    "pod with an emptyDir": [post(PODS, pod("empty", volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]))],
    "pod with an emptyDir of a fractional size": [
        post(PODS, pod("empty-part", volumes=[{"name": "v", "emptyDir": {"sizeLimit": "0.5"}}]))
    ],
    "pod with the same variable twice": [post(PODS, pod("env", container(env=env(("A", "1"), ("A", "2")))))],
    "pod with a variable that extends itself": [
        post(PODS, pod("extends", container(env=env(("A", "1"), ("A", "$(A)2")))))
    ],
    "pod with fractional memory": [
        post(PODS, pod("memory", container(resources={"requests": {"memory": "1500m"}, "limits": {"memory": "2500m"}})))
    ],
    "pod with fractional ephemeral storage": [
        post(PODS, pod("scratch", container(resources={"limits": {"ephemeral-storage": "0.1"}})))
    ],
    "pod with an old node label": [post(PODS, pod("selector", nodeSelector={"beta.kubernetes.io/os": "linux"}))],
    "pod with affinity to an old node label": [
        post(
            PODS,
            pod(
                "affinity",
                affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required(OLD_ZONE)}},
            ),
        )
    ],
    "pod that prefers an old node label": [
        post(
            PODS,
            pod(
                "prefers",
                affinity={
                    "nodeAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 1, "preference": required(OLD_ZONE)["nodeSelectorTerms"][0]}
                        ]
                    }
                },
            ),
        )
    ],
    "pod spread over an old zone": [
        post(
            PODS,
            pod(
                "spread",
                topologySpreadConstraints=[
                    {"maxSkew": 1, "topologyKey": OLD_ZONE, "whenUnsatisfiable": "DoNotSchedule"}
                ],
            ),
        )
    ],
    "pod with affinity to no pod": [post(PODS, pod("lonely", affinity=affinity_of_pods("podAffinity")))],
    "pod with anti-affinity to no pod": [post(PODS, pod("apart", affinity=affinity_of_pods("podAntiAffinity")))],
    "pod with old annotations": [
        post(
            PODS,
            pod(
                "notes",
                notes={
                    "scheduler.alpha.kubernetes.io/critical-pod": "",
                    "seccomp.security.alpha.kubernetes.io/pod": "runtime/default",
                    "container.seccomp.security.alpha.kubernetes.io/c": "runtime/default",
                },
            ),
        )
    ],
    "pod with the same pull secret twice": [post(PODS, pod("pull", imagePullSecrets=[{"name": "a"}, {"name": "a"}]))],
    "pod with a nameless pull secret": [post(PODS, pod("pull-none", imagePullSecrets=[{"name": ""}]))],
    "pod with the same host alias twice": [
        post(PODS, pod("alias", hostAliases=[{"ip": "10.0.0.1"}, {"ip": "10.0.0.1", "hostnames": ["a"]}]))
    ],
    "pod with the same port twice": [
        post(
            PODS,
            pod(
                "ports",
                container(ports=[{"containerPort": 80}]),
                container(name="d", ports=[{"containerPort": 80}]),
            ),
        )
    ],
    "pod with the same port name twice": [
        post(
            PODS,
            pod(
                "named",
                container(ports=[{"containerPort": 80, "name": "web"}]),
                container(name="d", ports=[{"containerPort": 81, "name": "web"}]),
            ),
        )
    ],
    "pod with a port of an address": [
        post(PODS, pod("address", container(ports=[{"containerPort": 80, "hostIP": "10.0.0.1"}])))
    ],
    "pod with a git volume": [post(PODS, pod("git", volumes=[{"name": "v", "gitRepo": {"repository": "x"}}]))],
    "pod with overlapping paths": [
        post(
            PODS,
            pod(
                "overlap",
                volumes=[
                    {
                        "name": "v",
                        "configMap": {"name": "m", "items": [{"key": "a", "path": "p"}, {"key": "b", "path": "p/q"}]},
                    }
                ],
            ),
        )
    ],
    "pod without containers": [post(PODS, pod("bare", containers=[]))],
    "pod without an image": [post(PODS, pod("imageless", {"name": "c"}))],
    "pod with a wrong policy": [post(PODS, pod("policy", restartPolicy="Maybe"))],
    "pod with a mount of no volume": [
        post(PODS, pod("mount", container(volumeMounts=[{"name": "none", "mountPath": "/x"}])))
    ],
    "pod with the same container twice": [post(PODS, pod("same", container(), container()))],
    "pod with requests above limits": [
        post(PODS, pod("above", container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})))
    ],
    "pod with an unknown field": [post(PODS, pod("unknown", speed="fast"))],
    "pod with limits": [post(PODS, pod("limits", container(resources={"limits": {"cpu": "1", "memory": "1Gi"}})))],
    "pod with probes": [post(PODS, pod("probes", container(livenessProbe={"httpGet": {"port": 80}})))],
    "pod with preferred affinity to no pod": [
        post(
            PODS,
            pod(
                "rather",
                affinity={
                    "podAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}
                        ]
                    }
                },
            ),
        )
    ],
    "pod that prefers what no label can be": [
        post(
            PODS,
            pod(
                "odd",
                affinity={
                    "nodeAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 1, "preference": required("a", values=["b c"])["nodeSelectorTerms"][0]}
                        ]
                    }
                },
            ),
        )
    ],
    "pod with old IPv6 addresses": [
        post(
            PODS,
            pod(
                "six",
                hostAliases=[{"ip": "2001:DB8::0"}],
                dnsConfig={"nameservers": ["2001:db8:0:0:0:0:0:1"]},
            ),
        )
    ],
    "pod with a mapped address": [post(PODS, pod("mapped", hostAliases=[{"ip": "::ffff:10.0.0.1"}]))],
    "pod with zeros in an address": [post(PODS, pod("zeros", hostAliases=[{"ip": "010.0.0.1"}]))],
    "pod with no address": [post(PODS, pod("no-address", hostAliases=[{"ip": "here"}]))],
    "pod with overlapping projected paths": [
        post(
            PODS,
            pod(
                "projected",
                volumes=[
                    {
                        "name": "v",
                        "projected": {
                            "sources": [
                                {"secret": {"name": "s", "items": [{"key": "a", "path": "p"}]}},
                                {"configMap": {"name": "m", "items": [{"key": "b", "path": "p/q"}]}},
                                {"serviceAccountToken": {"path": "p"}},
                            ]
                        },
                    }
                ],
            ),
        )
    ],
    "pod with ambiguous ports": [
        post(
            PODS,
            pod(
                "ambiguous",
                container(ports=[{"containerPort": 80, "hostPort": 8080}]),
                container(name="d", ports=[{"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}]),
                container(name="e", ports=[{"containerPort": 80}]),
            ),
        )
    ],
    "pod with scheduling gates": [post(PODS, pod("gated", schedulingGates=[{"name": "example.com/wait"}]))],
    "pod's status": [
        post(PODS, pod("told")),
        patch(
            f"{PODS}/told/status",
            {"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}},
        ),
    ],
    "pod's containers told": [
        post(PODS, pod("runs")),
        patch(
            f"{PODS}/runs/status",
            {
                "status": {
                    "phase": "Running",
                    "containerStatuses": [
                        {
                            "name": "c",
                            "ready": True,
                            "restartCount": 0,
                            "image": "i",
                            "imageID": "",
                            "state": {"running": {}},
                            "lastState": {"terminated": {"exitCode": 1}},
                        }
                    ],
                }
            },
        ),
    ],
    "pod deleted": [post(PODS, pod("gone")), Ask("DELETE", f"{PODS}/gone")],
}
_SHORT = "the box names the fields that differ; Kubernetes prints lines of its own structs"
DIFFERENT: Mapping[str, str] = {
    "claim that is not bound enlarged": _SHORT,
    "claim of another class": _SHORT,
    "volume with another source": _SHORT,
    "pod's node changed": _SHORT,
    "claim with a wrong type": "Kubernetes names the type of Go, as v1.PersistentVolumeMode; the box knows that it is text",
    "claim patched by a failing JSON patch": "the box says which test failed; Kubernetes does not",
    "claim of another kind": "the box says what it wants and what it found; Kubernetes that it has no conversion",
    "pod with the same pull secret twice": "the box pulls no images, and says so",
    "pod with a nameless pull secret": "the box pulls no images, and says so",
    "pod that prefers what no label can be": "a warning of the box has at most 256 characters, so that all fit",
}
"""Case -> why its answers differ."""

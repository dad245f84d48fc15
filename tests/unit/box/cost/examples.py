"""A small valid object of each served kind, and a valid item of each struct that lists hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Obj = dict[str, Any]
LABELS = {"app": "x"}
"""Of the pods that objects meet."""
_CONTAINER = {"name": "c", "image": "i"}
_SPEC: Obj = {"containers": [_CONTAINER], "volumes": [{"name": "v", "emptyDir": {}}]}
_PODS: Obj = {"metadata": {"labels": LABELS}, "spec": _SPEC}
_ONCE: Obj = {**_PODS, "spec": _SPEC | {"restartPolicy": "Never"}}
_RUN: Obj = {"selector": {"matchLabels": LABELS}, "template": _PODS}
_RULE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
_CLAIM: Obj = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_NODE_TERM: Obj = {"matchExpressions": [{"key": "n{n}", "operator": "In", "values": ["v"]}]}
_POD_TERM: Obj = {"topologyKey": "zone", "labelSelector": {"matchLabels": LABELS}}
_REF = {"apiGroup": "rbac.authorization.k8s.io", "kind": "{kind}", "name": "r"}
_DRIVER = "csi.tonnage.dev"
_REQUEST = (  # a certificate request of one line, which its signer only looks into when it is approved
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlId01JR1lBZ0VBTURZeEZUQVRCZ05WQkFvTURITjVjM1JsYlRwdWIyUmxjekVkTUJzR0ExVUVBd3dVYzNsegpkR1Z0T201dlpHVTZkMjl5YTJWeUxURXdXVEFUQmdjcWhrak9QUUlCQmdncWhrak9QUU1CQndOQ0FBUTBCZ0ZxCjFMa0p0CkotLS0tLUVORCBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K"
)
OBJECTS: Mapping[str, Obj] = {
    "persistentvolumeclaims": {"spec": {**_CLAIM, "storageClassName": "late"}},
    "persistentvolumes": {
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "manual",
            "csi": {"driver": _DRIVER, "volumeHandle": "h"},
        }
    },
    "pods": _PODS,
    "events": {"involvedObject": {"kind": "Pod", "namespace": "default", "name": "p0"}, "reason": "r"},
    "events.k8s.io/events": {
        "eventTime": "2026-01-01T00:00:00.000000Z", "action": "a", "reason": "r", "type": "Normal",
        "reportingController": "a.b/c", "reportingInstance": "i",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p0"},
    },
    "rbac.authorization.k8s.io/roles": {"rules": [_RULE]},
    "rbac.authorization.k8s.io/clusterroles": {"rules": [_RULE]},
    "rbac.authorization.k8s.io/rolebindings": {"roleRef": _REF | {"kind": "Role"}, "subjects": []},
    "rbac.authorization.k8s.io/clusterrolebindings": {"roleRef": _REF | {"kind": "ClusterRole"}, "subjects": []},
    "limitranges": {"spec": {"limits": []}},
    "resourcequotas": {"spec": {"hard": {}}},
    "storage.k8s.io/storageclasses": {"provisioner": _DRIVER, "volumeBindingMode": "WaitForFirstConsumer"},
    "storage.k8s.io/csidrivers": {"spec": {}},
    "storage.k8s.io/csinodes": {"spec": {"drivers": []}},
    "storage.k8s.io/csistoragecapacities": {"storageClassName": "late", "capacity": "1Ti", "nodeTopology": {}},
    "storage.k8s.io/volumeattachments": {
        "spec": {"attacher": _DRIVER, "nodeName": "n0", "source": {"persistentVolumeName": "v0"}}
    },
    "apps/deployments": {"spec": _RUN | {"replicas": 0}},
    "apps/replicasets": {"spec": _RUN | {"replicas": 0}},
    "apps/statefulsets": {"spec": _RUN | {"replicas": 0, "serviceName": "s"}},
    "apps/daemonsets": {
        "spec": _RUN | {"template": {**_PODS, "spec": _SPEC | {"nodeSelector": {"no": "where"}}}}
    },
    "apps/controllerrevisions": {"data": {}, "revision": 1},
    "batch/jobs": {"spec": {"template": _ONCE, "suspend": True}},
    "batch/cronjobs": {"spec": {"schedule": "@yearly", "jobTemplate": {"spec": {"template": _ONCE}}}},
    "scheduling.k8s.io/priorityclasses": {"value": 1},
    "policy/poddisruptionbudgets": {"spec": {"minAvailable": 1, "selector": {"matchLabels": LABELS}}},
    "snapshot.storage.k8s.io/volumesnapshots": {"spec": {"source": {"persistentVolumeClaimName": "late0"}}},
    "snapshot.storage.k8s.io/volumesnapshotcontents": {
        "spec": {
            "deletionPolicy": "Retain", "driver": _DRIVER, "source": {"snapshotHandle": "h"},
            "volumeSnapshotRef": {"name": "s", "namespace": "default"},
        }
    },
    "snapshot.storage.k8s.io/volumesnapshotclasses": {"deletionPolicy": "Delete", "driver": _DRIVER},
    "groupsnapshot.storage.k8s.io/volumegroupsnapshots": {
        "spec": {"source": {"selector": {"matchLabels": LABELS}}}
    },
    "groupsnapshot.storage.k8s.io/volumegroupsnapshotcontents": {
        "spec": {
            "deletionPolicy": "Retain", "driver": _DRIVER, "source": {"volumeHandles": ["h"]},
            "volumeGroupSnapshotRef": {"name": "s", "namespace": "default"},
        }
    },
    "groupsnapshot.storage.k8s.io/volumegroupsnapshotclasses": {"deletionPolicy": "Delete", "driver": _DRIVER},
    "apiextensions.k8s.io/customresourcedefinitions": {
        "metadata": {"name": "xs.a.example"},
        "spec": {
            "group": "a.example", "scope": "Namespaced",
            "names": {"kind": "X", "plural": "xs", "singular": "x", "listKind": "XList"},
            "versions": [{
                "name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}},
            }],
        },
    },
    "tonnage.dev/contents": {"spec": {}},
    "services": {"spec": {"type": "NodePort", "selector": LABELS, "ports": [{"port": 80}]}},
    "endpoints": {"subsets": []},
    "discovery.k8s.io/endpointslices": {"addressType": "IPv4", "endpoints": [], "ports": []},
    "networking.k8s.io/ingresses": {"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}},
    "networking.k8s.io/ingressclasses": {"spec": {"controller": "a.b/c"}},
    "networking.k8s.io/networkpolicies": {"spec": {"podSelector": {}}},
    "autoscaling/horizontalpodautoscalers": {
        "spec": {"maxReplicas": 1, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}
    },
    "autoscaling/v1/horizontalpodautoscalers": {
        "spec": {"maxReplicas": 1, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}
    },
    "replicationcontrollers": {"spec": {"selector": LABELS, "template": _PODS, "replicas": 0}},
    "node.k8s.io/runtimeclasses": {"handler": "h"},
    "podtemplates": {"template": _PODS},
    "storage.k8s.io/volumeattributesclasses": {"driverName": _DRIVER, "parameters": {"a": "b"}},
    "certificates.k8s.io/certificatesigningrequests": {
        "spec": {"request": _REQUEST, "signerName": "a.b/c", "usages": ["client auth"]}
    },
    "coordination.k8s.io/leases": {"spec": {"holderIdentity": "h", "leaseDurationSeconds": 10}},
    "authentication.k8s.io/tokenreviews": {"spec": {"token": "t"}},
    "authorization.k8s.io/subjectaccessreviews": {
        "spec": {"user": "u", "resourceAttributes": {"verb": "get", "resource": "pods"}}
    },
    "authorization.k8s.io/localsubjectaccessreviews": {
        "spec": {"user": "u", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}
    },
    "authorization.k8s.io/selfsubjectaccessreviews": {
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}
    },
    "authorization.k8s.io/selfsubjectrulesreviews": {"spec": {"namespace": "default"}},
}  # fmt: skip
"""Resource key -> what it needs besides a name."""

ITEMS: Mapping[str, Obj] = {
    "Container": {"name": "c{n}", "image": "i"},
    "EphemeralContainer": {"name": "e{n}", "image": "i"},
    "EnvVar": {"name": "E{n}", "value": "v"},
    "EnvFromSource": {"configMapRef": {"name": "m{n}"}},
    "ContainerPort": {"containerPort": 80, "hostPort": "{port}"},
    "ContainerResizePolicy": {"resourceName": "cpu", "restartPolicy": "NotRequired"},
    "VolumeMount": {"name": "v", "mountPath": "/m{n}"},
    "VolumeDevice": {"name": "v", "devicePath": "/d{n}"},
    "Volume": {"name": "v{n}", "ephemeral": {"volumeClaimTemplate": {"spec": _CLAIM | {"storageClassName": "late"}}}},
    "VolumeProjection": {"configMap": {"name": "m{n}"}},
    "KeyToPath": {"key": "k{n}", "path": "p{n}"},
    "DownwardAPIVolumeFile": {"path": "p{n}", "fieldRef": {"fieldPath": "metadata.name"}},
    "Toleration": {"key": "k{n}", "operator": "Exists"},
    "Taint": {"key": "k{n}", "effect": "NoSchedule"},
    "NodeSelectorTerm": _NODE_TERM,
    "NodeSelectorRequirement": {"key": "k{n}", "operator": "DoesNotExist"},
    "PreferredSchedulingTerm": {"weight": 1, "preference": _NODE_TERM},
    "PodAffinityTerm": _POD_TERM,
    "WeightedPodAffinityTerm": {"weight": 1, "podAffinityTerm": _POD_TERM},
    "TopologySpreadConstraint": {
        "maxSkew": 1, "topologyKey": "k{n}", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": LABELS},
    },
    "LabelSelectorRequirement": {"key": "k{n}", "operator": "DoesNotExist"},
    "FieldSelectorRequirement": {"key": "k{n}", "operator": "DoesNotExist"},
    "NodeSelector": {"nodeSelectorTerms": [_NODE_TERM]},
    "OwnerReference": {"apiVersion": "v1", "kind": "ConfigMap", "name": "o{n}", "uid": "u{n}"},
    "PodCondition": {"type": "T{n}", "status": "True"},
    "NodeCondition": {"type": "T{n}", "status": "True"},
    "PodReadinessGate": {"conditionType": "a.b/c{n}"},
    "PodSchedulingGate": {"name": "a.b/c{n}"},
    "ContainerStatus": {"name": "c{n}", "image": "i", "imageID": "", "ready": True, "restartCount": 0},
    "HostAlias": {"ip": "10.0.0.1", "hostnames": ["h{n}"]},
    "PolicyRule": {"apiGroups": ["g{n}"], "resources": ["r"], "verbs": ["get"]},
    "Subject": {"kind": "User", "name": "u{n}", "apiGroup": "rbac.authorization.k8s.io"},
    "LimitRangeItem": {"type": "Container", "max": {"cpu": "1k"}},
    "ScopedResourceSelectorRequirement": {"scopeName": "PriorityClass", "operator": "In", "values": ["c{n}"]},
    "TopologySelectorTerm": {"matchLabelExpressions": [{"key": "k{n}", "values": ["v"]}]},
    "TopologySelectorLabelRequirement": {"key": "k{n}", "values": ["v"]},
    "TokenRequest": {"audience": "a{n}"},
    "CSINodeDriver": {"name": "d{n}.example", "nodeID": "i"},
    "ServicePort": {"name": "p{n}", "port": "{port}", "protocol": "TCP"},
    "EndpointSubset": {"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]},
    "EndpointAddress": {"ip": "10.0.0.1"},
    "Endpoint": {"addresses": ["10.0.0.1"]},
    "IngressRule": {"host": "h{n}.example"},
    "HTTPIngressPath": {
        "path": "/p{n}", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}
    },
    "NetworkPolicyPeer": {"ipBlock": {"cidr": "10.0.0.0/8"}},
    "PersistentVolumeClaim": {"metadata": {"name": "c{n}"}, "spec": _CLAIM},
    "PersistentVolumeClaimTemplate": {"spec": _CLAIM},
    "PersistentVolumeClaimSpec": _CLAIM,
    "MetricSpec": {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 1}},
    },
    "AttachedVolume": {"name": "v{n}", "devicePath": "/d"},
    "CustomResourceDefinitionVersion": {
        "name": "v1beta{n}", "served": True, "storage": False, "schema": {"openAPIV3Schema": {"type": "object"}}
    },
    "CustomResourceColumnDefinition": {"name": "c{n}", "type": "string", "jsonPath": ".a{n}"},
}  # fmt: skip
"""Struct -> an item of a list of it; `{n}` stands for the item's number, `{port}` for a port of its own."""

COMMON: Mapping[str, tuple[str, ...]] = {
    "Volume": ("name",),
    "VolumeProjection": (),
    "EnvFromSource": ("prefix",),
    "EnvVar": ("name",),
    "EnvVarSource": (),
    "LifecycleHandler": (),
    "NetworkPolicyPeer": (),
    "PersistentVolumeSpec": ("accessModes", "capacity", "storageClassName"),
}
"""Struct of which one field is given -> those that are given besides."""

WORDS: Mapping[str, str] = {
    "finalizers": "a.b/c{n}", "accessModes": "ReadWriteOnce", "volumeLifecycleModes": "Persistent",
    "scopes": "NotTerminating", "usages": "client auth", "clusterIPs": "10.96.0.9", "externalIPs": "10.0.0.1",
    "loadBalancerSourceRanges": "10.0.0.0/8", "ipFamilies": "IPv4", "addresses": "10.0.0.1", "nameservers": "10.0.0.1",
    "podCIDRs": "10.0.0.0/8", "add": "CAP_{n}", "drop": "CAP_{n}", "policyTypes": "Ingress",
}  # fmt: skip
"""Field of texts -> one of them, where not each text will do."""

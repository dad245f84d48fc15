"""Everything that somebody who stole an agent's token could try, and what the API server says to it."""

from __future__ import annotations

from typing import Any

from tests.e2e.agents import CLASS, SYSTEM
from tests.e2e.attempts import (
    CAPACITIES,
    CLAIMS,
    EVENTS,
    FLEX_CLASS,
    GIVEN_BACK,
    NODES,
    REQUESTS,
    UNCLASSED,
    VOLUMES,
    Try,
    affinity,
    apply,
    as_flexvolume,
    ask_signer,
    create_volume,
    delete,
    make_capacity,
    make_event,
    patch,
    put,
    secret,
    take_over,
    two_terms,
)

from tonnage.kubernetes.api import names
from tonnage.provisioning.claims.growth import NODE_NOT_REQUIRED

NOT_ITS_NODE = "may not touch persistentvolumes of another node"
NOT_SENT = "may not touch a claim that was not sent to it"
ONLY_BIND = "may send a claim back, bind it or report its growth"
ONLY_FINALIZER = "its attributes class or its own finalizer"
ONLY_TAINT = "only take the start-up taint from its own node"
ONLY_CONDITION = "may only change the condition of its pools"
NAMED = "named after the uid of its claim"
OTHER_VOLUME = "gives a claim no other volume"
ONLY_BOUND = "only phase that an agent gives"
CAPACITY = "may not touch csistoragecapacities of another node"
RBAC = "cannot"
NOT_OF_CLASS = "is not of that driver"
NOT_A_PODS = "only claims of ephemeral volumes"
IMMUTABLE = "is immutable"
"""For everybody: the API server says so before any policy is asked."""
OWN_NAME = "in its own name only"
NO_SECRET = "may not name a secret"
NOT_GIVEN = "given to no driver of ours"
NO_SIGNER = "asks no signer"


def _conditions(*types: str) -> dict[str, Any]:
    """A merge patch: these conditions are all that the status has then."""
    return {"status": {"conditions": [{"type": kind, "status": "True", "reason": "Thief"} for kind in types]}}


NEWER = frozenset({"free volume's attributes", "own claim's attributes class"})
"""Of fields that servers before 1.34 drop: the write then changes nothing."""
REJECTED: dict[str, tuple[str, Try]] = {
    # PersistentVolumes: made
    "volume on another node": (
        NOT_ITS_NODE,
        create_volume(lambda w, b: b["spec"].update(nodeAffinity=affinity(w, [w.other]))),
    ),
    "volume on both nodes": (
        NOT_ITS_NODE,
        create_volume(lambda w, b: b["spec"].update(nodeAffinity=affinity(w, [w.mine, w.other]))),
    ),
    "volume in two terms": (NOT_ITS_NODE, create_volume(lambda w, b: b["spec"].update(nodeAffinity=two_terms(w)))),
    "volume everywhere": (NOT_ITS_NODE, create_volume(lambda w, b: b["spec"].pop("nodeAffinity"))),
    "volume anywhere but here": (
        NOT_ITS_NODE,
        create_volume(lambda w, b: b["spec"].update(nodeAffinity=affinity(w, [w.mine], operator="NotIn"))),
    ),
    "volume by another key": (
        NOT_ITS_NODE,
        create_volume(lambda w, b: b["spec"].update(nodeAffinity=affinity(w, [w.mine], key="kubernetes.io/os"))),
    ),
    "volume on the host of another": (
        NOT_ITS_NODE,
        create_volume(
            lambda w, b: b["spec"].update(nodeAffinity=affinity(w, [w.other], key=names.HOSTNAME_LABEL)),
        ),
    ),
    "volume where the key exists": (
        NOT_ITS_NODE,
        create_volume(lambda w, b: b["spec"].update(nodeAffinity=affinity(w, [], operator="Exists"))),
    ),
    "volume labelled for another": (
        "may not label persistentvolumes",
        create_volume(lambda w, b: b["metadata"]["labels"].update({names.NODE_LABEL: w.other})),
    ),
    "volume of another driver": (
        f"{NOT_ITS_NODE}|{NOT_OF_CLASS}",
        create_volume(lambda w, b: b["spec"]["csi"].update(driver="csi.example.com")),
    ),
    "volume that is a folder of the node": (
        f"{NOT_ITS_NODE}|{NOT_OF_CLASS}",
        create_volume(lambda w, b: (b["spec"].pop("csi"), b["spec"].update(hostPath={"path": "/"}))),
    ),
    "volume that is a local disk": (
        f"{NOT_ITS_NODE}|{NOT_OF_CLASS}",
        create_volume(lambda w, b: (b["spec"].pop("csi"), b["spec"].update(local={"path": "/"}))),
    ),
    "volume under another name": (NAMED, create_volume(lambda w, b: b["metadata"].update(name="pvc-other"))),
    "volume for a claim without uid": (NAMED, create_volume(lambda w, b: b["spec"]["claimRef"].pop("uid"))),
    "volume for something else": (NAMED, create_volume(lambda w, b: b["spec"]["claimRef"].update(kind="Pod"))),
    "free volume that is no disk": (
        NAMED,
        create_volume(lambda w, b: b["metadata"]["annotations"].pop(names.DISK), claim=""),
    ),
    "free volume named as a claim's": (
        NAMED,
        create_volume(lambda w, b: b["metadata"].update(name="pvc-free"), claim=""),
    ),
    "volume without class": (
        "has a class and no owner",
        create_volume(lambda w, b: b["spec"].update(storageClassName="")),
    ),
    "volume with an owner": (
        "has a class and no owner",
        create_volume(
            lambda w, b: b["metadata"].update(
                ownerReferences=[{"apiVersion": "v1", "kind": "Node", "name": w.other, "uid": "1"}]
            )
        ),
    ),
    "volume of another's class": (
        "class power-other is not of that driver",
        create_volume(lambda w, b: b["spec"].update(storageClassName="power-other")),
    ),
    "FlexVolume on another node": (
        NOT_ITS_NODE,
        create_volume(lambda w, b: (as_flexvolume(b), b["spec"].update(nodeAffinity=affinity(w, [w.other])))),
    ),
    "FlexVolume of another driver": (
        f"{NOT_ITS_NODE}|{NOT_OF_CLASS}",
        create_volume(lambda w, b: as_flexvolume(b, driver="example.com/folder")),
    ),
    "FlexVolume of another driver's class": (
        NOT_OF_CLASS,
        create_volume(lambda w, b: as_flexvolume(b, driver="monostream.com/localflex")),
    ),
    "FlexVolume of a class of the CSI driver": (
        NOT_OF_CLASS,
        create_volume(lambda w, b: (as_flexvolume(b), b["spec"].update(storageClassName=CLASS))),
    ),
    "volume of a class of FlexVolumes": (
        NOT_OF_CLASS,
        create_volume(lambda w, b: b["spec"].update(storageClassName=FLEX_CLASS)),
    ),
    "FlexVolume that has a secret": (
        NO_SECRET,
        create_volume(lambda w, b: as_flexvolume(b, secretRef={"name": "admin", "namespace": "kube-system"})),
    ),
    "another's FlexVolume taken over": (
        NOT_ITS_NODE,
        patch(f"{VOLUMES}/power-flex-other", lambda w: take_over(w.mine)),
    ),
    "another's FlexVolume taken over for it": (
        NOT_ITS_NODE,
        patch(f"{VOLUMES}/power-flex-other", lambda w: take_over(w.other)),
    ),
    "FlexVolume labelled as another's": (
        "label persistentvolumes as one of another",
        patch(f"{VOLUMES}/power-flex-mine", lambda w: take_over(w.other)),
    ),
    "FlexVolume taken over with a label more": (
        ONLY_FINALIZER,
        patch(
            f"{VOLUMES}/power-flex-mine",
            lambda w: take_over(w.mine, labels={names.NODE_LABEL: w.mine, "quota": "free"}),
        ),
    ),
    "FlexVolume taken over without a person's label": (
        ONLY_FINALIZER,
        patch(f"{VOLUMES}/power-flex-mine", lambda w: take_over(w.mine, labels={"people/own": None})),
    ),
    "FlexVolume taken over with an annotation more": (
        ONLY_FINALIZER,
        patch(
            f"{VOLUMES}/power-flex-mine", lambda w: take_over(w.mine, annotations={names.DELETION_SECRET_NAME: "admin"})
        ),
    ),
    "FlexVolume taken over with a foreign finalizer": (
        ONLY_FINALIZER,
        patch(
            f"{VOLUMES}/power-flex-mine", lambda w: take_over(w.mine, finalizers=[names.PV_PROTECTION, "example.com/x"])
        ),
    ),
    "FlexVolume taken over and to be deleted": (
        ONLY_FINALIZER,
        patch(
            f"{VOLUMES}/power-flex-mine",
            lambda w: {**take_over(w.mine), "spec": {"persistentVolumeReclaimPolicy": "Delete"}},
        ),
    ),
    "volume taken over that no FlexVolume is": (
        ONLY_FINALIZER,
        patch(f"{VOLUMES}/static-power-free", lambda w: take_over(w.mine)),
    ),
    "volume that has a secret staged": (NO_SECRET, secret("nodeStageSecretRef")),
    "volume that has a secret published": (NO_SECRET, secret("nodePublishSecretRef")),
    "volume that has a secret expanded": (NO_SECRET, secret("nodeExpandSecretRef")),
    "volume whose controller has a secret": (NO_SECRET, secret("controllerPublishSecretRef")),
    "volume whose resizer has a secret": (NO_SECRET, secret("controllerExpandSecretRef")),
    # PersistentVolumes: changed, removed
    "another's volume relabelled": (
        NOT_ITS_NODE,
        patch(lambda w: w.pv(2), lambda w: {"metadata": {"labels": {names.NODE_LABEL: w.mine}}}),
    ),
    "another's volume drawn here": (
        IMMUTABLE,
        patch(lambda w: w.pv(2), lambda w: {"spec": {"nodeAffinity": affinity(w, [w.mine])}}),
    ),
    "another's finalizer": (NOT_ITS_NODE, patch(lambda w: w.pv(2), {"metadata": {"finalizers": None}})),
    "another's volume released": (
        NOT_ITS_NODE,
        patch(lambda w: f"{w.pv(2)}/status", {"status": {"phase": "Released"}}),
    ),
    "another's volume called reclaimed": (
        NOT_ITS_NODE,
        patch(lambda w: f"{w.pv(2)}/status", {"status": {"reason": names.RECLAIMED, "message": "gone"}}),
    ),
    "another's volume removed": (NOT_ITS_NODE, delete(lambda w: w.pv(2))),
    "another driver's volume removed": (NOT_ITS_NODE, delete(f"{VOLUMES}/power-foreign")),
    "own volume sent away": (
        IMMUTABLE,
        patch(lambda w: w.pv(1), lambda w: {"spec": {"nodeAffinity": affinity(w, [w.other])}}),
    ),
    "own volume to be deleted": (
        ONLY_FINALIZER,
        patch(lambda w: w.pv(1), {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
    ),
    "own volume for another claim": (
        ONLY_FINALIZER,
        patch(lambda w: w.pv(1), lambda w: {"spec": {"claimRef": {"name": "pending", "uid": "x"}}}),
    ),
    "free volume given to a claim": (
        ONLY_FINALIZER,
        patch(
            f"{VOLUMES}/static-power-free",
            {"spec": {"claimRef": {"kind": "PersistentVolumeClaim", "namespace": "power", "name": "pending"}}},
        ),
    ),
    "own volume smaller": (ONLY_FINALIZER, patch(lambda w: w.pv(1), {"spec": {"capacity": {"storage": "1Mi"}}})),
    "own volume larger and to be deleted": (
        ONLY_FINALIZER,
        patch(lambda w: w.pv(1), {"spec": {"capacity": {"storage": "9Ti"}, "persistentVolumeReclaimPolicy": "Delete"}}),
    ),
    "own volume larger and of another class": (
        ONLY_FINALIZER,
        patch(lambda w: w.pv(1), {"spec": {"capacity": {"storage": "9Ti"}, "storageClassName": "power-other"}}),
    ),
    "free volume larger": (
        ONLY_FINALIZER,
        patch(f"{VOLUMES}/static-power-free", {"spec": {"capacity": {"storage": "100Gi"}}}),
    ),
    "another's volume larger": (
        NOT_ITS_NODE,
        patch(lambda w: w.pv(2), {"spec": {"capacity": {"storage": "100Gi"}}}),
    ),
    "another's claim said to have grown": (
        NOT_SENT,
        patch(f"{CLAIMS}/had-2/status", {"status": {"capacity": {"storage": "100Gi"}}}),
    ),
    "another's claim marked as grown": (
        NOT_SENT,
        patch(f"{CLAIMS}/had-2/status", {"metadata": {"annotations": {NODE_NOT_REQUIRED: "true"}}}),
    ),
    "own volume's attributes and more": (
        ONLY_FINALIZER,
        patch(
            lambda w: w.pv(1),
            {"spec": {"volumeAttributesClassName": "gold", "persistentVolumeReclaimPolicy": "Delete"}},
        ),
    ),
    "free volume's attributes": (
        ONLY_FINALIZER,
        patch(f"{VOLUMES}/static-power-free", {"spec": {"volumeAttributesClassName": "gold"}}),
    ),
    "another's volume's attributes": (
        NOT_ITS_NODE,
        patch(lambda w: w.pv(2), {"spec": {"volumeAttributesClassName": "gold"}}),
    ),
    "own volume annotated": (
        ONLY_FINALIZER,
        patch(lambda w: w.pv(1), {"metadata": {"annotations": {names.DELETION_SECRET_NAME: "admin"}}}),
    ),
    "own volume without protection": (
        ONLY_FINALIZER,
        patch(lambda w: w.pv(1), {"metadata": {"finalizers": [names.PROVISIONER_FINALIZER]}}),
    ),
    "own volume with a new finalizer": (
        ONLY_FINALIZER,
        patch(
            lambda w: w.pv(1),
            {"metadata": {"finalizers": [names.PV_PROTECTION, names.PROVISIONER_FINALIZER, "example.com/x"]}},
        ),
    ),
    "finalizer of a volume that is retained": (
        ONLY_FINALIZER,
        patch(
            f"{VOLUMES}/static-power-retain",
            {"metadata": {"finalizers": [names.PV_PROTECTION, names.PROVISIONER_FINALIZER]}},
        ),
    ),
    "own volume released": (ONLY_BOUND, patch(lambda w: f"{w.pv(1)}/status", {"status": {"phase": "Released"}})),
    "free volume called bound": (
        ONLY_BOUND,
        patch(f"{VOLUMES}/static-power-free/status", {"status": {"phase": "Bound"}}),
    ),
    "own volume annotated by its status": (
        ONLY_BOUND,
        patch(
            lambda w: f"{w.pv(1)}/status",
            {"metadata": {"annotations": {"people/own": "y"}}, "status": {"phase": "Bound"}},
        ),
    ),
    "another's volume by server-side apply": (
        NOT_ITS_NODE,
        apply(
            lambda w: w.pv(2),
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"labels": {names.POOL_LABEL: "x"}}},
        ),
    ),
    "new volume of another by server-side apply": (
        NOT_ITS_NODE,
        apply(f"{VOLUMES}/static-power-new", lambda w: w.volume(w.other, name="static-power-new")),
    ),
    "all volumes": (RBAC, delete(VOLUMES)),
    # Claims
    "another's claim sent back": (
        NOT_SENT,
        patch(f"{CLAIMS}/other", {"metadata": {"annotations": {names.SELECTED_NODE: None}}}),
    ),
    "another's claim drawn here": (
        NOT_SENT,
        patch(f"{CLAIMS}/other", lambda w: {"metadata": {"annotations": {names.SELECTED_NODE: w.mine}}}),
    ),
    "waiting claim drawn here": (
        NOT_SENT,
        patch(f"{CLAIMS}/pending", lambda w: {"metadata": {"annotations": {names.SELECTED_NODE: w.mine}}}),
    ),
    "waiting claim labelled": (
        NOT_SENT,
        patch(f"{CLAIMS}/pending", lambda w: {"metadata": {"labels": {names.NODE_LABEL: w.mine}}}),
    ),
    "waiting claim bound": (
        NOT_SENT,
        patch(f"{CLAIMS}/pending", lambda w: {"spec": {"volumeName": f"pvc-{w.claims['pending']['metadata']['uid']}"}}),
    ),
    "another's claim bound": (NOT_SENT, patch(f"{CLAIMS}/other", {"spec": {"volumeName": "pvc-x"}})),
    "another's claim called bound": (
        NOT_SENT,
        patch(f"{CLAIMS}/other/status", {"status": {"phase": "Bound"}}),
    ),
    "another's claim called reclaimed": (
        NOT_SENT,
        patch(f"{CLAIMS}/other/status", {"status": {"conditions": [GIVEN_BACK]}}),
    ),
    "another's claim deleted": (f"{NOT_SENT}|{NOT_A_PODS}", delete(f"{CLAIMS}/other")),
    "another's pod's claim deleted": (NOT_SENT, delete(f"{CLAIMS}/pods-power-2")),
    "waiting claim deleted": (f"{NOT_SENT}|{NOT_A_PODS}", delete(f"{CLAIMS}/pending")),
    "own claim deleted that is no pod's": (NOT_A_PODS, delete(f"{CLAIMS}/mine")),
    "claim of a class name without an object deleted": (NOT_GIVEN, delete(f"{CLAIMS}/unclassed")),
    "pod's claim of a class name without an object deleted": (NOT_GIVEN, delete(f"{CLAIMS}/pods-{UNCLASSED}")),
    "claim of a class name without an object bound": (
        NOT_GIVEN,
        patch(
            f"{CLAIMS}/unclassed", lambda w: {"spec": {"volumeName": f"pvc-{w.claims['unclassed']['metadata']['uid']}"}}
        ),
    ),
    "all claims": (RBAC, delete(CLAIMS)),
    "a claim made": (RBAC, lambda w: w.try_("POST", CLAIMS, {"metadata": {"name": "new"}, "spec": {}})),
    "own claim sent elsewhere": (
        ONLY_BIND,
        patch(f"{CLAIMS}/mine", lambda w: {"metadata": {"annotations": {names.SELECTED_NODE: w.other}}}),
    ),
    "own claim relabelled": (ONLY_BIND, patch(f"{CLAIMS}/mine", {"metadata": {"labels": {"people/own": "y"}}})),
    "own claim's label taken": (ONLY_BIND, patch(f"{CLAIMS}/mine", {"metadata": {"labels": {"people/own": None}}})),
    "own claim with a new label": (ONLY_BIND, patch(f"{CLAIMS}/mine", {"metadata": {"labels": {"quota": "free"}}})),
    "own claim's annotation changed": (
        ONLY_BIND,
        patch(f"{CLAIMS}/mine", {"metadata": {"annotations": {"people/own": "y"}}}),
    ),
    "own claim's annotation taken": (
        ONLY_BIND,
        patch(f"{CLAIMS}/mine", {"metadata": {"annotations": {"people/own": None}}}),
    ),
    "own claim with a new annotation": (
        ONLY_BIND,
        patch(f"{CLAIMS}/mine", {"metadata": {"annotations": {"people/new": "?"}}}),
    ),
    "own claim's provisioner changed": (
        ONLY_BIND,
        patch(f"{CLAIMS}/mine", {"metadata": {"annotations": {names.STORAGE_PROVISIONER: "csi.example.com"}}}),
    ),
    "own claim without protection": (ONLY_BIND, patch(f"{CLAIMS}/mine", {"metadata": {"finalizers": None}})),
    "own claim with an owner": (
        ONLY_BIND,
        patch(
            f"{CLAIMS}/mine",
            {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}]}},
        ),
    ),
    "own claim on another's volume": (
        OTHER_VOLUME,
        patch(f"{CLAIMS}/mine", lambda w: {"spec": {"volumeName": f"pvc-{w.claims['had-2']['metadata']['uid']}"}}),
    ),
    "own claim on any volume": (OTHER_VOLUME, patch(f"{CLAIMS}/mine", {"spec": {"volumeName": "nfs-of-others"}})),
    "own claim larger": (
        IMMUTABLE,
        patch(f"{CLAIMS}/mine", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
    ),
    "own claim bound and larger": (
        IMMUTABLE,
        patch(
            f"{CLAIMS}/mine",
            lambda w: {
                "spec": {
                    "volumeName": f"pvc-{w.claims['mine']['metadata']['uid']}",
                    "resources": {"requests": {"storage": "2Gi"}},
                }
            },
        ),
    ),
    "own claim bound and sent back": (
        OTHER_VOLUME,
        patch(
            f"{CLAIMS}/mine",
            lambda w: {
                "metadata": {"annotations": {names.SELECTED_NODE: None}},
                "spec": {"volumeName": f"pvc-{w.claims['mine']['metadata']['uid']}"},
            },
        ),
    ),
    "own claim relabelled by its status": (
        ONLY_BIND,
        patch(f"{CLAIMS}/had-1/status", {"metadata": {"labels": {"people/own": "y"}}}),
    ),
    "own claim relabelled by server-side apply": (
        ONLY_BIND,
        apply(
            f"{CLAIMS}/mine",
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "mine", "labels": {"x": "y"}}},
        ),
    ),
    "own claim's attributes class": (
        OTHER_VOLUME,
        patch(f"{CLAIMS}/had-1", {"spec": {"volumeAttributesClassName": "gold"}}),
    ),
    "another's claim's attributes": (
        NOT_SENT,
        patch(f"{CLAIMS}/had-2/status", {"status": {"currentVolumeAttributesClassName": "gold"}}),
    ),
    "an attributes class": (
        RBAC,
        lambda w: w.try_(
            "POST",
            "/apis/storage.k8s.io/v1/volumeattributesclasses",
            {"metadata": {"name": "x"}, "driverName": names.DRIVER, "parameters": {"iops": "1"}},
        ),
    ),
    "own claim lost": (ONLY_BOUND, patch(f"{CLAIMS}/mine/status", {"status": {"phase": "Lost"}})),
    "own claim bound to nothing": (ONLY_BOUND, patch(f"{CLAIMS}/mine/status", {"status": {"phase": "Bound"}})),
    # Capacity
    "capacity of another": (
        CAPACITY,
        make_capacity(lambda w, b: b.update(nodeTopology={"matchLabels": {names.TOPOLOGY_NODE: w.other}})),
    ),
    "capacity of all nodes": (CAPACITY, make_capacity(lambda w, b: b.update(nodeTopology={}))),
    "capacity of no place": (CAPACITY, make_capacity(lambda w, b: b.pop("nodeTopology"))),
    "capacity by an expression": (
        CAPACITY,
        make_capacity(
            lambda w, b: b.update(
                nodeTopology={"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "Exists"}]}
            )
        ),
    ),
    "capacity labelled for another": (
        "may not label csistoragecapacities",
        make_capacity(lambda w, b: b["metadata"]["labels"].update({names.NODE_LABEL: w.other})),
    ),
    "capacity that another node owns": (
        "belong to its node",
        make_capacity(lambda w, b: b["metadata"]["ownerReferences"][0].update(name=w.other)),
    ),
    "capacity elsewhere": (
        RBAC,
        make_capacity(
            lambda w, b: b["metadata"].update(namespace="power"),
            path="/apis/storage.k8s.io/v1/namespaces/power/csistoragecapacities",
        ),
    ),
    "another's capacity changed": (CAPACITY, patch(f"{CAPACITIES}/power-2", {"capacity": "100Ti"})),
    "another's capacity relabelled": (
        CAPACITY,
        patch(f"{CAPACITIES}/power-2", lambda w: {"metadata": {"labels": {names.NODE_LABEL: w.mine}}}),
    ),
    "another's capacity removed": (CAPACITY, delete(f"{CAPACITIES}/power-2")),
    "all capacity": (RBAC, delete(CAPACITIES)),
    # Nodes
    "another's start-up taint": (ONLY_TAINT, patch(f"{NODES}/power-2", {"spec": {"taints": None}})),
    "all taints of its own": (ONLY_TAINT, patch(f"{NODES}/power-1", {"spec": {"taints": None}})),
    "a new taint": (
        ONLY_TAINT,
        patch(
            f"{NODES}/power-1", [{"op": "add", "path": "/spec/taints/-", "value": {"key": "x", "effect": "NoExecute"}}]
        ),
    ),
    "its node's labels": (ONLY_TAINT, patch(f"{NODES}/power-1", {"metadata": {"labels": {"zone": "x"}}})),
    "another's tier": (
        ONLY_TAINT,
        patch(f"{NODES}/power-2", {"metadata": {"labels": {names.tier_label(CLASS): "64Gi"}}}),
    ),
    "a tier that is none": (
        ONLY_TAINT,
        patch(f"{NODES}/power-1", {"metadata": {"labels": {names.tier_label(CLASS): "true"}}}),
    ),
    "a tier with another label": (
        ONLY_TAINT,
        patch(f"{NODES}/power-1", {"metadata": {"labels": {names.tier_label(CLASS): "64Gi", "zone": "x"}}}),
    ),
    "capacity of a tier": (
        CAPACITY,
        make_capacity(lambda w, b: b.update(nodeTopology={"matchLabels": {names.tier_label(CLASS): "64Gi"}})),
    ),
    "its node's annotations": (
        ONLY_TAINT,
        patch(f"{NODES}/power-1", {"metadata": {"annotations": {"alpha": "x"}}}),
    ),
    "another's mark": (ONLY_TAINT, patch(f"{NODES}/power-2", {"metadata": {"annotations": {names.HISTORY: "x"}}})),
    "its mark with another annotation": (
        ONLY_TAINT,
        patch(f"{NODES}/power-1", {"metadata": {"annotations": {names.HISTORY: "x", "alpha": "x"}}}),
    ),
    "its node cordoned": (ONLY_TAINT, patch(f"{NODES}/power-1", {"spec": {"unschedulable": True}})),
    "another cordoned": (ONLY_TAINT, patch(f"{NODES}/power-2", {"spec": {"unschedulable": True}})),
    "its node's capacity": (ONLY_CONDITION, patch(f"{NODES}/power-1/status", {"status": {"capacity": {"x": "1"}}})),
    "its node's readiness": (ONLY_CONDITION, patch(f"{NODES}/power-1/status", _conditions("Ready"))),
    "its node's readiness and its own condition": (
        ONLY_CONDITION,
        patch(f"{NODES}/power-1/status", _conditions(names.POOL_UNAVAILABLE, "Ready")),
    ),
    "its node's conditions taken": (ONLY_CONDITION, patch(f"{NODES}/power-1/status", _conditions())),
    "its node's labels by its status": (
        ONLY_TAINT,
        patch(f"{NODES}/power-1/status", {"metadata": {"labels": {"zone": "x"}}}),
    ),
    "another's condition": (ONLY_TAINT, patch(f"{NODES}/power-2/status", _conditions(names.POOL_UNAVAILABLE))),
    "its node removed": (RBAC, delete(f"{NODES}/power-1")),
    # Events
    "event in another's name": (OWN_NAME, make_event(lambda w, b: b["source"].update(host=w.other))),
    "event of the scheduler": (OWN_NAME, make_event(lambda w, b: b["source"].update(component="default-scheduler"))),
    "event by another reporter": (OWN_NAME, make_event(lambda w, b: b.update(reportingComponent="kubelet"))),
    "event about another node": (
        OWN_NAME,
        make_event(lambda w, b: b.update(involvedObject={"kind": "Node", "namespace": "power", "name": w.other})),
    ),
    "event removed": (RBAC, delete(f"{EVENTS}/any")),
    # Certificates
    "certificate of a client of the API server": (NO_SIGNER, ask_signer("kubernetes.io/kube-apiserver-client")),
    "certificate of a kubelet": (NO_SIGNER, ask_signer("kubernetes.io/kube-apiserver-client-kubelet")),
    "certificate of another issuer": (NO_SIGNER, ask_signer("tonnage.dev/other")),
    "certificate of a signer of others": (NO_SIGNER, ask_signer("example.com/internal", "server auth")),
    "certificate approved": (RBAC, patch(f"{REQUESTS}/any/approval", {"status": {}})),
    "certificate signed": (RBAC, patch(f"{REQUESTS}/any/status", {"status": {}})),
    # Whatever else
    "a secret read": (RBAC, lambda w: w.try_("GET", "/api/v1/namespaces/kube-system/secrets/any")),
    "all secrets": (RBAC, lambda w: w.try_("GET", "/api/v1/secrets")),
    "a secret made": (
        RBAC,
        lambda w: w.try_("POST", f"/api/v1/namespaces/{SYSTEM}/secrets", {"metadata": {"name": "x"}}),
    ),
    "a lease": (
        RBAC,
        lambda w: w.try_(
            "POST",
            f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases",
            {"metadata": {"name": "tonnage-controller"}},
        ),
    ),
    "a token": (
        RBAC,
        lambda w: w.try_(
            "POST",
            f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/tonnage-controller/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        ),
    ),
    "a class": (RBAC, delete(f"/apis/storage.k8s.io/v1/storageclasses/{CLASS}")),
    "the driver": (RBAC, delete(f"/apis/storage.k8s.io/v1/csidrivers/{names.DRIVER}")),
    "a pod": (RBAC, delete(f"/api/v1/namespaces/{SYSTEM}/pods/agent-power-2")),
    "another namespace": (RBAC, lambda w: w.try_("GET", "/api/v1/namespaces/default")),
    "the policy": (
        RBAC,
        delete("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/tonnage-agent"),
    ),
    "its role": (RBAC, patch("/apis/rbac.authorization.k8s.io/v1/clusterroles/tonnage-node", {"rules": []})),
    "a volume by PUT": (RBAC, lambda w: put(w, w.pv(1), lambda b: b["spec"].update(storageClassName="x"))),
}

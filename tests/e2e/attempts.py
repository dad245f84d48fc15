"""What an agent's token may be used for, and everything that somebody who stole it could try."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.e2e.agents import SYSTEM, Nodes
from tests.e2e.control_plane import ISSUER, Answer
from tests.unit.csi.inline.cert.makers import compatible, issue_request

from tonnage.csi.inline.cert.issuers.remote import SIGNER_DOMAIN
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.transport import STRATEGIC_PATCH

CLAIMS = "/api/v1/namespaces/power/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CAPACITIES = f"/apis/storage.k8s.io/v1/namespaces/{SYSTEM}/csistoragecapacities"
NODES = "/api/v1/nodes"
APPLY = "application/apply-patch+yaml"
EVENTS = "/api/v1/namespaces/power/events"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
UNCLASSED = "power-manual"
"""A class name without an object."""
LONG = f"power-{'x' * 60}.{'y' * 60}"


@dataclass
class World(Nodes):
    """Two nodes, and what each of them has: a claim sent to it, a volume, capacity; a claim that nobody has."""

    mine: str = ""
    other: str = ""
    long: str = ""

    def __post_init__(self) -> None:
        self.mine, self.other, self.long = self.add(1), self.add(2), self.add(3, name=LONG)
        self.claims = {"mine": self.claim("mine", self.mine), "other": self.claim("other", self.other)}
        self.claims["pending"] = self.claim("pending")
        self.claims["pod-1"], self.claims["pod-2"] = self.pods_claim(self.mine), self.pods_claim(self.other)
        self.claims["long"] = self.claim("long", self.long)
        self.claims["unclassed"] = self.claim("unclassed", self.mine, storageClassName=UNCLASSED)
        self.claims["pod-unclassed"] = self.pods_claim(self.mine, UNCLASSED)
        for node, number in ((self.mine, 1), (self.other, 2)):
            self.plane.create(self.capacity(node, f"power-{number}"))
            had = self.claim(f"had-{number}", node)
            self.claims[f"had-{number}"] = had
            self.plane.create(self.volume(node, had))
        foreign = self.volume(self.mine, name="power-foreign", csi={"driver": "csi.example.com", "volumeHandle": "x"})
        self.plane.create(foreign)
        ours = self.volume(self.mine, name="static-power-free")
        self.plane.create(ours)
        for policy in ("Delete", "Retain"):
            name = f"static-power-{policy.lower()}"
            unheld = self.volume(self.mine, name=name, persistentVolumeReclaimPolicy=policy)
            del unheld["metadata"]["finalizers"]
            self.plane.create(unheld)
        for node, name in ((self.mine, "power-flex-mine"), (self.other, "power-flex-other")):
            self.plane.create(self.written(node, name))
        self.given(self.claims["mine"], self.claims["pod-1"])

    def written(self, node: str, name: str) -> Any:
        """A PersistentVolume with a FlexVolume as a person writes it."""
        body = as_flexvolume(self.volume(node, name=name))
        del body["spec"]["flexVolume"]["options"]
        body["metadata"] = {"name": name, "labels": {"people/own": "x"}}
        return body

    def pods_claim(self, node: str, class_name: str = "") -> Any:
        """A claim of an ephemeral volume; its pod waits for ever."""
        name, more = (f"pods-{class_name}", {"storageClassName": class_name}) if class_name else (f"pods-{node}", {})
        waits = {"containers": [{"name": "c", "image": "none.invalid/none"}], "schedulerName": "nobody"}
        head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"waits-{name}", "namespace": self.namespace}}
        pod = self.plane.create({**head, "spec": waits})["metadata"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"], "controller": True}
        return self.claim(name, node, owners=[owner], **more)

    def try_(self, method: str, path: str, body: Any = None, *, node: str = "", query: str = "") -> Answer:
        """One request with the token of a node, by default our own."""
        return self.plane.send(method, path + query, body, token=self.tokens[node or self.mine])

    def pv(self, number: int) -> str:
        """The path of the volume that a node has."""
        return f"{VOLUMES}/pvc-{self.claims[f'had-{number}']['metadata']['uid']}"

    def versions(self) -> dict[str, str]:
        """uid -> resourceVersion of everything of the other node, and of what is nobody's."""
        found: list[Any] = [self.plane.send("GET", f"{CLAIMS}/{name}").body for name in ("other", "pending", "had-2")]
        found.append(self.plane.send("GET", self.pv(2)).body)
        found.append(self.plane.send("GET", f"{CAPACITIES}/power-2").body)
        return {f"{o['kind']}/{o['metadata']['name']}": o["metadata"]["resourceVersion"] for o in found}


Try = Callable[[World], Answer]


def changed(body: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    body = copy.deepcopy(body)
    change(body)
    return body


def create_volume(change: Callable[[World, dict[str, Any]], Any], *, claim: str = "mine") -> Try:
    """A PersistentVolume for our own claim, but for one thing."""

    def attempt(world: World) -> Answer:
        body = world.volume(world.mine, world.claims[claim] if claim else None)
        return world.try_("POST", VOLUMES, changed(body, lambda b: change(world, b)))

    return attempt


def patch(path: str | Callable[[World], str], body: Any) -> Try:
    """A patch with our token."""

    def attempt(world: World) -> Answer:
        where = path if isinstance(path, str) else path(world)
        return world.try_("PATCH", where, body(world) if callable(body) else body)

    return attempt


def apply(path: str | Callable[[World], str], body: Any) -> Try:
    """A server-side apply by force with our token; it makes what is not there."""

    def attempt(world: World) -> Answer:
        where = path if isinstance(path, str) else path(world)
        wanted = body(world) if callable(body) else body
        query = "?fieldManager=thief&force=true"
        token = world.tokens[world.mine]
        return world.plane.send("PATCH", where + query, wanted, token=token, content_type=APPLY)

    return attempt


def delete(path: str | Callable[[World], str]) -> Try:
    return lambda world: world.try_("DELETE", path if isinstance(path, str) else path(world))


def affinity(world: World, values: list[str], *, key: str = names.TOPOLOGY_NODE, operator: str = "In") -> Any:
    expression = {"key": key, "operator": operator, **({"values": values} if values else {})}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


def two_terms(world: World) -> Any:
    """The second term is another node's: either may hold."""
    both = affinity(world, [world.mine])
    both["required"]["nodeSelectorTerms"] += affinity(world, [world.other])["required"]["nodeSelectorTerms"]
    return both


def put(world: World, path: str, change: Callable[[dict[str, Any]], Any]) -> Answer:
    """The whole object, changed."""
    return world.try_("PUT", path, changed(world.plane.send("GET", path).body, change))


def make_capacity(change: Callable[[World, dict[str, Any]], Any], *, path: str = CAPACITIES) -> Try:
    def attempt(world: World) -> Answer:
        body = changed(world.capacity(world.mine, "power-new"), lambda b: change(world, b))
        return world.try_("POST", path, body)

    return attempt


def make_event(change: Callable[[World, dict[str, Any]], Any]) -> Try:
    def attempt(world: World) -> Answer:
        about = {"kind": "PersistentVolumeClaim", "namespace": "power", "name": "mine"}
        return world.try_(
            "POST", EVENTS, changed(world.event(world.mine, "power-e", about), lambda b: change(world, b))
        )

    return attempt


def ask_signer(signer: str, usage: str = "client auth") -> Try:
    """A request for a certificate, without making it."""
    pem = issue_request(compatible()).request
    spec = {"request": base64.b64encode(pem).decode(), "signerName": signer, "usages": ["digital signature", usage]}
    head = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "power"}}
    return lambda world: world.try_("POST", REQUESTS + DRY, {**head, "spec": spec})


def secret(key: str) -> Try:
    named = {"name": "admin", "namespace": "kube-system"}
    return create_volume(lambda w, b: b["spec"]["csi"].update({key: named}))


FLEX_CLASS, FLEX_DRIVER = "power-flex", "tonnage.dev/local"


def as_flexvolume(body: dict[str, Any], *, driver: str = FLEX_DRIVER, **more: Any) -> dict[str, Any]:
    """Make a PersistentVolume one of a class of FlexVolumes; return it."""
    handle = body["spec"].pop("csi")["volumeHandle"]
    flex = {"driver": driver, "options": {names.FLEX_HANDLE: handle}, **more}
    body["spec"].update(flexVolume=flex, storageClassName=FLEX_CLASS)
    return body


def take_over(node: str, **meta: Any) -> dict[str, Any]:
    """What an agent writes into a PersistentVolume with a FlexVolume that a person wrote."""
    held = {
        "labels": {names.NODE_LABEL: node},
        "annotations": {names.PROVISIONED_BY: names.FLEX_COUNTED},
        "finalizers": [names.PV_PROTECTION, names.PROVISIONER_FINALIZER],
    }
    return {"metadata": {**held, **meta}}


DRY = "?dryRun=All"
GIVEN_BACK = {"type": names.RECLAIMED, "status": "True", "reason": "PodFinished", "message": "its pod has finished"}
ALLOWED: dict[str, Try] = {
    "volume for its claim": lambda w: w.try_("POST", VOLUMES + DRY, w.volume(w.mine, w.claims["mine"])),
    "volume on its host": lambda w: w.try_(
        "POST",
        VOLUMES + DRY,
        changed(
            w.volume(w.mine, w.claims["mine"]),
            lambda b: b["spec"].update(nodeAffinity=affinity(w, [w.mine], key=names.HOSTNAME_LABEL)),
        ),
    ),
    "FlexVolume for its claim": lambda w: w.try_(
        "POST", VOLUMES + DRY, changed(w.volume(w.mine, w.claims["mine"]), as_flexvolume)
    ),
    "FlexVolume that a person wrote": patch(f"{VOLUMES}/power-flex-mine{DRY}", lambda w: take_over(w.mine)),
    "disk that nobody has claimed": lambda w: w.try_("POST", VOLUMES + DRY, w.volume(w.mine)),
    "own finalizer off": patch(lambda w: w.pv(1) + DRY, {"metadata": {"finalizers": [names.PV_PROTECTION]}}),
    "own finalizer on": patch(
        f"{VOLUMES}/static-power-delete{DRY}",
        {"metadata": {"finalizers": [names.PV_PROTECTION, names.PROVISIONER_FINALIZER]}},
    ),
    "own volume larger": patch(lambda w: w.pv(1) + DRY, {"spec": {"capacity": {"storage": "100Gi"}}}),
    "own volume bound": patch(lambda w: f"{w.pv(1)}/status{DRY}", {"status": {"phase": "Bound"}}),
    "own volume reclaimed": patch(
        lambda w: f"{w.pv(1)}/status{DRY}", {"status": {"reason": names.RECLAIMED, "message": "its pod has finished"}}
    ),
    "own claim reclaimed": patch(f"{CLAIMS}/had-1/status{DRY}", {"status": {"conditions": [GIVEN_BACK]}}),
    "own volume's attributes": patch(lambda w: w.pv(1) + DRY, {"spec": {"volumeAttributesClassName": "gold"}}),
    "own claim's attributes told": patch(
        f"{CLAIMS}/had-1/status{DRY}",
        {
            "status": {
                "modifyVolumeStatus": {"status": "Infeasible", "targetVolumeAttributesClassName": "gold"},
                "conditions": [{"type": "ModifyVolumeError", "status": "True", "reason": "InvalidArgument"}],
            }
        },
    ),
    "own claim's attributes changed": patch(
        f"{CLAIMS}/had-1/status{DRY}",
        {"status": {"currentVolumeAttributesClassName": "gold", "modifyVolumeStatus": None, "conditions": None}},
    ),
    "free disk withdrawn": delete(f"{VOLUMES}/static-power-free{DRY}"),
    "claim sent back": patch(
        f"{CLAIMS}/mine{DRY}",
        {
            "metadata": {
                "annotations": {names.SELECTED_NODE: None, names.RESCHEDULES: "1"},
                "labels": {names.NODE_LABEL: None},
            }
        },
    ),
    "claim bound": patch(
        f"{CLAIMS}/mine{DRY}",
        lambda w: {
            "metadata": {"annotations": {names.BIND_COMPLETED: "yes", names.BOUND_BY_CONTROLLER: "yes"}},
            "spec": {"volumeName": f"pvc-{w.claims['mine']['metadata']['uid']}"},
        },
    ),
    "claim of a pod given back": delete(f"{CLAIMS}/pods-power-1{DRY}"),
    "capacity": lambda w: w.try_("POST", CAPACITIES + DRY, w.capacity(w.mine, "power-new")),
    "capacity changed": patch(f"{CAPACITIES}/power-1{DRY}", {"capacity": "2Gi"}),
    "capacity removed": delete(f"{CAPACITIES}/power-1{DRY}"),
    "tier of capacity": patch(
        f"{NODES}/power-1{DRY}", {"metadata": {"labels": {names.tier_label(names.SCRATCH_CLASS): "64Gi"}}}
    ),
    "mark": patch(
        f"{NODES}/power-1{DRY}",
        {"metadata": {"annotations": {names.HISTORY: "x", names.DELETIONS_STOPPED: "older"}}},
    ),
    "condition of its pools": lambda w: w.plane.send(
        "PATCH",
        f"{NODES}/power-1/status{DRY}",
        {"status": {"conditions": [{"type": names.POOL_UNAVAILABLE, "status": "True", "reason": "PoolUnavailable"}]}},
        token=w.tokens[w.mine],
        content_type=STRATEGIC_PATCH,
    ),
    "rollback of a claim": patch(
        f"{CLAIMS}/mine{DRY}", lambda w: {"metadata": {"annotations": {names.ROLLED_BACK: w.mine}}}
    ),
    "start-up taint": patch(
        f"{NODES}/power-1{DRY}",
        [
            {"op": "test", "path": "/spec/taints/0/key", "value": names.STARTUP_TAINT},
            {"op": "remove", "path": "/spec/taints/0"},
        ],
    ),
    "event": lambda w: w.try_(
        "POST",
        EVENTS + DRY,
        w.event(w.mine, "power-e", {"kind": "PersistentVolumeClaim", "namespace": "power", "name": "mine"}),
    ),
    "certificate of a pod": ask_signer(f"{SIGNER_DOMAIN}{ISSUER}"),
    "event of its node": lambda w: w.try_(
        "POST", f"/api/v1/namespaces/default/events{DRY}", w.event(w.mine, "power-n", {"kind": "Node", "name": w.mine})
    ),
    "volume of a node with a long name": lambda w: w.try_(
        "POST", VOLUMES + DRY, w.volume(w.long, w.claims["long"]), node=w.long
    ),
    "capacity of a node with a long name": lambda w: w.try_(
        "POST", CAPACITIES + DRY, w.capacity(w.long, "power-long"), node=w.long
    ),
}

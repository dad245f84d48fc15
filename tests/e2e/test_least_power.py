"""An agent's token, and everything that somebody who stole it could try on another node's objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e import snapshot_attempts as snapshots
from tests.e2e.agents import CLASS, SYSTEM
from tests.e2e.attempts import ALLOWED, CLAIMS, FLEX_CLASS, UNCLASSED, VOLUMES, World
from tests.e2e.control_plane import Answer, ControlPlane
from tests.e2e.processes import until
from tests.e2e.rejections import IMMUTABLE, NEWER, REJECTED

from tonnage.kubernetes.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
ATTRACTED = {"free": UNCLASSED, "foreign": "power-late", "loose": "", "early": CLASS}
"""Claims that wait, and their classes: without an object, of another driver, none, and ours before a node is selected."""


@pytest.fixture(scope="module")
def world(installed: ControlPlane) -> Iterator[World]:
    """Made once: what is rejected changes nothing."""
    installed.kubectl("create", "namespace", "power")
    other = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "power-other"}}
    installed.apply({**other, "provisioner": "csi.example.com"})
    late = {**other, "metadata": {"name": "power-late"}, "volumeBindingMode": "WaitForFirstConsumer"}
    installed.apply({**late, "provisioner": "csi.example.com"})
    flex = {**other, "metadata": {"name": FLEX_CLASS}, "provisioner": "tonnage.dev/flex-provisioner"}
    installed.apply(flex)
    made = World(installed, "power", "power")
    snapshots.serve(installed)
    snapshots.make_contents(made)
    yield made
    snapshots.remove_contents(made)
    made.remove()
    installed.kubectl("delete", "storageclass", "power-other", "power-late", FLEX_CLASS)
    installed.kubectl("delete", "namespace", "power", "--wait=false")
    for volume in installed.get("pv")["items"]:
        name = volume["metadata"]["name"]
        installed.send("PATCH", f"{VOLUMES}/{name}", {"metadata": {"finalizers": None}})
        installed.send("DELETE", f"{VOLUMES}/{name}")


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.since("1.34")) if name in NEWER else name for name in REJECTED),
        *snapshots.REJECTED,
    ],
)
def test_rejected(name: str, world: World) -> None:
    why, attempt = {**REJECTED, **snapshots.REJECTED}[name]
    before = world.versions(), snapshots.versions(world)
    answer = attempt(world)
    assert answer.status == (422 if why == IMMUTABLE else 403), answer.body
    assert re.search(why, answer.message), answer.message
    assert (world.versions(), snapshots.versions(world)) == before


def test_token_that_is_bound_to_no_pod(world: World) -> None:
    token = world.plane.kubectl("-n", SYSTEM, "create", "token", "tonnage-node").strip()
    body = world.volume(world.mine, world.claims["mine"])
    answer = world.plane.send("POST", VOLUMES, body, token=token)
    assert (answer.status, "bound to no pod" in answer.message) == (403, True), answer.body


def test_token_of_another_node(world: World) -> None:
    """The same request is right from one node and wrong from the other."""
    body = world.volume(world.mine, world.claims["mine"])
    path = f"{VOLUMES}?dryRun=All"
    assert world.try_("POST", path, body, node=world.other).status == 403
    assert world.try_("POST", path, body, node=world.mine).status == 201


@pytest.mark.parametrize("name", [*ALLOWED, *snapshots.ALLOWED])
def test_allowed(name: str, world: World) -> None:
    answer = {**ALLOWED, **snapshots.ALLOWED}[name](world)
    assert answer.status in (200, 201), answer.body


def test_policies_compile_clean(installed: ControlPlane) -> None:
    def checked() -> list[Any]:
        found = installed.get("validatingadmissionpolicies")["items"]
        return [policy.get("status", {}).get("typeChecking") for policy in found]

    installed.until("types are checked", lambda: None not in checked())
    assert checked() == [{}] * 8


def test_no_waiting_claim_is_attracted_that_no_provisioner_was_asked_for(world: World) -> None:
    """Kubernetes does not compare the classes of a claim and of the volume that names it."""
    plane = world.plane
    pending = {name: world.claim(name, storageClassName=kind) for name, kind in ATTRACTED.items()}
    for claim in pending.values():
        made = world.try_("POST", VOLUMES, world.volume(world.mine, claim))
        assert made.status == 201, "no policy sees its claim"

    def phases(kind: str) -> set[str]:
        which = [c["metadata"]["name"] if kind == "pvc" else f"pvc-{c['metadata']['uid']}" for c in pending.values()]
        space = ["-n", "power"] if kind == "pvc" else []
        return {plane.get(*space, kind, name)["status"]["phase"] for name in which}

    plane.until("the PV controller binds", lambda: phases("pv") == {"Bound"})
    for name, claim in pending.items():
        bind = {"spec": {"volumeName": f"pvc-{claim['metadata']['uid']}"}}
        rejected = plane.send("PATCH", f"{CLAIMS}/{name}", bind)
        assert (rejected.status, "that a provisioner was asked for" in rejected.message) == (403, True), rejected.body
    assert phases("pvc") == {"Pending"}


def test_a_claim_asks_for_more_only_where_its_class_lets_it(world: World) -> None:
    """The API server has judged before who is bound and may grow at all; what is tried here passes that."""
    plane, grows = world.plane, {names.AUTOGROW_AT: "10%", names.AUTOGROW_MAX: "10Gi"}
    for name, parameters in (("power-grows", grows), ("power-asked", {})):
        head = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
        plane.apply({**head, "provisioner": names.DRIVER, "parameters": parameters, "allowVolumeExpansion": True})
        claim = world.claim(name, world.mine, storageClassName=name)
        plane.create(world.volume(world.mine, claim, storageClassName=name))
        path, volume = f"{CLAIMS}/{name}", {"spec": {"volumeName": f"pvc-{claim['metadata']['uid']}"}}
        assert plane.send("PATCH", path, volume).status == 200
        bound = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
        assert plane.send("PATCH", f"{path}/status", bound).status == 200

    def ask(name: str, size: str, **more: Any) -> Answer:
        body = {"spec": {"resources": {"requests": {"storage": size}}}, **more}
        return world.try_("PATCH", f"{CLAIMS}/{name}?dryRun=All", body)

    try:
        until(plane, "the policy knows the class", lambda: ask("power-grows", "2Gi").status == 200)
        rejected = ask("power-asked", "2Gi")
        assert (rejected.status, "whose class has tonnage.dev/autogrow-at" in rejected.message) == (403, True)
        rejected = ask("power-grows", "2Gi", metadata={"labels": {"quota": "free"}})
        assert (rejected.status, "change nothing else of it" in rejected.message) == (403, True)
        assert ask("had-2", "2Gi").status == 403, "whichever policy says so first"
        for name, volume_name in (("power-filled", "pvc-of-another"), ("power-by-hand", "disk-1")):
            claim = world.claim(name, world.mine, storageClassName="power-grows")
            bind = {"spec": {"volumeName": volume_name}}
            assert world.try_("PATCH", f"{CLAIMS}/{name}?dryRun=All", bind).status == 403, "an agent cannot bind it"
            assert plane.send("PATCH", f"{CLAIMS}/{name}", bind).status == 200
            bound = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
            # Kubernetes binds it as soon as there is that volume.
            assert world.try_("PATCH", f"{CLAIMS}/{name}/status?dryRun=All", bound).status == 403, "nor say that it is"
            plane.create(world.volume(world.mine, claim, name=volume_name, storageClassName="power-grows"))
            assert plane.send("PATCH", f"{CLAIMS}/{name}/status", bound).status == 200
            assert ask(name, "2Gi").status == 200, "a populator or a person has bound it"
    finally:
        plane.kubectl("delete", "storageclass", "power-grows", "power-asked")

"""An agent's token, and everything that somebody who stole it could try on another node's objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.agents import SYSTEM
from tests.e2e.attempts import ALLOWED, VOLUMES, World
from tests.e2e.conftest import ControlPlane
from tests.e2e.refusals import IMMUTABLE, REFUSED

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def world(installed: ControlPlane) -> Iterator[World]:
    """Made once: what is refused changes nothing."""
    installed.kubectl("create", "namespace", "power")
    other = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "power-other"}}
    installed.apply({**other, "provisioner": "csi.example.com"})
    made = World(installed, "power", "power")
    yield made
    made.remove()
    installed.kubectl("delete", "storageclass", "power-other")
    installed.kubectl("delete", "namespace", "power", "--wait=false")
    for volume in installed.get("pv")["items"]:
        name = volume["metadata"]["name"]
        installed.send("PATCH", f"{VOLUMES}/{name}", {"metadata": {"finalizers": None}})
        installed.send("DELETE", f"{VOLUMES}/{name}")


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, world: World) -> None:
    why, attempt = REFUSED[name]
    before = world.versions()
    answer = attempt(world)
    assert answer.status == (422 if why == IMMUTABLE else 403), answer.body
    assert re.search(why, answer.message), answer.message
    assert world.versions() == before


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


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str, world: World) -> None:
    answer = ALLOWED[name](world)
    assert answer.status in (200, 201), answer.body


def test_policies_compile_clean(installed: ControlPlane) -> None:
    def checked() -> list[Any]:
        found = installed.get("validatingadmissionpolicies")["items"]
        return [policy.get("status", {}).get("typeChecking") for policy in found]

    installed.until("types are checked", lambda: None not in checked())
    assert checked() == [{}] * 5

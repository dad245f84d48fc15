"""What a user meets in the first hour, in a box with the real kubectl: each mistake is named at once, by its cause."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tonnage.kubernetes.api import names
from tonnage.provisioning.claims.data_source import POPULATED
from tonnage.tools.cli.main import main
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan

pytestmark = pytest.mark.real
_LIMIT = 120.0
Obj = dict[str, Any]


@dataclass
class User:
    """Somebody with a kubectl and a box of one node."""

    box: Box
    program: str

    async def kubectl(self, *arguments: str, text: str = "") -> str:
        """Its output."""
        pipe = asyncio.subprocess.PIPE
        kubeconfig = f"--kubeconfig={self.box.data.kubeconfig}"
        process = await asyncio.create_subprocess_exec(
            self.program, kubeconfig, *arguments, stdin=pipe, stdout=pipe, stderr=pipe
        )
        out, complaint = await process.communicate(text.encode())
        assert process.returncode == 0, complaint.decode()
        return out.decode()

    async def apply(self, *objects: Obj) -> None:
        """kubectl apply -f -"""
        body = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        await self.kubectl("apply", "-f", "-", text=json.dumps(body))

    async def get(self, kind: str, name: str) -> Obj:
        """An object."""
        found: Obj = json.loads(await self.kubectl("get", kind, name, "-o", "json"))
        return found

    async def events(self, about: str) -> list[tuple[str, str, str]]:
        """(type, reason, message) of an object's Events, in the order in which they were first told."""
        found = json.loads(await self.kubectl("get", "events", "-A", "-o", "json"))["items"]
        found.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [(e["type"], e["reason"], e["message"]) for e in found if e["involvedObject"]["name"] == about]

    async def until(self, kind: str, name: str, holds: Callable[[Obj], bool]) -> Obj:
        """An object once that holds."""
        async with asyncio.timeout(_LIMIT):
            while not holds(found := await self.get(kind, name)):
                await asyncio.sleep(0.1)
        return found

    async def told(self, about: str, reason: str) -> str:
        """The first message with that reason, once it is there."""
        async with asyncio.timeout(_LIMIT):
            while not (found := [text for _, why, text in await self.events(about) if why == reason]):
                await asyncio.sleep(0.1)
        return found[0]


@pytest.fixture
async def user(tmp_path: Path, kubectl_program: str) -> AsyncIterator[User]:
    """A box of one node with 10Gi."""
    data = DataFolder(tmp_path / "d")
    box = Box(data, plan(data, Settings(nodes=1, pools=["memory,size=10Gi"], runtime="none")))
    await box.start()
    try:
        yield User(box, kubectl_program)
    finally:
        await box.stop()


def claim(name: str, size: str = "1Gi", *, storage_class: str = names.SCRATCH_CLASS, **spec: Any) -> Obj:
    """A claim with access mode ReadWriteOnce, unless spec says otherwise."""
    resources = {"requests": {"storage": size}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class, "resources": resources, **spec}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def pod(name: str, *claims: str) -> Obj:
    """A pod that uses the claims."""
    volumes = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
    spec = {"containers": [{"name": "main", "image": "x"}], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def is_bound(found: Obj) -> bool:
    """Whether a claim is."""
    return bool(found["status"]["phase"] == "Bound")


async def test_a_volume_populator_fills_a_claim(user: User) -> None:
    """The steps of lib-volume-populator by hand: the pod starts on the volume of the populator's own claim."""
    source = {"apiGroup": "hello.example.com", "kind": "Hello", "name": "h"}
    await user.apply(claim("data", dataSourceRef=source), claim("other"), pod("app", "data", "other"))
    assert await user.told("data", "Provisioning") == POPULATED
    await user.until("pvc", "other", is_bound)
    target = await user.get("pvc", "data")
    node = target["metadata"]["annotations"][names.SELECTED_NODE]

    prime = claim(f"prime-{target['metadata']['uid']}")
    prime["metadata"]["annotations"] = {names.SELECTED_NODE: node}
    await user.apply(prime)
    made = await user.until("pvc", prime["metadata"]["name"], is_bound)
    ref = {"name": "data", "uid": target["metadata"]["uid"], "resourceVersion": None}
    patch = json.dumps({"spec": {"claimRef": ref}})
    volume = made["spec"]["volumeName"]
    await user.kubectl("patch", "pv", volume, "--type=merge", "-p", patch)
    await user.until("pvc", prime["metadata"]["name"], lambda found: bool(found["status"]["phase"] == "Lost"))
    await user.kubectl("delete", "pvc", prime["metadata"]["name"])
    assert (await user.until("pvc", "data", is_bound))["spec"]["volumeName"] == volume
    await user.until("pod", "app", lambda found: bool(found["status"]["phase"] == "Running"))
    assert (await user.get("pv", volume))["status"]["phase"] == "Bound"
    assert [event for event in await user.events("data") if event[0] == "Warning"] == []
    assert [event for event in await user.events("app") if event[1] == "ProvisioningFailed"] == []


def storage_class(name: str, *, binding: str = names.WAIT_FOR_FIRST_CONSUMER, **parameters: str) -> Obj:
    """A class of ours."""
    head = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    return {**head, "provisioner": names.DRIVER, "volumeBindingMode": binding, "parameters": parameters}


async def test_a_mistake_in_a_class_is_the_first_thing_that_is_said(user: User) -> None:
    """Class, claim and pod come together, before any node has published the class."""
    await user.apply(
        storage_class("wrong", colour="blue"),
        storage_class("now", binding="Immediate", pool="nope"),
        claim("late", storage_class="wrong"),
        claim("early", storage_class="now"),
        pod("app", "late"),
    )
    fault = "unknown parameter 'colour': pool memory takes"
    for about, reason, text in (
        ("late", "ProvisioningFailed", f"no node can make a volume of class wrong: {fault}"),
        ("early", "ProvisioningFailed", "no node can make a volume of class now: there is no pool 'nope'"),
        ("app", "FailedScheduling", f'node(s) could not make volumes of the StorageClass. StorageClass "wrong": {fault}'),
        ("wrong", "InvalidParameters", f"can make no volumes of this class: {fault}"),
    ):  # fmt: skip
        assert text in await user.told(about, reason)
        warnings = [event for event in await user.events(about) if event[0] == "Warning"]
        assert len(warnings) == 1, warnings


async def test_a_volume_made_by_hand_needs_no_class_and_binds_at_once(user: User) -> None:
    """Claim before volume, and by name; the second claim takes over a volume that an agent made."""
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "manual"}
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}}
    by_hand = {**volume, "spec": {**spec, "hostPath": {"path": "/tmp/v"}}}
    await user.apply(claim("c", storage_class="manual"), by_hand)
    await user.until("pvc", "c", is_bound)
    assert await user.events("c") == []

    await user.apply(claim("first"), pod("app", "first"))
    name = (await user.until("pvc", "first", is_bound))["spec"]["volumeName"]
    await user.kubectl("patch", "pv", name, "-p", '{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}')
    await user.kubectl("delete", "pod/app", "pvc/first")
    await user.until("pv", name, lambda found: bool(found["status"]["phase"] == "Released"))
    await user.kubectl("patch", "pv", name, "--type=json", "-p", '[{"op": "remove", "path": "/spec/claimRef"}]')
    await user.apply(claim("second", volumeName=name))
    await user.until("pvc", "second", is_bound)
    assert [event for event in await user.events("second") if event[0] == "Warning"] == []


async def test_a_claim_grows_and_is_told_what_is_missing(user: User) -> None:
    await user.apply(claim("data", storage_class=names.SCRATCH_CLASS), pod("app", "data"))
    await user.until("pvc", "data", is_bound)
    assert "patched" in await user.kubectl("patch", "pvc", "data", "-p", _asks("2Gi"))
    await user.until("pvc", "data", lambda found: bool(found["status"]["capacity"]["storage"] == "2Gi"))
    assert await user.told("data", "VolumeResizeSuccessful") == "Resize volume succeeded: 2Gi"

    await user.kubectl("patch", "pvc", "data", "-p", _asks("1Ei"))
    text = await user.told("data", "VolumeResizeFailed")
    assert text.startswith("claim default/data: not expanded from 2Gi to 1Ei: pool memory on node node-1 has "), text
    await user.kubectl("patch", "pvc", "data", "-p", _asks("3Gi"))
    await user.until("pvc", "data", lambda found: bool(found["status"]["capacity"]["storage"] == "3Gi"))
    assert [reason for _, reason, _ in await user.events("data")].count("VolumeResizeFailed") == 1


def _asks(size: str) -> str:
    return json.dumps({"spec": {"resources": {"requests": {"storage": size}}}})


_SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"}
_HELLO = {"apiGroup": "hello.example.com", "kind": "Hello", "name": "h"}


@pytest.fixture
def why(user: User, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Awaitable[str]]:
    """What `tonnage why POD` prints."""

    async def ask(pod_name: str) -> str:
        capsys.readouterr()
        assert await asyncio.to_thread(main, ["why", pod_name, "--data", str(user.box.data.path)]) == 0
        return capsys.readouterr().out

    return ask


async def test_why_names_the_claim_or_class_that_is_at_fault(user: User, why: Callable[[str], Awaitable[str]]) -> None:
    """Before anything has been said of it, and after: no node is ever said to fit."""
    foreign = {**storage_class("theirs"), "provisioner": "csi.example.com", "parameters": {}}
    await user.apply(foreign, storage_class("wrong", colour="blue"), claim("source", "2Gi"), pod("first", "source"))
    await user.until("pvc", "source", is_bound)
    mistakes = {
        "rwx": (claim("rwx", accessModes=["ReadWriteMany"]), "access mode ReadWriteMany is not possible"),
        "small": (claim("small", dataSource={"kind": "PersistentVolumeClaim", "name": "source"}), "requested size 1Gi is smaller"),
        "foreign": (claim("foreign", storage_class="theirs"), 'no node has a CSI driver "csi.example.com"'),
        "snapshot": (claim("snapshot", dataSource=_SNAPSHOT), "it is to restore a snapshot, and snapshot monday does not exist"),
        "missing": (claim("missing", storage_class="nosuch"), "there is no StorageClass nosuch"),
        "parameter": (claim("parameter", storage_class="wrong"), "unknown parameter 'colour'"),
        "hello": (claim("hello", dataSourceRef=_HELLO), "a volume populator for Hello.hello.example.com provides its volume"),
    }  # fmt: skip
    await user.apply(*(body for body, _ in mistakes.values()), *(pod(name, name) for name in mistakes))
    for told in (False, True):
        for name, (_, text) in mistakes.items():
            if name == "parameter" and not told:
                continue  # its node may not have said so yet
            out = await why(name)
            assert f"on every node: claim {name}: " in out, out
            assert text in out, out
            assert not re.search(r"^ *node-1 +yes", out, re.M), out
            todo = out.splitlines()[-1]
            assert todo.startswith("To do: "), out
            assert "wait a moment" not in todo, out
        await user.told("rwx", "ProvisioningFailed")
        await user.told("parameter", "ProvisioningFailed")
    assert re.search(r"Warning +ProvisioningFailed +claim rwx +.*ReadWriteMany", await why("rwx"))
    assert re.search(r"Warning +InvalidParameters +class wrong +.*colour", await why("parameter"))


@dataclass
class Diagnosis:
    """What `tonnage doctor` found, and its exit code."""

    code: int
    findings: list[Obj]

    def of(self, check: str) -> list[tuple[str, str]]:
        """(level, about) of a check."""
        return [(found["level"], found["about"]) for found in self.findings if found["check"] == check]


@pytest.fixture
def doctor(user: User, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Awaitable[Diagnosis]]:
    """doctor(option): option names the box, --data or --kubeconfig."""

    async def ask(option: str) -> Diagnosis:
        place = user.box.data.path if option == "--data" else user.box.data.kubeconfig
        capsys.readouterr()
        code = await asyncio.to_thread(main, ["doctor", option, str(place), "-o", "json"])
        return Diagnosis(code, json.loads(capsys.readouterr().out)["findings"])

    return ask


@pytest.mark.parametrize("option", ["--data", "--kubeconfig"])
async def test_doctor_looks_at_a_box(user: User, doctor: Callable[[str], Awaitable[Diagnosis]], option: str) -> None:
    growing = {**storage_class("growing"), "allowVolumeExpansion": True}
    await user.apply(growing, claim("data", storage_class="growing"), pod("app", "data"))
    await user.until("pvc", "data", is_bound)
    found = await doctor(option)
    assert found.code == 0, found
    assert {one["level"] for one in found.findings} == {"ok"}, found
    assert found.of("box") == [("ok", str(user.box.data.path))]
    assert found.of("machine")[0] == ("ok", "kernel and programs")
    assert found.of("nodes") == [("ok", "node-1")]
    assert found.of("pools") == [("ok", "memory of node-1")]

    await user.kubectl("patch", "pvc", "data", "-p", _asks("1Ei"))
    await user.told("data", "VolumeResizeFailed")
    assert (await doctor(option)).of("claims") == [("warn", "default/data")]
    await user.apply(storage_class("wrong", colour="blue"))
    await user.told("wrong", "InvalidParameters")
    await user.apply(claim("c", storage_class="wrong"))
    await user.told("c", "ProvisioningFailed")
    found = await doctor(option)
    assert found.code == 1
    assert ("FAIL", "wrong") in found.of("classes")

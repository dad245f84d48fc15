"""Projected volumes with podCertificate and clusterTrustBundle on a node, signed by the box's own controllers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.csi.inline.cert.authority import make_authority, read_certificates
from tonnage.csi.inline.cert.keys import public_bytes, read_key
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Event
from tonnage.kubernetes.api.kinds import NAMESPACES, POD_CERTIFICATE_REQUESTS, PODS, SERVICE_ACCOUNTS, TRUST_BUNDLES
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage_box.control_plane import certificate_loops
from tonnage_box.testing import apiserver

Running = Callable[..., AbstractAsyncContextManager[None]]
Bundle = dict[str, Any]
OF_BOX: Bundle = {"signerName": "tonnage.dev/box", "labelSelector": {}, "path": "ca.crt"}


class Machine(Protocol):
    """What is used of the node."""

    client: Client
    root: Path
    kubelet: Any

    async def pod(self, name: str, **spec: Any) -> Pod: ...
    async def phase(self, name: str, phase: str) -> Pod: ...
    async def event(self, reason: str, *, about: str = "") -> Event: ...
    async def gone(self, name: str) -> None: ...
    async def restart(self) -> None: ...


def volume(*bundles: Bundle, **certificate: Any) -> dict[str, Any]:
    sources: list[dict[str, Any]] = [{"clusterTrustBundle": one} for one in bundles]
    if certificate:
        wanted = {"signerName": "tonnage.dev/box", "keyType": "ECDSAP256", **certificate}
        sources.append({"podCertificate": wanted})
    return {"name": "tls", "projected": {"sources": sources}}


def shown(machine: Machine, pod: Pod, name: str) -> bytes:
    folder = machine.root / f"pods/{pod.metadata.uid}/volumes/kubernetes.io~projected/tls"
    return (folder / name).read_bytes()


async def publish(client: Client, name: str, *authorities: str, **meta: Any) -> bytes:
    """Create a bundle of new authorities, or replace its roots; its text."""
    roots = b"".join(make_authority(one, RealClock().time()).roots for one in authorities)
    spec = {"trustBundle": roots.decode()}
    if ":" in name:
        spec["signerName"] = "example.com/s"
    if name in {one.metadata.name for one in (await client.list(TRUST_BUNDLES)).items}:
        await client.patch(TRUST_BUNDLES, name, {"spec": spec})
    else:
        await client.create(TRUST_BUNDLES, {"metadata": {"name": name, **meta}, "spec": spec})
    return roots


@asynccontextmanager
async def signing(client: Client, running: Running) -> AsyncIterator[None]:
    """Run the box's controllers of certificates."""
    await client.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, "default")
    async with apiserver.informers(client) as informers:
        loops = certificate_loops(client, informers, EventRecorder(client, "x"), ["cert"], clock=RealClock())
        async with running(*loops.values()):
            yield


async def test_a_pod_gets_its_certificate_and_the_roots_of_the_box(
    machine: Machine, running: Running, eventually: Callable[[Callable[[], bool]], Awaitable[None]]
) -> None:
    paths = {"credentialBundlePath": "bundle.pem", "keyPath": "tls.key", "certificateChainPath": "tls.crt"}
    async with signing(machine.client, running):
        await machine.pod("p", volumes=[volume(OF_BOX, **paths)], securityContext={"runAsUser": os.getuid()})
        pod = await machine.phase("p", "Running")
    roots, chain, key = (shown(machine, pod, name) for name in ("ca.crt", "tls.crt", "tls.key"))
    leaf = read_certificates(chain)[0]
    leaf.verify_directly_issued_by(read_certificates(roots)[0])
    assert public_bytes(leaf.public_key()) == public_bytes(read_key(key).public_key())
    assert shown(machine, pod, "bundle.pem") == key + chain
    folder = machine.root / f"pods/{pod.metadata.uid}/volumes/kubernetes.io~projected/tls"
    assert {os.stat(folder / name).st_mode & 0o777 for name in ("bundle.pem", "tls.key", "ca.crt")} == {0o600}
    (request,) = (await machine.client.list(POD_CERTIFICATE_REQUESTS, "default")).items
    assert key.decode() not in str(request)
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: not os.path.exists(machine.root / f"pods/{pod.metadata.uid}"))


async def test_files_are_replaced_at_renewal_and_after_a_restart(
    machine: Machine, running: Running, eventually: Callable[[Callable[[], bool]], Awaitable[None]]
) -> None:
    async with signing(machine.client, running):
        await machine.pod("p", volumes=[volume(credentialBundlePath="bundle.pem")])
        pod = await machine.phase("p", "Running")
        first = shown(machine, pod, "bundle.pem")
        certificates = machine.kubelet.volumes.files.certificates
        certificates._now = lambda: RealClock().time() + 86400
        machine.kubelet.projected.hasten(lambda pod, _: True)
        await eventually(lambda: shown(machine, pod, "bundle.pem") != first)
        second = shown(machine, pod, "bundle.pem")
        await machine.restart()
        await eventually(lambda: shown(machine, pod, "bundle.pem") != second)
    for text in (first, second, shown(machine, pod, "bundle.pem")):
        leaf, key = read_certificates(text[text.index(b"-----BEGIN CERT") :])[0], read_key(text)
        assert public_bytes(leaf.public_key()) == public_bytes(key.public_key())
    assert (await machine.phase("p", "Running")).metadata.uid == pod.metadata.uid


async def test_without_the_cert_driver_the_box_signs_nothing(kube: Client) -> None:
    async with apiserver.informers(kube) as informers:
        assert certificate_loops(kube, informers, EventRecorder(kube, "x"), ["image"], clock=RealClock()) == {}


async def test_a_denied_certificate_is_an_event_of_its_pod(machine: Machine, running: Running) -> None:
    notes = {"cert.tonnage.dev/dns-names": "a.kube-system.svc"}
    async with signing(machine.client, running):
        await machine.pod("p", volumes=[volume(keyPath="k", userAnnotations=notes)])
        event = await machine.event("Denied", about="p")
        assert "was denied, reason='NotAllowed'" in (event.message or "")
        mount = await machine.event("FailedMount", about="p")
    assert 'MountVolume.SetUp failed for volume "tls" : PodCertificateRequest default/req-' in (mount.message or "")


@pytest.mark.slow
async def test_a_pod_waits_for_a_bundle_and_follows_it(
    machine: Machine, eventually: Callable[[Callable[[], bool]], Awaitable[None]]
) -> None:
    await machine.pod("p", volumes=[volume({"name": "roots", "path": "ca.crt"})])
    event = await machine.event("FailedMount", about="p")
    assert 'volume "tls" : clustertrustbundle "roots" not found' in (event.message or "")
    first = await publish(machine.client, "roots", "one")
    pod = await machine.phase("p", "Running")
    assert shown(machine, pod, "ca.crt") == first
    second = await publish(machine.client, "roots", "two")
    await eventually(lambda: shown(machine, pod, "ca.crt") == second)


async def test_bundles_of_a_signer_are_merged_by_their_labels(machine: Machine) -> None:
    roots = {}
    for name, authorities, labels in (
        ("example.com:s:a", ("a", "b"), {"live": "1"}),
        ("example.com:s:b", ("c",), {"live": "1"}),
        ("example.com:s:old", ("d",), {"live": "0"}),
        ("other", ("e",), {"live": "1"}),
    ):
        roots[name] = read_certificates(await publish(machine.client, name, *authorities, labels=labels))
    twice = await machine.client.get(TRUST_BUNDLES, "example.com:s:b")
    body = {"signerName": "example.com/s", "trustBundle": twice.spec.trust_bundle}
    await machine.client.create(TRUST_BUNDLES, {"metadata": {"name": "example.com:s:c"}, "spec": body})
    live = {"signerName": "example.com/s", "labelSelector": {"matchLabels": {"live": "1"}}, "path": "live"}
    every = {"signerName": "example.com/s", "labelSelector": {}, "path": "every"}
    none = {"signerName": "example.com/s", "path": "none", "optional": True}
    await machine.pod("p", volumes=[volume(live, every, none, {"name": "gone", "path": "gone", "optional": True})])
    pod = await machine.phase("p", "Running")
    found = read_certificates(shown(machine, pod, "live"))
    assert len(found) == 3
    assert set(found) == {*roots["example.com:s:a"], *roots["example.com:s:b"]}
    assert len(read_certificates(shown(machine, pod, "every"))) == 4
    assert (shown(machine, pod, "none"), shown(machine, pod, "gone")) == (b"", b"")

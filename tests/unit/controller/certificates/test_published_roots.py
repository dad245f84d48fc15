"""Roots of our issuers: published, repaired, and followed when the mounted Secret changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.unit.controller.certificates.pod_certificates import VersionedTransport
from tests.unit.controller.contexts import context

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import ApiError, ApiNotFoundError, UnavailableError
from tonnage.controller.certificates.authority_folder import AuthorityFolder
from tonnage.controller.certificates.published_roots import EVERY, PublishedRoots, bundle_name
from tonnage.controller.config import SigningConfig
from tonnage.csi.inline.cert.authority import make_authority, secret_data
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, NAMESPACES, TRUST_BUNDLES
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing import apiserver

Running = Callable[..., AbstractAsyncContextManager[None]]
Settle = Callable[[], Awaitable[None]]
SYSTEM = names.SYSTEM_NAMESPACE


def make(folder: Path) -> str:
    """A new authority in a folder; its roots."""
    folder.mkdir(exist_ok=True)
    authority = make_authority(folder.name, RealClock().time())
    for name, data in secret_data(authority).items():
        (folder / name).write_bytes(data)
    return authority.roots.decode()


@pytest.fixture
async def loop(kube: Client, informers: Informers, tmp_path: Path) -> PublishedRoots:
    await kube.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
    issuers = {name: SigningConfig(AuthorityFolder(tmp_path / name), NamePolicy()) for name in ("internal", "other")}
    return PublishedRoots(context(kube, informers, certificate_issuers=issuers, namespace=SYSTEM))


async def data(kube: Client) -> dict[str, str]:
    try:
        return (await kube.get(CONFIG_MAPS, "tonnage-issuers", SYSTEM)).data
    except ApiNotFoundError:
        return {}


async def bundle(kube: Client, issuer: str) -> str:
    try:
        return (await kube.get(TRUST_BUNDLES, bundle_name(issuer))).spec.trust_bundle
    except ApiNotFoundError:
        return ""


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await holds():
            await asyncio.sleep(0.01)


async def test_published_repaired_and_followed(
    kube: Client, loop: PublishedRoots, tmp_path: Path, running: Running, settle: Settle
) -> None:
    roots = {name: make(tmp_path / name) for name in ("internal", "other")}

    async def is_published() -> bool:
        bundles = {name: await bundle(kube, name) for name in roots}
        return await data(kube) == roots and bundles == roots

    async with running(loop):
        await until(is_published)
        spec = (await kube.get(TRUST_BUNDLES, "tonnage.dev:internal:v1")).spec
        assert spec.signer_name == "tonnage.dev/internal"
        await kube.delete(TRUST_BUNDLES, bundle_name("internal"))
        await kube.patch(CONFIG_MAPS, "tonnage-issuers", {"data": {"other": "x"}}, SYSTEM)
        await until(is_published)
    roots["other"] = make(tmp_path / "other")
    await settle()
    assert await loop.reconcile("other") == EVERY
    assert await is_published()


async def test_the_newest_version_that_the_server_has_is_used(
    api_server: ApiServer, kube: Client, tmp_path: Path, running: Running
) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
    roots = make(tmp_path / "internal")
    transport = VersionedTransport(api_server.transport(), ("v1", "v1beta1"))
    issuers = {"internal": SigningConfig(AuthorityFolder(tmp_path / "internal"), NamePolicy())}

    async def is_published() -> bool:
        return await bundle(kube, "internal") == roots

    async with apiserver.informers(Client(transport)) as informers:
        loop = PublishedRoots(context(Client(transport), informers, certificate_issuers=issuers, namespace=SYSTEM))
        async with running(loop):
            await until(is_published)
            body = {"spec": {"trustBundle": make_authority("x", RealClock().time()).roots.decode()}}
            await kube.patch(TRUST_BUNDLES, bundle_name("internal"), body)
            await until(is_published)
    assert transport.written == {"v1"}


async def test_a_missing_authority_does_not_hide_the_others(
    kube: Client, loop: PublishedRoots, tmp_path: Path, settle: Settle
) -> None:
    roots = make(tmp_path / "internal")
    await settle()
    with pytest.raises(UnavailableError, match="mount a Secret"):
        await loop.reconcile("other")
    await loop.reconcile("internal")
    assert await data(kube) == {"internal": roots}


async def test_a_server_without_trust_bundles_gets_the_config_map(
    kube: Client, informers: Informers, loop: PublishedRoots, tmp_path: Path, settle: Settle
) -> None:
    roots = make(tmp_path / "internal")
    await settle()
    informers.of(TRUST_BUNDLES, optional=True).is_served = False
    await loop.reconcile("internal")
    assert await data(kube) == {"internal": roots}
    assert await bundle(kube, "internal") == ""


async def test_two_first_replicas_end_with_one_map(
    kube: Client, loop: PublishedRoots, tmp_path: Path, settle: Settle
) -> None:
    make(tmp_path / "internal")
    await kube.create(CONFIG_MAPS, {"metadata": {"name": "tonnage-issuers"}}, SYSTEM)
    current, loop._maps = loop._maps, Cache()
    with pytest.raises(ApiError, match="already exists"):
        await loop.reconcile("internal")
    loop._maps = current
    await settle()
    await loop.reconcile("internal")
    assert list(await data(kube)) == ["internal"]

"""One leads, the others wait; a leader that stops renewing is followed by another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tonnage.base.errors import UnavailableError
from tonnage.kubernetes.api.kinds import LEASES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.lease import LeaderElection
from tonnage_box.apiserver.server.server import ApiServer


def election(server: ApiServer, who: str) -> LeaderElection:
    return LeaderElection(Client(server.transport()), "default", "lock", who, duration=1.0, renew_every=0.05)


async def test_only_one_leads_and_giving_up_lets_the_next_in(server: ApiServer) -> None:
    leading: list[str] = []

    def lead(who: str):  # type: ignore[no-untyped-def]
        async def work() -> None:
            leading.append(who)
            try:
                await asyncio.sleep(3600)
            finally:
                leading.remove(who)

        return work

    first = asyncio.ensure_future(election(server, "a").run(lead("a")))
    async with asyncio.timeout(60):
        while leading != ["a"]:
            await asyncio.sleep(0.01)
        second = asyncio.ensure_future(election(server, "b").run(lead("b")))
        await asyncio.sleep(0.3)
        assert leading == ["a"]
        first.cancel()
        while leading != ["b"]:
            await asyncio.sleep(0.01)
    lease = await Client(server.transport()).get(LEASES, "lock", "default")
    assert lease.spec.holder_identity == "b"
    assert lease.spec.lease_transitions == 1
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


async def test_a_silent_leader_is_followed_after_the_duration(server: ApiServer) -> None:
    client = Client(server.transport())
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 1, "leaseTransitions": 4}
    await client.create(LEASES, {"metadata": {"name": "lock"}, "spec": spec}, "default")
    led = asyncio.Event()

    async def lead() -> None:
        led.set()
        await asyncio.sleep(3600)

    waiting = asyncio.ensure_future(election(server, "b").run(lead))
    await asyncio.sleep(0.3)
    assert not led.is_set()
    async with asyncio.timeout(60):
        await led.wait()
    assert (await client.get(LEASES, "lock", "default")).spec.lease_transitions == 5
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_lease_that_is_not_as_it_was_written_last_shows_another_history(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal of which the answer was lost may be there, or not."""
    client = Client(server.transport())
    held = LeaderElection(client, "default", "lock", "a", duration=1.0, renew_every=0.05)
    assert not await held.continues(), "it has not been there yet"
    assert await held._try()
    assert await held.continues()
    first = await client.get(LEASES, "lock", "default")
    assert await held._try()
    assert await held.continues()
    patch = client.patch

    async def lost(*args: Any, **options: Any) -> Any:
        await patch(*args, **options)
        raise UnavailableError("the answer is lost")

    monkeypatch.setattr(client, "patch", lost)
    assert not await held._try()
    assert await held.continues(), "written"

    async def rejected(*_args: Any, **_options: Any) -> Any:
        raise UnavailableError("connection refused")

    monkeypatch.setattr(client, "patch", rejected)
    assert not await held._try()
    assert await held.continues(), "not written"
    await patch(LEASES, "lock", {"spec": {"renewTime": first.spec.renew_time}}, "default")
    assert not await held.continues()
    await client.delete(LEASES, "lock", "default")
    assert not await held.continues()

"""All checks over an API server in this process."""

from __future__ import annotations

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.client import Client
from tonnage.tools.ops.doctor.finding import Level
from tonnage.tools.ops.doctor.run import examine


async def test_nothing_is_there(kube: Client) -> None:
    found = await examine(kube, names.SYSTEM_NAMESPACE, clock=RealClock())

    assert {f.check for f in found if f.level is Level.FAIL} == {"agents", "csidriver", "registration"}
    assert all(f.todo for f in found if f.level is not Level.OK)

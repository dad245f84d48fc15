"""A node's inline drivers and pools as a process of its own, without a kubelet and an API server.

`python -m benchmarks.inline.agent FOLDER STORE SOONEST`, the last as CertificateSource takes it. It is composed of the
agent's parts. An authority in the process signs certificates, so their cost is that of the agent and of the
signer together.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tonnage.base.aio.clock import RealClock
from tonnage.csi.driver.inline_endpoint import InlineEndpoint
from tonnage.csi.inline.base import InlinePod
from tonnage.csi.inline.cert.attributes import OURS
from tonnage.csi.inline.cert.authority import CertificateAuthority, make_authority
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.csi.inline.cert.source import CertificateSource
from tonnage.csi.inline.driver import InlineDriver
from tonnage.csi.inline.memory import MemoryStore
from tonnage.node.inline.config import parse_inlines
from tonnage.node.inline.drivers import InlineDrivers
from tonnage.node.inline.sources import InlineContext
from tonnage.storage.pools import config as pool_config
from tonnage_box.certificates import LocalIssuer
from tonnage_box.node_driver import NodeDriver

CERT, IMAGE = "cert.tonnage.dev", "image.tonnage.dev"
"""Names of the drivers; `<folder>/<name>.sock` are their sockets."""


def _no_events(_pod: InlinePod, _type: str, _reason: str, _message: str) -> None:
    """There is no API server."""


def _certificates(folder: Path, soonest: float) -> InlineEndpoint:
    clock = RealClock()
    authority = make_authority("benchmark", clock.time())

    async def load() -> CertificateAuthority:
        return authority

    issuer = LocalIssuer(load, NamePolicy(), clock.time)
    source = CertificateSource(OURS, lambda reference: issuer, clock.time, soonest=soonest)
    driver = InlineDriver(CERT, source, MemoryStore(folder / CERT / "mem"))
    return InlineEndpoint(driver, folder / f"{CERT}.sock", node_id="n1", roots=(folder,), registry=None)


async def serve(folder: Path, store: Path, soonest: float) -> None:
    """Serve until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    clock = RealClock()
    pool = pool_config.make(pool_config.parse(f"image:{folder}/pool,size=20Gi,sparse=yes,overcommit=yes"), clock=clock)
    node = NodeDriver([pool], node_name="n1", kubelet=folder, sockets=folder, clock=clock)
    context = InlineContext("n1", None, _no_events, clock, (store,), node.layers)
    images = InlineDrivers(parse_inlines(["image"]), context, kubelet=folder, registry=None, sockets=folder)
    certificates = _certificates(folder, soonest)
    (folder / "plugins_registry").mkdir(exist_ok=True)
    await node.start()
    await images.start()
    await certificates.start()
    await stopped.wait()
    await certificates.stop()
    await images.stop()
    await node.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))

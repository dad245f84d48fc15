"""The service of a node: the installed program reaches the driver, and what a vanished pod had is collected."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

from tests.unit.node.flexvolume.flex_node import FlexNode

from tonnage.base.aio.clock import RealClock
from tonnage.base.aio.tasks import Background
from tonnage.node.flexvolume.install import path_of
from tonnage.node.flexvolume.service import FlexPlaces, FlexService


async def test_the_installed_program_reaches_the_driver(node: FlexNode, tmp_path: Path) -> None:
    places = FlexPlaces(tmp_path / "exec", node.kubelet, node.kubelet / "state", tmp_path / "flex")
    await node.mount("gone", "data", size="1Gi")
    shutil.rmtree(node.kubelet / "pods" / "gone")
    service = FlexService(node.driver, node.client, "node-1", places, clock=RealClock(), changed=lambda: None)
    tasks = Background("service")
    tasks.start(service.run())
    program = path_of(places.plugins, "tonnage.dev/local")
    async with asyncio.timeout(60):
        while await node.volumes() or not program.is_file() or not places.spool.is_dir():
            await asyncio.sleep(0.01)
    target = node.target("u1", "data")
    target.mkdir(parents=True)
    options = {"readwrite": "rw", "pvOrVolumeName": "data", "pod.name": "p", "pod.namespace": "n", "pod.uid": "u1"}
    text = json.dumps({"size": "1Gi", **{f"kubernetes.io/{key}": value for key, value in options.items()}})
    for arguments, count in ((("mount", str(target), text), 1), (("unmount", str(target)), 0)):
        process = await asyncio.create_subprocess_exec(program, *arguments, stdout=asyncio.subprocess.PIPE)
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        assert json.loads(output) == {"status": "Success"}
        assert len(await node.volumes()) == count
    await tasks.close()

"""The folder of calls: the real program on one side, a bad caller on the other."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ExhaustedError, HostError
from tonnage.node.flexvolume.install import program
from tonnage.node.flexvolume.protocol import FlexCall
from tonnage.node.flexvolume.spool import FlexSpool

OPTIONS = json.dumps({"kubernetes.io/secret/key": "aHVudGVyMg=="})


class SpoolRig:
    """A spool whose calls end as `failure` says, or wait for `go`."""

    def __init__(self, folder: Path) -> None:
        self.spool, self.kubelet, self.file = folder / "run" / "flex", folder / "kubelet", folder / "local"
        self.file.write_text(program(self.spool, seconds=600))
        self.calls: list[FlexCall] = []
        self.failure: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()
        self.tasks = Background("spool")

    def start(self) -> None:
        self.task = self.tasks.start(FlexSpool(self.spool, self.kubelet, self.serve).run())

    async def serve(self, call: FlexCall) -> None:
        self.calls.append(call)
        await self.go.wait()
        if self.failure is not None:
            raise self.failure

    def at(self, name: str) -> str:
        return f"{self.kubelet}/pods/u/volumes/tonnage.dev~local/{name}"

    async def begin(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec("/bin/sh", str(self.file), *arguments, stdout=pipe, process_group=0)

    async def call(self, *arguments: str) -> dict[str, str]:
        output, _ = await asyncio.wait_for((await self.begin(*arguments)).communicate(), 60)
        return dict(json.loads(output))

    async def there(self) -> None:
        async with asyncio.timeout(60):
            while not self.spool.is_dir():
                await asyncio.sleep(0.01)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[SpoolRig]:
    made = SpoolRig(tmp_path)
    made.start()
    await made.there()
    yield made
    await made.tasks.close()


async def test_calls_are_served_at_the_same_time_and_leave_nothing(rig: SpoolRig) -> None:
    answers = await asyncio.gather(*(rig.call("mount", rig.at(f"v{n}"), OPTIONS) for n in range(8)))
    assert answers == [{"status": "Success"}] * 8
    assert {call.target.volume for call in rig.calls} == {f"v{n}" for n in range(8)}
    assert list(rig.spool.iterdir()) == []
    assert stat.S_IMODE(rig.spool.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ExhaustedError('full: "x"\n'), 'full: "x"\n'),
        (RuntimeError("aHVudGVyMg=="), "internal error of tonnage node agent (RuntimeError); see its log"),
    ],
)
async def test_failures_are_answers(rig: SpoolRig, failure: Exception, message: str) -> None:
    rig.failure = failure
    assert await rig.call("mount", rig.at("v"), OPTIONS) == {"status": "Failure", "message": message}


async def test_malformed_calls_are_answered_and_show_no_secret(rig: SpoolRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for arguments in (
        ("mount",),
        ("mount", "/etc", OPTIONS),
        ("unmount", rig.at("v"), OPTIONS),
        ("mount", "", OPTIONS),
    ):
        assert (await rig.call(*arguments))["status"] == "Failure"
    assert await rig.call("unmount", rig.at("v")) == {"status": "Success"}
    assert len(rig.calls) == 1
    assert "aHVud" not in caplog.text


async def test_a_call_waits_for_an_agent_that_starts_again(rig: SpoolRig) -> None:
    await rig.tasks.close()
    process = await rig.begin("mount", rig.at("v"), OPTIONS)
    async with asyncio.timeout(60):
        while not list(rig.spool.glob("q.*")):
            await asyncio.sleep(0.01)
    rig.start()
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert json.loads(output) == {"status": "Success"}


@pytest.mark.slow
async def test_a_killed_program_leaves_a_call_that_is_removed_undone(rig: SpoolRig) -> None:
    await rig.tasks.close()
    process = await rig.begin("mount", rig.at("v"), OPTIONS)
    async with asyncio.timeout(60):
        while not (left := list(rig.spool.glob("q.*"))):
            await asyncio.sleep(0.01)
    process.kill()
    await process.wait()
    async with asyncio.timeout(60):  # its timer ends too
        while _is_group(process.pid):
            await asyncio.sleep(0.01)
    assert left[0].is_dir()
    rig.start()
    async with asyncio.timeout(60):
        while list(rig.spool.iterdir()):
            await asyncio.sleep(0.01)
    assert rig.calls == []


def _is_group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_strange_entries_do_no_harm(rig: SpoolRig) -> None:
    (rig.spool / "q.file").write_text("")
    (rig.spool / "q.link").symlink_to("/etc")
    regular = rig.spool / ".new"
    regular.mkdir()
    (regular / "answer").write_text("kept")
    (regular / "request").write_text("")
    regular.rename(rig.spool / "q.regular")
    assert await rig.call("unmount", rig.at("v")) == {"status": "Success"}
    assert (rig.spool / "q.regular" / "answer").read_text() == "kept"
    assert os.path.isdir("/etc")


async def test_a_folder_that_is_removed_is_reported(rig: SpoolRig) -> None:
    rig.spool.rmdir()
    with pytest.raises(HostError, match="was removed"):
        await asyncio.wait_for(asyncio.shield(rig.task), 60)

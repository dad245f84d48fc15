"""The inline driver on real mounts: what a pod sees, what is left, what no failure changes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from tests.unit.csi.inline.world import POD, World, until

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import (
    AlreadyExistsError,
    ExhaustedError,
    HostError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from tonnage.base.observe import metrics
from tonnage.csi.inline.base import Files, Filled, FillRequest, InlinePod, SourceNeeds, Tree, WritableLayer
from tonnage.csi.inline.driver import pod_of
from tonnage.csi.inline.memory import MemoryStore, recorded
from tonnage.host import mount
from tonnage.host.atomic_writer import Content


class Layers:
    """Writable layers that are tmpfs."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def accepts(self, _key: str) -> bool:
        return False

    async def make(self, _name: str, _layer: WritableLayer, staging: Path, _pod: InlinePod) -> None:
        if not mount.is_mount(staging):
            mount.mount("tmpfs", staging, "tmpfs", ["size=1m"])

    async def remove(self, name: str, staging: Path) -> None:
        mount.umount(staging)
        self.removed.append(name)


def files(text: bytes, again: float | None = None) -> Files:
    return Files({"a": Content(text, 0o400)}, again)


async def test_a_volume_is_shown_read_only_with_the_pods_group_and_goes_without_its_source(world: World) -> None:
    world.source.result = files(b"one")
    await world.driver.start()
    pod = InlinePod("default", "web", "uid-1", fs_group=2000)
    await world.driver.publish(world.request(pod=pod))
    shown = world.target() / "a"
    assert shown.read_bytes() == b"one"
    assert shown.stat().st_gid == 2000
    assert shown.stat().st_mode & 0o777 == 0o440
    with pytest.raises(OSError, match="Read-only"):
        (world.target() / "b").write_text("x")
    world.source.result = UnavailableError("gone")
    await world.driver.unpublish("csi-1", str(world.target()))
    assert world.left() == []
    assert not world.target().exists()
    await world.driver.unpublish("csi-1", str(world.target()))
    await world.driver.stop()


async def test_a_repeated_publish_makes_no_second_mount_and_returns_no_failure(world: World) -> None:
    world.source.needs = SourceNeeds(republish=True)
    await world.driver.start()
    await world.driver.publish(world.request())
    world.source.result = InvalidError("the issuer is gone")
    await world.driver.publish(world.request())
    await until(lambda: len(world.source.asked) > 1)
    await until(lambda: bool(world.events))
    assert (world.target() / "a").read_bytes() == b"one"
    assert sum(one.target == str(world.target()) for one in mount.mounts()) == 1
    assert world.events == [("InlineStale", "volume of driver d.test keeps its old content: the issuer is gone")]
    usage = await world.driver.usage("csi-1", str(world.target()))
    assert usage.problem == "the issuer is gone"
    with pytest.raises(AlreadyExistsError, match="another path"):
        await world.driver.publish(world.request(name="other"))
    await world.driver.stop()


async def test_a_volume_whose_mount_is_gone_is_shown_again_without_its_source(world: World) -> None:
    await world.driver.start()
    await world.driver.publish(world.request())
    world.source.result = InvalidError("the issuer is gone")
    mount.umount(world.target())
    await world.driver.publish(world.request())
    assert (world.target() / "a").read_bytes() == b"one"
    mount.umount(world.target())
    mount.mount("tmpfs", world.target(), "tmpfs", [])  # of somebody else
    with pytest.raises(UnavailableError, match=r"cannot be shown again: .*something else is mounted there"):
        await world.driver.publish(world.request())
    assert "csi-1" in world.left()
    await world.driver.stop()


async def test_what_a_pod_has_written_survives_every_failure_until_it_is_unpublished(world: World) -> None:
    """The writable layer is neither removed by a final error of a repeated call, nor by a restart without mounts."""
    pools = Layers()
    world.options["pools"] = pools
    world.driver = world.made()
    (world.folder / "layer-1").mkdir()
    world.source.result = Tree((world.folder / "layer-1",), writable=WritableLayer(1 << 20))
    await world.driver.start()
    await world.driver.publish(world.request())
    (world.target() / "b").write_text("mine")
    world.source.result = InvalidError("no such image")
    mount.umount(world.target())
    mount.umount(world.folder / "trees" / "csi-1" / "merged")
    await world.restart()
    await world.driver.publish(world.request())
    assert (world.target() / "b").read_text() == "mine"
    assert pools.removed == []
    await world.driver.unpublish("csi-1", str(world.target()))
    assert pools.removed == ["csi-1"]
    await world.driver.stop()


async def test_the_same_content_again_is_no_event(world: World) -> None:
    world.source.needs = SourceNeeds(republish=True)
    await world.driver.start()
    await world.driver.publish(world.request())
    for number in range(2, 4):
        await world.driver.publish(world.request())
        await until(lambda number=number: len(world.source.asked) == number)  # type: ignore[misc]
    assert world.events == []
    await world.driver.stop()


async def test_a_final_failure_of_the_first_publish_leaves_nothing(world: World) -> None:
    await world.driver.start()
    world.source.result = InvalidError("no such image")
    with pytest.raises(InvalidError, match="no such image"):
        await world.driver.publish(world.request())
    assert world.left() == []
    assert world.events == [("InlineFailed", "no such image")]
    world.source.result = UnavailableError("later")
    with pytest.raises(UnavailableError):
        await world.driver.publish(world.request())
    assert world.left() == ["csi-1"]
    await world.driver.unpublish("csi-1", str(world.target()))
    assert world.left() == []
    await world.driver.stop()


async def test_a_bug_of_a_source_shows_no_secret(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.driver.start()
    world.source.result = KeyError("token-text")
    with pytest.raises(HostError) as raised:
        await world.driver.publish(world.request())
    assert "KeyError" in str(raised.value)
    assert "token-text" not in str(raised.value) + caplog.text
    await world.driver.stop()


async def test_secrets_are_in_no_record(world: World) -> None:
    await world.driver.start()
    await world.driver.publish(world.request(attributes={"colour": "red", "password": "hunter2"}))
    record = (world.folder / "mem" / "csi-1" / "record").read_text()
    assert "red" in record
    for secret in ("hunter2", "token-text", "secret-text"):
        assert secret not in record
    await world.driver.stop()


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (Files({"a": Content(b"x" * (1 << 21))}), ExhaustedError, "2097152 bytes; a volume has at most 1048576"),
        (Files({f"f{n}": Content(b"") for n in range(65)}), ExhaustedError, "65 files; a volume has at most 64"),
        (Files({"../a": Content(b"")}), InvalidError, "relative path"),
    ],
)
async def test_content_over_a_limit_is_rejected(world: World, result: Files, error: type[Exception], text: str) -> None:
    await world.driver.start()
    world.source.result = result
    with pytest.raises(error, match=text):
        await world.driver.publish(world.request())
    await world.driver.stop()


async def test_the_nodes_memory_is_a_limit(world: World) -> None:
    await world.driver.start()
    world.source.result = Files({"a": Content(b"x" * (1 << 20))})
    await world.driver.publish(world.request())
    with pytest.raises(ExhaustedError, match="of 2097152 bytes are in use; raise memory="):
        await world.driver.publish(world.request("csi-2", "t2"))
    assert (world.target() / "a").stat().st_size == 1 << 20
    await world.driver.stop()


@pytest.mark.parametrize("key", ["unknown", "image"])
async def test_an_unknown_attribute_is_rejected_by_name(world: World, key: str) -> None:
    await world.driver.start()
    with pytest.raises(InvalidError, match=f"'?{key}'? is unknown to driver d.test; it takes colour, password"):
        await world.driver.publish(world.request(attributes={key: "x"}))
    world.source.needs = SourceNeeds(read_only=True)
    with pytest.raises(InvalidError, match="readOnly: true"):
        await world.driver.publish(world.request())
    await world.driver.stop()


@pytest.mark.slow
async def test_files_are_renewed_in_time_and_old_ones_stay_after_a_failure(world: World) -> None:
    world.source.result = files(b"one", again=time.time() + 0.1)
    await world.driver.start()
    await world.driver.publish(world.request())
    world.source.result = UnavailableError("issuer away")
    await until(lambda: bool(world.events))
    assert (world.target() / "a").read_bytes() == b"one"
    world.source.result = files(b"two")
    await until(lambda: len(world.events) > 1)
    assert (world.target() / "a").read_bytes() == b"two"
    assert [reason for reason, _ in world.events] == ["InlineStale", "InlineRenewed"]
    assert world.source.asked[-1].before == files(b"one", again=world.source.asked[-1].before.again)  # type: ignore[union-attr]
    await world.driver.stop()


async def test_a_restart_goes_on_with_what_is_shown_and_removes_the_rest(world: World) -> None:
    world.source.result = files(b"one", again=time.time() + 1000)
    await world.driver.start()
    plain = InlinePod("default", "web", "uid-1")
    await world.driver.publish(world.request(pod=plain))
    await world.driver.publish(world.request("csi-2", "t2", pod=plain))
    mount.umount(world.target("t2"))
    os.mkdir(world.folder / "mem" / "csi-3")
    await world.restart()
    assert os.listdir(world.folder / "mem") == ["csi-1"]
    asked = len(world.source.asked)
    await world.driver.publish(world.request(pod=plain))
    assert len(world.source.asked) == asked
    assert (world.target() / "a").read_bytes() == b"one"
    with pytest.raises(NotFoundError):
        await world.driver.usage("csi-2", str(world.target("t2")))
    await world.driver.stop()


async def test_a_reader_sees_old_or_new_files_never_a_mix(world: World) -> None:
    world.source.needs = SourceNeeds(republish=True)

    world.source.result = pair(0)
    await world.driver.start()
    await world.driver.publish(world.request())
    mixed: list[tuple[bytes, bytes]] = []
    ended = False

    def read(target: Path) -> None:
        while not ended:
            try:
                folder = os.open(target / "..data", os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            try:
                found = [_read(folder, name) for name in "ab"]
            except FileNotFoundError:  # the old folder was removed meanwhile
                continue
            finally:
                os.close(folder)
            if found[0] != found[1]:
                mixed.append((found[0], found[1]))

    reader = asyncio.ensure_future(asyncio.to_thread(read, world.target()))
    for number in range(1, 101):
        world.source.result = pair(number)
        await asyncio.to_thread(world.driver.store.write, "csi-1", pair(number).content, None)
    ended = True
    await reader
    assert mixed == []
    await world.driver.stop()


def pair(number: int) -> Files:
    text = Content(b"%d" % number)
    return Files({"a": text, "b": text})


def _read(folder: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as file:
        return file.read()


@pytest.mark.parametrize("where", ["context", "secrets"])
def test_tokens_are_read_from_the_context_and_from_secrets(where: str) -> None:
    key = "csi.storage.k8s.io/serviceAccount.tokens"
    given = {key: '{"aud":{"token":"t","expirationTimestamp":"2030-01-01T00:00:00Z"}}'}
    context = {"csi.storage.k8s.io/pod.name": "web"} | (given if where == "context" else {})
    pod = pod_of(context, {"x": "y"} | (given if where == "secrets" else {}), None)
    assert pod.tokens == {"aud": "t"}
    assert pod.secrets == {"x": "y"}
    assert pod.name == "web"


def test_tokens_that_cannot_be_read_are_not_shown() -> None:
    with pytest.raises(InvalidError) as raised:
        pod_of({"csi.storage.k8s.io/serviceAccount.tokens": "token-text"}, {}, None)
    assert "token-text" not in str(raised.value)
    assert POD.name


class SetClock(RealClock):
    """A wall clock that a test sets."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


@pytest.mark.parametrize("seconds", [-86400.0, 86400.0])
async def test_a_clock_that_is_set_delays_no_retry(world: World, seconds: float) -> None:
    clock = SetClock()
    world.options["clock"] = clock
    world.driver = world.made()
    await world.driver.start()
    world.source.result = Files({"a": Content(b"one")}, again=clock.time() + 3600)
    await world.driver.publish(world.request())
    world.source.result = UnavailableError("away")
    for _ in range(12):
        await world.driver._renew("csi-1")  # the next one is minutes away
    world.source.result = files(b"two")
    world.driver._state.wake.set()
    asked = len(world.source.asked)
    await asyncio.sleep(0)
    assert len(world.source.asked) == asked
    clock.ahead = seconds
    world.driver._state.wake.set()
    await until(lambda: (world.target() / "a").read_bytes() == b"two")
    await world.driver.stop()


async def test_what_was_asked_for_before_a_restart_is_continued_or_forgotten(world: World) -> None:
    world.source.result = UnavailableError("away")
    await world.driver.start()
    for name in ("csi-1", "csi-2"):
        with pytest.raises(UnavailableError):
            await world.driver.publish(world.request(name, name))
        (world.driver.store.source(name) / "question").write_text("asked")
    await world.restart()
    world.source.result = files(b"one")
    await world.driver.publish(world.request("csi-1", "csi-1"))
    assert (world.source.asked[-1].folder / "question").read_text() == "asked"
    for name in ("csi-1", "csi-2"):
        await world.driver._renew(name)
    assert len(os.listdir(world.folder / "mem")) == 2, "nothing is forgotten at once"
    world.driver._state.volumes["csi-2"].due = time.time() - 1
    await world.driver._renew("csi-2")
    assert os.listdir(world.folder / "mem") == ["csi-1"]


async def test_a_volume_has_metrics_until_it_is_removed_and_is_listed_with_its_pod(world: World) -> None:
    labels = {"namespace": "default", "pod": "web", "volume": "tls"}

    def gauges() -> list[float | None]:
        names = ("tonnage_inline_volume_capacity_bytes", "tonnage_inline_volume_used_bytes")
        return [metrics.REGISTRY.get_sample_value(name, labels) for name in names]

    world.driver.store = MemoryStore(world.folder / "plugins" / "d.test" / "mem", 2 << 20)
    await world.driver.start()
    await world.driver.publish(world.request(name="tls/mount"))
    await world.driver.measure()
    assert gauges() == [1 << 20, 3]
    (found,) = recorded(world.folder)
    assert (found.driver, found.record.handle, found.record.pod, found.size) == ("d.test", "csi-1", "web", 3)
    await world.driver.unpublish("csi-1", str(world.target("tls/mount")))
    assert gauges() == [None, None]
    assert recorded(world.folder) == []
    await world.driver.stop()


async def test_a_source_that_hangs_is_given_up_and_delays_no_other_volume(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.driver.fill_seconds = 0.3
    fill = world.source.fill

    async def hangs(request: FillRequest) -> Filled:
        if request.handle.startswith("hangs"):
            await asyncio.Event().wait()
        return await fill(request)

    monkeypatch.setattr(world.source, "fill", hangs)
    await world.driver.start()
    calls = [world.driver.publish(world.request(f"hangs-{number}", f"h{number}")) for number in range(3)]
    *hanging, other = await asyncio.gather(*calls, world.driver.publish(world.request()), return_exceptions=True)
    assert other is None
    assert (world.target() / "a").read_bytes() == b"one"
    for failure in hanging:
        assert isinstance(failure, UnavailableError)
        assert "no content after" in str(failure)
    await world.driver.unpublish("hangs-1", str(world.target("h1")))  # while its source still hangs
    assert not world.target("h1").exists()
    await world.driver.stop()


async def test_a_source_that_returns_two_gigabytes_is_rejected_before_anything_is_written(world: World) -> None:
    await world.driver.start()
    world.source.result = Files({"a": Content(bytes(2 << 30))})  # zeros that are never touched
    with pytest.raises(ExhaustedError, match="content of 2147483648 bytes; a volume has at most 1048576"):
        await world.driver.publish(world.request())
    assert world.driver.store.used() < 1 << 20
    await world.driver.stop()

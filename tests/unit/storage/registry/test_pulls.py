"""Pulls of a process: one for each digest, joined by later calls, and with the credentials of each."""

import asyncio
import base64
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.content.server import Files, served
from tests.unit.storage.registry.images import asked, layer_paths, put

from tonnage.base.errors import InvalidError, NotFoundError, PreconditionError, TonnageError, UnavailableError
from tonnage.base.observe import metrics
from tonnage.storage.images import manifest, reference
from tonnage.storage.images.reference import ImageReference
from tonnage.storage.images.store import ImageStore
from tonnage.storage.registry.client import RegistryAccess, parse_access
from tonnage.storage.registry.login import CONFIG_JSON
from tonnage.storage.registry.pulls import ImagePulls
from tonnage_box.testing.image_archive import LayerTar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are unpacked with their owners, which needs root")
HERE = manifest.machine()
LAYER = LayerTar().add("a", bytes(range(256)) * 20_000).data()


@pytest.fixture
def files() -> Iterator[Files]:
    with served(Files()) as found:
        put(found, "app", "1", LAYER)
        put(found, "app", "same", LAYER)
        yield found


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


Body = Callable[[ImagePulls], Coroutine[Any, Any, None]]


def run(files: Files, store: ImageStore, body: Body, *, patience: float = 30.0) -> None:
    found = parse_access((f"http://localhost:{files.port}",))
    access = RegistryAccess(found.hosts, found.plain, sleep=lambda seconds: None)

    async def main() -> None:
        pulls = ImagePulls(store, access, patience)
        try:
            await body(pulls)
        finally:
            await pulls.close()

    asyncio.run(main())


def image(files: Files, name: str = "app:1") -> ImageReference:
    return reference.parse(f"localhost:{files.port}/{name}")


def count(code: str) -> float:
    return metrics.REGISTRY.get_sample_value("tonnage_image_pulls_total", {"source": "registry", "code": code}) or 0.0


def test_an_image_is_pulled_and_counted(files: Files, store: ImageStore) -> None:
    before = count("pulled")

    async def body(pulls: ImagePulls) -> None:
        assert pulls.allows(image(files))
        assert not pulls.allows(reference.parse("registry.example/app"))
        assert (await pulls.pull(image(files), HERE, {})).name == str(image(files))

    run(files, store, body)
    assert store.find(str(image(files))) is not None
    assert count("pulled") == before + 1
    assert metrics.REGISTRY.get_sample_value("tonnage_image_store_layers") == 1


def test_calls_join_a_pull_that_outlives_them(files: Files, store: ImageStore) -> None:
    (files.held,) = layer_paths(files)
    files.hold = hold = threading.Event()

    async def body(pulls: ImagePulls) -> None:
        for _ in range(2):
            with pytest.raises(UnavailableError, match=r"^pulling localhost.*: .* MiB from .*; it goes on"):
                await pulls.pull(image(files), HERE, {})
        hold.set()
        while store.find(str(image(files))) is None:
            with suppress(UnavailableError):
                assert (await pulls.pull(image(files), HERE, {})).name == str(image(files))

    run(files, store, body, patience=0.3)
    assert len(asked(files, files.held)) == 1


def test_a_registry_that_does_not_answer_is_asked_once_at_a_time(files: Files, store: ImageStore) -> None:
    files.held, files.hold = "/manifests/", threading.Event()
    hold = files.hold

    async def body(pulls: ImagePulls) -> None:
        calls = (pulls.pull(image(files), HERE, {}) for _ in range(5))
        for failure in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(failure, UnavailableError)
            assert "has not answered yet" in str(failure)
        hold.set()
        while store.find(str(image(files))) is None:
            with suppress(UnavailableError):
                await pulls.pull(image(files), HERE, {})

    run(files, store, body, patience=0.3)
    assert len(asked(files, "/manifests/")) <= 3


def test_two_calls_at_once_make_one_pull_and_both_names(files: Files, store: ImageStore) -> None:
    async def body(pulls: ImagePulls) -> None:
        names = [image(files), image(files), image(files, "app:same")]
        found = await asyncio.gather(*(pulls.pull(name, HERE, {}) for name in names))
        assert [one.name for one in found] == [str(name) for name in names]

    run(files, store, body)
    (path,) = layer_paths(files)
    assert len(asked(files, path)) == 1
    assert len(store.images()) == 2


def test_a_call_without_the_right_gets_no_image_of_others(files: Files, store: ImageStore) -> None:
    files.challenge, files.token, files.auth = 'Bearer realm="{url}/token"', "t0ken", "Bearer t0ken"
    login = base64.b64encode(b"me:word").decode()
    files.basic = f"Basic {login}"
    secret = {CONFIG_JSON: json.dumps({"auths": {f"localhost:{files.port}": {"auth": login}}})}

    async def body(pulls: ImagePulls) -> None:
        await pulls.pull(image(files), HERE, secret)
        with pytest.raises(PreconditionError, match="it may need a pull secret"):
            await pulls.pull(image(files), HERE, {})
        with pytest.raises(InvalidError, match="neither"):
            await pulls.pull(image(files), HERE, {"other": "x"})

    run(files, store, body)


def test_a_failed_pull_is_begun_again_by_the_next_call(files: Files, store: ImageStore) -> None:
    (path,) = layer_paths(files)
    whole = files.files[path]
    before = count("invalid"), count("notfound")

    async def body(pulls: ImagePulls) -> None:
        files.files[path] = whole[:-1] + b"x"
        with pytest.raises(InvalidError, match="damaged"):
            await pulls.pull(image(files), HERE, {})
        with pytest.raises(NotFoundError):
            await pulls.pull(image(files, "app:none"), HERE, {})
        files.files[path] = whole
        await pulls.pull(image(files), HERE, {})

    run(files, store, body)
    assert (count("invalid"), count("notfound")) == (before[0] + 1, before[1] + 1)


def test_the_end_of_a_process_stops_a_pull(files: Files, store: ImageStore) -> None:
    (files.held,) = layer_paths(files)
    files.hold = threading.Event()

    async def body(pulls: ImagePulls) -> None:
        call = asyncio.create_task(pulls.pull(image(files), HERE, {}))
        while not asked(files, files.held):
            await asyncio.sleep(0.01)
        await pulls.close()
        with pytest.raises(TonnageError, match="stopped"):
            await call

    run(files, store, body)
    assert store.images() == []

"""Image volumes from stores: which image, its layers protected, and the choice of a volume stays."""

import asyncio
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.storage.content.server import Files, served
from tests.unit.storage.registry.images import put

from tonnage.base.errors import InvalidError, NotFoundError, UnavailableError
from tonnage.csi.inline.base import FillRequest, InlinePod, Tree, WritableLayer
from tonnage.csi.inline.image.source import ImageInline, image_inline
from tonnage.storage.images.manifest import Platform
from tonnage.storage.images.reference import ImageReference
from tonnage.storage.images.store import ImageStore
from tonnage.storage.registry.client import parse_access
from tonnage.storage.registry.pulls import PulledImage
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are unpacked with their owners, which needs root")
BASE = LayerTar().add("a", b"one").data()
TOP = LayerTar().add("b", b"two").data()
OTHER = LayerTar().add("c", b"three").data()


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


def load(store: ImageStore, name: str, *layers: bytes) -> None:
    archive = store.path.parent / "image.tar"
    archive.write_bytes(made.archive(made.layout(layers, name=name)))
    store.load(archive)


def request(tmp_path: Path, **given: str) -> FillRequest:
    folder = tmp_path / "volume"
    folder.mkdir(exist_ok=True)
    return FillRequest(InlinePod("default", "web", "uid"), given, False, f"csi-{'0' * 64}", folder)


def fill(source: ImageInline, asked: FillRequest) -> Tree:
    found = asyncio.run(source.fill(asked))
    assert isinstance(found, Tree)
    return found


@dataclasses.dataclass
class Puller:
    """Loads what it is asked for, from layers; stands for a registry, which has tests of its own."""

    store: ImageStore
    layers: dict[str, tuple[bytes, ...]]
    is_remote: bool = True
    pulled: list[tuple[str, Mapping[str, str]]] = dataclasses.field(default_factory=list)

    def allows(self, image: ImageReference) -> bool:
        return str(image) in self.layers

    async def pull(self, image: ImageReference, platform: Platform, secrets: Mapping[str, str]) -> PulledImage:
        self.pulled.append((str(image), secrets))
        load(self.store, str(image), *self.layers[str(image)])
        return PulledImage(str(image), f"{image} pulled")

    async def close(self) -> None:
        pass


def test_a_source_over_a_registry(store: ImageStore, tmp_path: Path) -> None:
    with served(Files()) as files:
        put(files, "app", "1", BASE)
        host = f"localhost:{files.port}"
        asked = request(tmp_path, image=f"{host}/app:1")

        async def run() -> None:
            source = image_inline([store.path], parse_access((f"http://{host}",)))
            found = await source.fill(asked)
            assert isinstance(found, Tree)
            assert (found.layers[0] / "a").read_text() == "one"
            await source.close()

        asyncio.run(run())
    with pytest.raises(NotFoundError, match=r"pulls from no registry localhost"):
        fill(image_inline([tmp_path / "empty"], parse_access(())), dataclasses.replace(asked, folder=tmp_path))
    with pytest.raises(NotFoundError, match=r"no image store of this node \(none\)"):
        fill(image_inline([], parse_access(("registry.example",))), dataclasses.replace(asked, folder=tmp_path))


def test_layers_of_an_image_the_topmost_first(store: ImageStore, tmp_path: Path) -> None:
    load(store, "app:1", BASE, TOP)
    found = fill(ImageInline([store]), request(tmp_path, image="app:1", path="/x", size="64Mi"))
    assert [os.listdir(layer) for layer in found.layers] == [["b"], ["a"]]
    assert (found.path, found.writable) == ("x", WritableLayer(64 << 20))
    asked = dataclasses.replace(request(tmp_path, image="app:1"), read_only=True)
    assert fill(ImageInline([store]), asked).writable is None


def test_layers_stay_for_as_long_as_the_volumes_folder(store: ImageStore, tmp_path: Path) -> None:
    load(store, "app:1", BASE)
    asked = request(tmp_path, image="app:1")
    found = fill(ImageInline([store]), asked)
    store.remove("app:1")
    assert found.layers[0].is_dir()
    (asked.folder / "image.json").unlink()
    asked.folder.rmdir()
    load(store, "other:1", OTHER)
    assert not found.layers[0].exists()


def test_a_tag_that_moves_changes_no_volume(store: ImageStore, tmp_path: Path) -> None:
    load(store, "app:1", BASE)
    asked = request(tmp_path, image="app:1")
    before = fill(ImageInline([store]), asked)
    load(store, "app:1", OTHER)
    assert fill(ImageInline([store]), dataclasses.replace(asked, before=before)) == before
    assert fill(ImageInline([store]), asked) == before  # another process
    assert before.layers[0].is_dir()


def test_a_choice_whose_layers_are_gone_is_made_again(store: ImageStore, tmp_path: Path) -> None:
    load(store, "app:1", BASE)
    asked = request(tmp_path, image="app:1")
    before = fill(ImageInline([store]), asked)
    store.release(str(asked.folder))  # as by a power cut
    load(store, "app:1", OTHER)
    assert not before.layers[0].exists()
    assert fill(ImageInline([store]), asked).layers != before.layers
    (asked.folder / "image.json").write_bytes(b"")
    assert fill(ImageInline([store]), asked).layers[0].is_dir()


def test_stores_are_searched_in_order(store: ImageStore, tmp_path: Path) -> None:
    second = ImageStore(tmp_path / "second")
    load(second, "app:1", BASE)
    assert fill(ImageInline([store, second]), request(tmp_path, image="app:1")).layers[0].is_relative_to(second.path)


def test_an_image_that_is_not_there_is_named_with_what_to_do(store: ImageStore, tmp_path: Path) -> None:
    load(store, "app:1", BASE)
    for given in ({"image": "app:2"}, {"image": "app:1", "platform": "linux/mips"}, {"image": "none"}):
        with pytest.raises(NotFoundError, match=r"is in no image store of this node .* `tonnage images load`"):
            fill(ImageInline([store]), request(tmp_path, **given))
    with pytest.raises(NotFoundError, match=r"pullPolicy Always, but this node pulls from no registry docker.io"):
        fill(ImageInline([store]), request(tmp_path, image="app:1", pullPolicy="Always"))
    assert not os.listdir(store.path / "uses")


def test_an_image_without_layers_is_rejected(store: ImageStore, tmp_path: Path) -> None:
    load(store, "app:1")
    with pytest.raises(InvalidError, match="has no layers"):
        fill(ImageInline([store]), request(tmp_path, image="app:1"))


def test_what_is_pulled_and_when(store: ImageStore, tmp_path: Path) -> None:
    names = ("docker.io/library/app:latest", "docker.io/library/app:1")
    puller = Puller(store, dict.fromkeys(names, (BASE,)))
    events: list[tuple[str, str, str]] = []
    source = ImageInline(
        [store], [puller], events=lambda pod, type_, reason, text: events.append((pod.name, reason, text))
    )
    for number, (given, count) in enumerate(
        [
            ({"image": "app:1", "pullPolicy": "Never"}, 0),
            ({"image": "app:1"}, 1),
            ({"image": "app:1"}, 1),
            ({"image": "app:1", "pullPolicy": "Always"}, 2),
            ({"image": "app"}, 3),
            ({"image": "app"}, 4),
            ({"image": "app", "pullPolicy": "Never"}, 4),
        ]
    ):
        asked = request(tmp_path, **given)
        asked = dataclasses.replace(asked, folder=tmp_path / str(number))
        asked.folder.mkdir()
        if number:
            fill(source, asked)
        else:
            with pytest.raises(NotFoundError, match="not present with pull policy of Never"):
                fill(source, asked)
        assert len(puller.pulled) == count
        if number:
            fill(source, asked)  # a repeated call asks no registry
        assert len(puller.pulled) == count
    assert events[0] == ("web", "Pulled", f"{names[1]} pulled")
    assert len(events) == 4


def test_sources_of_the_node_come_before_remote_ones_and_never_is_theirs(store: ImageStore, tmp_path: Path) -> None:
    name, latest = "docker.io/library/app:1", "docker.io/library/app:latest"
    local = Puller(store, {name: (BASE,), latest: (BASE,)}, is_remote=False)
    remote = Puller(store, {name: (BASE, TOP), "docker.io/library/other:1": (OTHER,)})

    def asked(number: int, **given: str) -> FillRequest:
        folder = tmp_path / str(number)
        folder.mkdir()
        return dataclasses.replace(request(tmp_path, **given), folder=folder)

    class Missing(Puller):
        async def pull(self, image: ImageReference, platform: Platform, secrets: Mapping[str, str]) -> PulledImage:
            if str(image) not in self.layers:
                raise NotFoundError(f"{image} is not here")
            return await super().pull(image, platform, secrets)

        def allows(self, image: ImageReference) -> bool:
            return True

    local = Missing(store, local.layers, is_remote=False)
    source = ImageInline([store], [local, remote])
    assert len(fill(source, asked(1, image="app:1", pullPolicy="Never")).layers) == 1
    assert len(fill(source, asked(2, image="app:1", pullPolicy="Always")).layers) == 2
    assert len(fill(source, asked(3, image="other:1")).layers) == 1
    fill(source, asked(4, image="app"))  # latest: no registry is allowed to have it
    assert [name for name, _ in local.pulled] == [name, latest]
    local.layers.clear()
    assert len(fill(source, asked(5, image="app")).layers) == 1  # the store has it
    with pytest.raises(NotFoundError, match="is in no image store"):
        fill(source, asked(6, image="none", pullPolicy="Never"))


def test_an_image_that_is_removed_right_after_its_pull_is_pulled_again(store: ImageStore, tmp_path: Path) -> None:
    class Racing(Puller):
        async def pull(self, image: ImageReference, platform: Platform, secrets: Mapping[str, str]) -> PulledImage:
            pulled = await super().pull(image, platform, secrets)
            self.store.remove(pulled.name)
            return pulled

    source = ImageInline([store], [Racing(store, {"docker.io/library/app:1": (BASE,)})])
    with pytest.raises(UnavailableError, match="removed from its store meanwhile"):
        fill(source, request(tmp_path, image="app:1"))

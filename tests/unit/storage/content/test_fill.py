"""Filling of a volume's root: whole or not at all, nothing outside of it, never more than fits."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.content.server import Files, served

from tonnage.base.errors import BusyError, InvalidError, OutOfRangeError, PreconditionError, TonnageError
from tonnage.host import mount
from tonnage.storage.content.access import ContentAccess, Progress, StoppedError
from tonnage.storage.content.fill import Target, fill
from tonnage.storage.content.hosts import AllowedHost, FetchPolicy
from tonnage.storage.content.spec import ContentSpec, FolderSpec, ImageSpec, S3Spec, UrlSpec
from tonnage.storage.images.store import ImageStore
from tonnage.storage.pools.fs import populate
from tonnage_box.testing.image_archive import LayerTar, layout, write

MI = 1 << 20
Fill = Callable[..., Progress]


@pytest.fixture
def files() -> Iterator[Files]:
    with served(Files()) as found:
        yield found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def filled(root: Path, tmp_path: Path, files: Files) -> Fill:
    """Fill the root."""

    def run(
        content: ContentSpec, *, size: int = 8 * MI, secrets: dict[str, str] | None = None, **more: Any
    ) -> Progress:
        policy = FetchPolicy((AllowedHost("localhost", files.port),))
        access = ContentAccess(policy, sleep=lambda seconds: None, **more)
        progress = Progress(str(content))
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fill(content, Target(fd, size, tmp_path / "work"), access, secrets or {}, progress)
        finally:
            os.close(fd)
        return progress

    return run


def url(files: Files, name: str, body: bytes, unpack: str = "none", *, quoted: str = "") -> UrlSpec:
    files.files[f"/{name}"] = body
    return UrlSpec(f"{files.url}/{quoted or name}", hashlib.sha256(body).hexdigest(), unpack)


def tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "/"
        for path in sorted(root.rglob("*"))
    }  # fmt: skip


def test_a_file_has_the_name_of_its_url(filled: Fill, files: Files, root: Path) -> None:
    (root / "lost+found").mkdir()
    (root / "half").write_text("left by a kill")
    progress = filled(url(files, "a b.txt", b"hello", quoted="a%20b.txt"))
    assert tree(root) == {"a b.txt": "hello"}
    assert (progress.done, progress.total, str(progress)) == (5, 5, f"0 of 0 MiB from {files.url}/a%20b.txt")


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
def test_an_archive_is_unpacked(filled: Fill, files: Files, root: Path, form: str) -> None:
    archive = LayerTar().folder("d").add("d/f", b"x", mode=0o4755, uid=5).symlink("d/l", "../d/f").link("h", "d/f")
    body = archive.add("d/.wh.f", b"no mark").data()
    filled(url(files, f"x.{form}", gzip.compress(body) if form == "tar.gz" else body, form))
    assert tree(root) == {"d": "/", "d/f": "x", "d/l": "../d/f", "d/.wh.f": "no mark", "h": "x"}
    found = (root / "d/f").stat()
    assert (found.st_uid, found.st_mode & 0o7777, found.st_nlink) == (5, 0o755, 2)


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        (lambda: LayerTar().add("/etc/x", b"a"), "absolute"),
        (lambda: LayerTar().add("../x", b"a"), r"'\.\.'"),
        (lambda: LayerTar().add("a/../../x", b"a"), r"'\.\.'"),
        (lambda: LayerTar().symlink("l", "/etc"), "leads out of the archive"),
        (lambda: LayerTar().symlink("d/l", "../../etc"), "leads out of the archive"),
        (lambda: LayerTar().symlink("l", ".."), "leads out of the archive"),
        (lambda: LayerTar().symlink("d/e/l", "../../x").link("l", "d/e/l"), "its target 'd/e/l' is a symlink"),
        (lambda: LayerTar().symlink("d/e/up", "../..").symlink("y", "d/e/up/../../etc"), r"'\.\.' after a name"),
        (lambda: LayerTar().symlink("y", "d/e/../x"), r"'\.\.' after a name"),
        (lambda: LayerTar().link("h", "/etc/passwd"), "absolute"),
        (lambda: LayerTar().link("h", "../x"), r"'\.\.'"),
        (lambda: LayerTar().add("dev", type=tarfile.BLKTYPE, devmajor=8), "device or fifo"),
        (lambda: LayerTar().add("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3), "device or fifo"),
        (lambda: LayerTar().add("zero", type=tarfile.CHRTYPE), "device or fifo"),
        (lambda: LayerTar().add("f", type=tarfile.FIFOTYPE), "device or fifo"),
    ],
)
def test_hostile_archives_are_rejected(
    filled: Fill, files: Files, root: Path, tmp_path: Path, hostile: Callable[[], LayerTar], words: str
) -> None:
    with pytest.raises(InvalidError, match=words):
        filled(url(files, "x.tar", hostile().data(), "tar"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]


def test_a_link_inside_leads_nowhere_outside(filled: Fill, files: Files, root: Path, tmp_path: Path) -> None:
    """A symlink of the archive is never followed while it is unpacked: what is below it replaces it."""
    body = LayerTar().folder("real").symlink("l", "real").add("l/x", b"a").data()
    filled(url(files, "x.tar", body, "tar"))
    assert tree(root) == {"real": "/", "l": "/", "l/x": "a"}


def test_a_wrong_digest_is_told_with_both(filled: Fill, files: Files) -> None:
    content = url(files, "x", b"what was meant")
    files.files["/x"] = b"something else"
    with pytest.raises(InvalidError) as rejected:
        filled(content)
    assert content.sha256 in str(rejected.value)
    assert hashlib.sha256(b"something else").hexdigest() in str(rejected.value)


def test_a_damaged_archive_is_told_as_a_wrong_digest(filled: Fill, files: Files) -> None:
    body = gzip.compress(LayerTar().add("a", os.urandom(5000)).data())
    content = url(files, "x.tgz", body, "tar.gz")
    files.files["/x.tgz"] = body[:2000] + b"\0" * 100 + body[2100:]
    with pytest.raises(InvalidError, match=r"its sha256 is \w+, want \w+: nothing of it stays"):
        filled(content)


@pytest.mark.parametrize("form", ["none", "tar", "tar.gz"])
def test_what_cannot_fit_is_rejected_before_the_first_byte(filled: Fill, files: Files, form: str) -> None:
    content = url(files, "x", os.urandom(9 * MI), form)
    with pytest.raises(OutOfRangeError, match=r"has 9Mi and does not fit into 8Mi"):
        filled(content)


def test_a_server_that_does_not_say_the_size_fills_no_more_than_fits(filled: Fill, files: Files) -> None:
    files.says_size = False
    with pytest.raises(OutOfRangeError, match="is larger than the volume"):
        filled(url(files, "x", os.urandom(9 * MI)))


def test_a_bomb_stops_at_the_volumes_size(filled: Fill, files: Files, root: Path) -> None:
    body = gzip.compress(LayerTar().add("zeros", bytes(64 * MI)).data())
    with pytest.raises(InvalidError, match=f"larger than {8 * MI} bytes"):
        filled(url(files, "x", body, "tar.gz"))
    assert sum(path.stat().st_size for path in root.rglob("*")) <= 8 * MI


@pytest.mark.slow
@pytest.mark.parametrize("says_size", [True, False])
def test_ten_gibibytes_of_zeros_in_ten_megabytes_end_at_the_volumes_size(
    filled: Fill, files: Files, root: Path, *, says_size: bool
) -> None:
    """The header promises one file; its content is a thousand times as large as what is downloaded."""
    head = tarfile.TarInfo("zeros")
    head.size = 10 << 30
    zeros = gzip.compress(bytes(64 * MI))
    body = gzip.compress(head.tobuf()) + zeros * (head.size // (64 * MI))
    assert len(body) < 11 * MI
    files.says_size = says_size
    with pytest.raises((InvalidError, OutOfRangeError), match=r"larger than|does not fit"):
        filled(url(files, "x", body, "tar.gz"), size=16 * MI)
    assert sum(path.stat().st_size for path in root.rglob("*")) <= 16 * MI


@pytest.mark.slow
def test_zeros_that_fit_are_no_bomb(filled: Fill, files: Files, root: Path) -> None:
    body = gzip.compress(LayerTar().add("zeros", bytes(100 * MI)).data())
    filled(url(files, "x", body, "tar.gz"), size=128 * MI)
    assert (root / "zeros").stat().st_size == 100 * MI


def test_a_break_is_continued_or_begun_again(filled: Fill, files: Files, root: Path) -> None:
    body = LayerTar().add("a", os.urandom(3 * MI)).data()
    files.breaks = [MI, MI]
    filled(url(files, "x", body, "tar"))
    assert (root / "a").stat().st_size == 3 * MI
    files.seen.clear()
    files.breaks, files.resumes = [MI, MI], False
    filled(url(files, "x", body, "tar"))
    assert (root / "a").stat().st_size == 3 * MI
    assert len([1 for _, headers in files.seen if "range" not in headers]) == 2


def test_a_stop_ends_it(filled: Fill, files: Files, root: Path, tmp_path: Path) -> None:
    content = url(files, "x", b"a")
    progress = Progress("x")
    progress.stop.set()
    access = ContentAccess(FetchPolicy((AllowedHost("localhost", files.port),)))
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(StoppedError):
        fill(content, Target(fd, MI, tmp_path / "work"), access, {}, progress)
    os.close(fd)


def test_a_secret_opens_a_url_and_is_never_shown(filled: Fill, files: Files, root: Path) -> None:
    content = url(files, "x", b"a")
    files.auth = "Bearer t0ps3cret"
    filled(content, secrets={"token": "t0ps3cret"})
    assert tree(root) == {"x": "a"}
    with pytest.raises(InvalidError) as rejected:
        filled(content, secrets={"token": "other"})
    assert "other" not in str(rejected.value)


# Folders


def test_a_folder_is_known_by_the_last_part_of_its_path(filled: Fill, root: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "f").write_text("x")
    filled(FolderSpec("models"), folders=(models,))
    assert tree(root) == {"f": "x"}
    with pytest.raises(InvalidError, match="folder other: this node allows models"):
        filled(FolderSpec("other"), folders=(models,))
    with pytest.raises(InvalidError, match="see --source"):
        filled(FolderSpec("models"))
    with pytest.raises(InvalidError, match="two allowed folders"):
        filled(FolderSpec("models"), folders=(models, tmp_path / "other" / "models"))
    with pytest.raises(OutOfRangeError, match="models holds"):
        filled(FolderSpec("models"), folders=(models,), size=4096)


def test_a_stop_ends_a_copy(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cp is replaced by a program that only waits."""
    models = tmp_path / "models"
    models.mkdir()
    monkeypatch.setattr(populate, "_COPY", ("sh", "-c", "sleep 1000"))
    progress = Progress("x")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    timer = threading.Timer(0.2, progress.halt)
    timer.start()
    with pytest.raises(StoppedError):
        fill(FolderSpec("models"), Target(fd, MI, tmp_path / "work"), ContentAccess(folders=(models,)), {}, progress)
    timer.join()
    os.close(fd)


# Images


@pytest.mark.real
@pytest.mark.parametrize("layers", [1, 3])
def test_an_image_is_copied_as_a_container_would_see_it(filled: Fill, root: Path, tmp_path: Path, layers: int) -> None:
    tars = [
        LayerTar().folder("d").add("d/a", b"first").add("d/gone", b"x"),
        LayerTar().folder("d").add("d/a", b"second").add("d/.wh.gone"),
        LayerTar().folder("e").add("e/b", b"third"),
    ][:layers]
    store = tmp_path / "store"
    ImageStore(store).load(write(tmp_path / "layout", layout([tar.data() for tar in tars], name="app:1")))
    filled(ImageSpec("app:1"), stores=(tmp_path / "none", store))
    whole = {"d": "/", "d/a": "second", "e": "/", "e/b": "third"}
    assert tree(root) == (whole if layers == 3 else {"d": "/", "d/a": "first", "d/gone": "x"})
    assert not (tmp_path / "work").exists()
    assert ImageStore(store).uses() == {}
    with pytest.raises(OutOfRangeError, match="image app:1 holds"):
        filled(ImageSpec("app:1"), stores=(store,), size=4096)
    with pytest.raises(PreconditionError, match="image app:2 is not in an image store of this node"):
        filled(ImageSpec("app:2"), stores=(store,))
    with pytest.raises(InvalidError, match="see --image-store"):
        filled(ImageSpec("app:1"))


@pytest.mark.real
@pytest.mark.parametrize("layers", [1, 3])
def test_layers_that_are_removed_during_the_copy_are_no_content(
    filled: Fill, tmp_path: Path, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store that is mounted read-only, a copy cannot say that it uses them."""
    tars = [LayerTar().folder("d").add(f"d/{n}", b"x").data() for n in range(layers)]
    path, seen = tmp_path / "store", tmp_path / "seen"
    store = ImageStore(path)
    store.load(write(tmp_path / "layout", layout(tars, name="app:1")))
    seen.mkdir()
    mount.bind(path, seen, readonly=True)
    copy = populate.fill

    def removed_after_the_copy(*given: Any, **more: Any) -> None:
        copy(*given, **more)
        store.remove("app:1")

    try:
        filled(ImageSpec("app:1"), stores=(seen,))
        monkeypatch.setattr(populate, "fill", removed_after_the_copy)
        with pytest.raises(BusyError, match="image app:1 was removed from its image store while it was copied"):
            filled(ImageSpec("app:1"), stores=(seen,))
    finally:
        mount.umount(seen)


# S3


def test_a_prefix_becomes_a_tree(filled: Fill, files: Files, root: Path) -> None:
    files.keys = ("key", "secret")
    files.files = {"/buk/p/a": b"1", "/buk/p/d/ü x": b"22", "/buk/p/e/": b"", "/buk/q": b"other"}
    secrets = {"accessKey": "key", "secretKey": "secret"}
    progress = filled(S3Spec(files.url, "buk", prefix="p/"), secrets=secrets)
    assert tree(root) == {"a": "1", "d": "/", "d/ü x": "22", "e": "/"}
    assert (progress.done, progress.total) == (3, 3)
    filled(S3Spec(files.url, "buk", key="p/d/ü x"), secrets=secrets)
    assert tree(root) == {"ü x": "22"}
    with pytest.raises(InvalidError, match="its sha256 is"):
        filled(S3Spec(files.url, "buk", key="p/a", sha256="00" * 32), secrets=secrets)
    with pytest.raises(TonnageError, match="no object of the bucket begins with that"):
        filled(S3Spec(files.url, "buk", prefix="none/"), secrets=secrets)
    with pytest.raises(OutOfRangeError, match="does not fit"):
        filled(S3Spec(files.url, "buk", prefix="p/"), secrets=secrets, size=2)


@pytest.mark.parametrize("key", ["p/../x", "p//x", "p/./x", "p/" + "a" * 256, "p/a/b"])
def test_hostile_keys_are_rejected(filled: Fill, files: Files, root: Path, key: str) -> None:
    files.files = {f"/buk/{key}": b"1", "/buk/p/a": b"1"}
    with pytest.raises(InvalidError, match="object"):
        filled(S3Spec(files.url, "buk", prefix="p/"))


def test_an_object_without_a_size_wants_a_digest(filled: Fill, files: Files, root: Path) -> None:
    files.files, files.says_size = {"/buk/a": b"123456"}, False
    files.breaks = [3]
    with pytest.raises(InvalidError, match="the server does not say its size: name its sha256"):
        filled(S3Spec(files.url, "buk", key="a"))
    digest = hashlib.sha256(b"123456").hexdigest()
    files.breaks = [3]
    with pytest.raises(InvalidError, match="its sha256 is"):
        filled(S3Spec(files.url, "buk", key="a", sha256=digest))
    filled(S3Spec(files.url, "buk", key="a", sha256=digest))
    assert tree(root) == {"a": "123456"}


@pytest.mark.parametrize("breaks", [[2], [0, 3]])
def test_objects_are_continued_too(filled: Fill, files: Files, root: Path, breaks: list[int]) -> None:
    files.files = {"/buk/p/a": b"123456"}
    files.breaks = breaks
    filled(S3Spec(files.url, "buk", prefix="p/"))
    assert tree(root) == {"a": "123456"}

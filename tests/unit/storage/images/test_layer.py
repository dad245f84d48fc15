"""Unpacking of layers: hostile ones, and random ones against a model and against overlayfs itself."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from tonnage.base.errors import InvalidError, TonnageError
from tonnage.host import mount
from tonnage.host.descriptor import opened
from tonnage.storage.images import layer as layers_module
from tonnage.storage.images.layer import LayerCounts, LayerLimits, LayerUnpacker, find
from tonnage.storage.images.tar_reader import TarReader
from tonnage_box.testing.image_archive import LayerTar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are unpacked with their owners, which needs root")
FOLDER = os.O_RDONLY | os.O_DIRECTORY


@dataclass
class Place:
    """A layer's folder, with something precious next to it."""

    path: Path
    lowers: Sequence[Path] = ()

    def unpack(self, data: bytes, limits: LayerLimits = LayerLimits(size=1 << 20)) -> LayerCounts:  # noqa: B008
        self.path.mkdir(exist_ok=True)
        with ExitStack() as stack:
            root = stack.enter_context(opened(self.path, FOLDER))
            lowers = [stack.enter_context(opened(lower, FOLDER)) for lower in self.lowers]
            return LayerUnpacker(root, lowers, "layer", limits).unpack(TarReader(io.BytesIO(data), "layer"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Checks at the end that nothing outside has changed."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("safe")
    before = listing(tmp_path)
    yield Place(tmp_path / "layer")
    assert [line for line in listing(tmp_path) if not line[0].startswith("layer")] == before


def listing(root: Path) -> list[tuple[str, int, int, int, bytes]]:
    found = []
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            found.append((str(path.relative_to(root)), status.st_mode, status.st_uid, status.st_nlink, content))
    return sorted(found)


def tar() -> LayerTar:
    return LayerTar()


def names(*given: str) -> bytes:
    layer = tar()
    for name in given:
        layer.add(name, b"x")
    return layer.data()


def device(name: str, kind: bytes, major: int = 0, minor: int = 0) -> bytes:
    return tar().add(name, type=kind, devmajor=major, devminor=minor).data()


def many_links() -> bytes:
    layer = tar().add("a", b"x")
    for number in range(101):
        layer.link(f"l{number}", "a")
    return layer.data()


REJECTED = {
    "dot dot": (names("../precious/file"), "has '..'"),
    "dot dot inside": (names("a/../../precious/file"), "has '..'"),
    "dot dot that stays": (names("a/../b"), "has '..'"),
    "absolute": (names("/precious"), "is absolute"),
    "absolute with slashes": (names("//x"), "is absolute"),
    "absolute folder": (tar().folder("/etc").data(), "is absolute"),
    "link to absolute": (tar().link("a", "/etc/passwd").data(), "is absolute"),
    "link to parent": (tar().link("a", "../precious/file").data(), "has '..'"),
    "link to nothing": (tar().link("a", "none").data(), "is in no layer"),
    "link to the root": (tar().link("a", ".").data(), "is in no layer"),
    "link to a folder": (tar().folder("d").link("a", "d").data(), "is a folder"),
    "link through a symlink": (tar().symlink("s", "../precious").link("a", "s/file").data(), "is in no layer"),
    "forged whiteout": (device("a", tarfile.CHRTYPE), "forged whiteout"),
    "whiteout of nothing": (names(".wh."), "names no file"),
    "whiteout of dot": (names("d/.wh.."), "names no file"),
    "whiteout of dot dot": (names("d/.wh..."), "names no file"),
    "root as a file": (names("."), "replaces the root"),
    "root as a symlink": (tar().symlink("./", "/etc").data(), "replaces the root"),
    "long component": (names("n" * 256), "too long or too deep"),
    "long path": (names("/".join(["n" * 200] * 21)), "too long or too deep"),
    "deep path": (names("/".join(["d"] * 101)), "too long or too deep"),
    "empty link target": (tar().symlink("a", "").data(), "no target"),
    "long symlink": (tar().symlink("a", "t" * 4096).data(), "no target"),
    "owner out of range": (tar().add("a", uid=1 << 33).data(), "out of range"),
    "nobody may own all": (tar().add("a", uid=(1 << 32) - 1).data(), "out of range"),
    "attribute too large": (tar().add("a", pax_headers={"SCHILY.xattr.user.a": "v" * 70000}).data(), "cannot be set"),
    "attribute without a name": (tar().add("a", pax_headers={"SCHILY.xattr.user.": "v"}).data(), "cannot be set"),
    "too large": (tar().add("a", b"\0" * (1 << 20)).add("b", b"1").data(), "larger than"),
    "too many links": (many_links(), "hard links per file"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_hostile_layers_are_rejected_by_name(place: Place, case: str) -> None:
    data, why = REJECTED[case]
    with pytest.raises(InvalidError) as failure:
        place.unpack(data)
    assert why in str(failure.value)


def test_too_many_entries(place: Place) -> None:
    with pytest.raises(InvalidError, match="more than 3 entries"):
        place.unpack(names("a", "b", "c", "d"), LayerLimits(entries=3))


def test_memory_for_paths_is_limited(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_module, "_MAX_HELD", 10)
    with pytest.raises(InvalidError, match="too many folders and whiteouts"):
        place.unpack(names(".wh.one", ".wh.two"))
    place.unpack(tar().folder("one").folder("two").folder("three").data())
    assert sorted(os.listdir(place.path)) == ["one", "three", "two"]


def test_a_layer_that_takes_too_long(place: Place) -> None:
    with pytest.raises(InvalidError, match="not unpacked within"):
        place.unpack(names("a"), LayerLimits(seconds=-1.0))


def test_a_parent_that_is_a_symlink_is_replaced_never_followed(place: Place, tmp_path: Path) -> None:
    for target in ("../precious", "/etc", str(tmp_path / "precious"), "."):
        place.unpack(tar().symlink("s", target).add("s/file", b"evil").add("s/d/deep", b"1").data())
        assert (place.path / "s").is_dir()
        assert not (place.path / "s").is_symlink()
        assert (place.path / "s/file").read_bytes() == b"evil"


def test_a_file_over_a_symlink_replaces_it(place: Place) -> None:
    place.unpack(tar().symlink("s", "../precious/file").add("s", b"mine").data())
    assert not (place.path / "s").is_symlink()
    assert (place.path / "s").read_bytes() == b"mine"


def test_a_folder_over_a_symlink_replaces_it(place: Place) -> None:
    place.unpack(tar().symlink("s", "../precious").folder("s", 0o700).data())
    assert stat.S_IMODE((place.path / "s").lstat().st_mode) == 0o700
    assert not (place.path / "s").is_symlink()


def test_a_link_to_a_symlink_is_a_link_to_the_symlink(place: Place) -> None:
    place.unpack(tar().symlink("s", "../precious/file").link("h", "s").data())
    assert os.readlink(place.path / "h") == "../precious/file"


def test_the_last_of_a_name_wins(place: Place) -> None:
    layer = tar().add("a", b"1").add("a", b"2").add("d/x", b"1").folder("d").add("f/x", b"1").add("f", b"2")
    place.unpack(layer.data())
    assert (place.path / "a").read_bytes() == b"2"
    assert (place.path / "d/x").read_bytes() == b"1"
    assert (place.path / "f").read_bytes() == b"2"


def test_a_link_to_itself_keeps_the_file(place: Place) -> None:
    place.unpack(tar().add("a", b"1").link("a", "./a").data())
    assert (place.path / "a").read_bytes() == b"1"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_fifos_are_dropped(place: Place, kind: bytes) -> None:
    assert place.unpack(device("a", kind, 1, 3)).dropped == 1
    assert os.listdir(place.path) == []


def test_setuid_and_setgid_are_taken_off(place: Place) -> None:
    place.unpack(tar().add("a", mode=0o6755).folder("d", 0o7777).data())
    assert stat.S_IMODE((place.path / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((place.path / "d").stat().st_mode) == 0o1777


def test_owner_mode_and_time(place: Place) -> None:
    place.unpack(tar().folder("d").add("d/a", b"", uid=7, gid=8, mode=0o640, mtime=1234.5).data())
    found = (place.path / "d/a").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode), found.st_mtime) == (7, 8, 0o640, 1234.5)
    assert (place.path / "d").stat().st_mtime == 0


def test_only_attributes_of_users_are_set(place: Place) -> None:
    keys = ("user.a", "user.overlay.opaque", "trusted.overlay.opaque", "security.capability", "system.posix_acl_access")
    place.unpack(tar().add("a", pax_headers={f"SCHILY.xattr.{key}": "y" for key in keys}).data())
    assert os.listxattr(place.path / "a") == ["user.a"]


def test_names_need_not_be_unicode(place: Place) -> None:
    raw = tarfile.TarInfo("a").tobuf(tarfile.GNU_FORMAT)
    header = bytearray(raw)
    header[0:3] = b"\xff\xfe\n"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    place.unpack(bytes(header) + bytes(1024))
    assert os.listdir(os.fsencode(place.path)) == [b"\xff\xfe\n"]


def test_reserved_names_and_what_is_below_whiteouts_are_dropped(place: Place) -> None:
    assert place.unpack(names(".wh..wh.plnk", ".wh.d/x")).dropped == 2
    assert os.listdir(place.path) == []


def is_whiteout(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def test_whiteouts(place: Place, tmp_path: Path) -> None:
    base = Place(tmp_path / "layer-base")
    base.unpack(names("d/gone", "d/here"))
    place.lowers = [base.path]
    place.unpack(names("d/.wh.gone", "o/.wh..wh..opq", "o/new", "d/.wh.here", "d/here"))
    assert is_whiteout(place.path / "d/gone")
    assert os.getxattr(place.path / "o", "trusted.overlay.opaque") == b"y"
    assert (place.path / "o/new").is_file()
    assert (place.path / "d/here").read_bytes() == b"x"


def test_a_whiteout_through_a_symlink_of_the_layer_stays_inside(place: Place) -> None:
    place.unpack(tar().symlink("s", "../precious").add("s/.wh.file").data())
    assert os.listdir(place.path) == ["s"]
    place.unpack(tar().symlink("s", "../precious").add("s/.wh..wh..opq").data())
    assert os.listdir(place.path / "s") == []


def test_folders_that_are_not_named_are_as_below(place: Place, tmp_path: Path) -> None:
    base = Place(tmp_path / "layer-base")
    base.unpack(tar().add("tmp", type=tarfile.DIRTYPE, mode=0o1777, uid=5, mtime=99).data())
    place.lowers = [base.path]
    place.unpack(names("tmp/x"))
    found = (place.path / "tmp").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_mtime) == (0o1777, 5, 99)


def test_links_to_lower_layers_are_copies(place: Place, tmp_path: Path) -> None:
    base = Place(tmp_path / "layer-base")
    base.unpack(tar().add("a", b"low", uid=3, mode=0o600).symlink("s", "../precious/file").folder("d").data())
    place.lowers = [base.path]
    place.unpack(tar().link("h", "a").link("t", "s").data())
    assert (place.path / "h").read_bytes() == b"low"
    assert (place.path / "h").stat().st_uid == 3
    assert os.readlink(place.path / "t") == "../precious/file"
    assert (base.path / "a").stat().st_nlink == 1


def test_sparse_files_keep_their_holes(place: Place, tmp_path: Path) -> None:
    body = b"1\n1048576\n4\n"
    data = body + bytes(512 - len(body)) + b"data"
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a"}
    layer = tar().add("GNUSparseFile.0/a", data, pax_headers={**headers, "GNU.sparse.realsize": str(4 << 20)})
    place.unpack(layer.data(), LayerLimits())
    found = (place.path / "a").stat()
    assert found.st_size == 4 << 20
    assert found.st_blocks * 512 < 1 << 20
    with open(place.path / "a", "rb") as file:
        file.seek(1 << 20)
        assert file.read(4) == b"data"
    with pytest.raises(InvalidError, match="larger than"):
        place.unpack(layer.data(), LayerLimits(size=1 << 20))


# Random layers against overlayfs: what it shows is what applying them one after the other to one tree gives.

NAMES = ("a", "b", "c")
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
entries = st.one_of(
    st.tuples(st.just("file"), paths, st.binary(max_size=3)),
    st.tuples(st.just("dir"), paths, st.just(b"")),
    st.tuples(st.just("symlink"), paths, st.sampled_from([b"a", b"/etc", b"../.."])),
    st.tuples(st.just("whiteout"), paths, st.just(b"")),
    st.tuples(st.just("opaque"), paths, st.just(b"")),
)
Layers = list[list[tuple[str, str, bytes]]]
DIR = ("dir", b"")
Tree = dict[tuple[str, ...], tuple[str, bytes]]


def archive(entries_: list[tuple[str, str, bytes]]) -> bytes:
    layer = tar()
    for kind, path, data in entries_:
        head, _, name = path.rpartition("/")
        if kind == "file":
            layer.add(path, data)
        elif kind == "dir":
            layer.folder(path)
        elif kind == "symlink":
            layer.symlink(path, data.decode())
        elif kind == "whiteout":
            layer.add(f"{head}/.wh.{name}" if head else f".wh.{name}")
        else:
            layer.add(f"{path}/.wh..wh..opq")
    return layer.data()


def drop(tree: Tree, parts: tuple[str, ...], *, itself: bool = True) -> None:
    for key in [k for k in tree if k[: len(parts)] == parts and (itself or k != parts)]:
        del tree[key]


def make_folders(tree: Tree, parts: tuple[str, ...]) -> None:
    for depth in range(1, len(parts) + 1):
        if tree.get(parts[:depth], ("", b""))[0] != "dir":
            drop(tree, parts[:depth])
            tree[parts[:depth]] = "dir", b""


def model(layers: Layers) -> Tree:
    """Whiteouts act first, on what is below; then the layer's entries in their order."""
    tree: Tree = {}
    for layer in layers:
        own: Tree = {}
        hidden: set[tuple[str, ...]] = set()
        for kind, path, data in layer:
            parts = tuple(path.split("/"))
            if kind in ("file", "symlink", "dir"):
                for depth in range(1, len(parts) + (kind == "dir")):
                    if own.get(parts[:depth], ("dir", b""))[0] != "dir":
                        hidden.add(parts[:depth])
                make_folders(own, parts if kind == "dir" else parts[:-1])
            if kind in ("file", "symlink"):
                drop(own, parts)
                own[parts] = kind, data
        marks = [(tuple(path.split("/")), kind) for kind, path, _ in layer if kind in ("whiteout", "opaque")]
        for parts, kind in sorted(marks, key=lambda mark: len(mark[0]) + (mark[1] == "opaque")):
            if kind == "opaque":
                hidden |= {parts[:d] for d in range(1, len(parts) + 1) if own.get(parts[:d], DIR) != DIR}
                make_folders(own, parts)
                drop(tree, parts, itself=False)
            elif parts in tree and not any(
                parts[:d] in hidden or own.get(parts[:d], DIR) != DIR for d in range(1, len(parts))
            ):
                make_folders(own, parts[:-1])
                drop(tree, parts)
        for parts in sorted(own):
            if parts in hidden:
                drop(tree, parts)
            if own[parts][0] == "dir":
                make_folders(tree, parts)
            else:
                drop(tree, parts)
                tree[parts] = own[parts]
    return tree


def shown(root: Path) -> Tree:
    tree: Tree = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            parts = path.relative_to(root).parts
            if path.is_symlink():
                tree[parts] = "symlink", os.readlink(os.fsencode(path))
            else:
                tree[parts] = ("dir", b"") if path.is_dir() else ("file", path.read_bytes())
    return tree


@contextmanager
def unpacked(layers: Layers) -> Iterator[tuple[Path, list[Path]]]:
    with tempfile.TemporaryDirectory(prefix="wi-") as text:
        base = Path(text)
        made: list[Path] = []
        for number, layer in enumerate(layers):
            one = Place(base / str(number), made[::-1])
            one.unpack(archive(layer))
            made.append(one.path)
        yield base, made


@pytest.mark.real
@example([[("dir", "b/a", b"")], [("whiteout", "b/a", b""), ("opaque", "b", b"")]])
@given(st.lists(st.lists(entries, max_size=8), min_size=2, max_size=3))
@examples(150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_overlayfs_shows_what_the_layers_say(layers: Layers) -> None:
    with unpacked(layers) as (base, made):
        target = base / "shown"
        target.mkdir()
        with ExitStack() as stack:
            mount.overlay(target, [stack.enter_context(opened(path, FOLDER)) for path in made[::-1]], options=["ro"])
            try:
                assert shown(target) == model(layers)
            finally:
                mount.umount(target)


@given(st.lists(st.lists(entries, max_size=8), min_size=1, max_size=3), paths)
@examples(100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_find_sees_what_overlayfs_shows(layers: Layers, path: str) -> None:
    with unpacked(layers) as (_, made), ExitStack() as stack:
        parts = tuple(path.split("/"))
        fds = [stack.enter_context(opened(one, FOLDER)) for one in made[::-1]]
        found = find(fds, tuple(part.encode() for part in parts))
        expected = model(layers).get(parts)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            mode = os.fstat(found).st_mode
            os.close(found)
            kinds = {"dir": stat.S_ISDIR, "file": stat.S_ISREG, "symlink": stat.S_ISLNK}
            assert kinds[expected[0]](mode)


@given(st.binary(max_size=2048))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_noise_is_rejected_or_unpacked(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="wi-") as text:
        with suppress(TonnageError):
            Place(Path(text) / "layer").unpack(data)
        assert os.listdir(text) == ["layer"]


@given(st.data())
@examples(150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_archives_stay_inside(data: st.DataObject) -> None:
    """A valid layer, some bytes of which are changed and whose checksums are then made right again."""
    layer = tar().add("a/b", b"x" * 600).symlink("s", "../..").add("s/f", b"1").link("h", "a/b").add("n" * 150, b"2")
    raw = bytearray(layer.data())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    for at in range(0, len(raw) - 511, 512):
        if raw[at + 257 : at + 262] == b"ustar":
            raw[at + 148 : at + 156] = b" " * 8
            raw[at + 148 : at + 156] = b"%06o\0 " % sum(raw[at : at + 512])
    with tempfile.TemporaryDirectory(prefix="wi-") as text:
        with suppress(TonnageError):
            Place(Path(text) / "layer").unpack(bytes(raw))
        assert os.listdir(text) == ["layer"]

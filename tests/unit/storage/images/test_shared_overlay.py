"""Overlays that volumes share, on real mounts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tonnage.base.errors import HostError
from tonnage.host import mount
from tonnage.host.run import run
from tonnage.storage.images.shared_overlay import SharedOverlays

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root"),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with the layers a, b and c, on no overlay."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount.mount("tmpfs", folder, "tmpfs")
    for name in ("a", "b", "c"):
        (folder / name).mkdir()
        (folder / name / name).write_text(name)
    try:
        yield folder
    finally:
        for one in sorted((one.target for one in mount.mounts() if one.target.startswith(str(tmp_path))), reverse=True):
            mount.umount(one)


def made(disk: Path, name: str) -> Path:
    (disk / name).mkdir(exist_ok=True)
    return disk / name


def content(target: Path) -> str:
    return "".join(sorted(os.listdir(target)))


def test_the_same_layers_share_one_and_others_do_not(disk: Path) -> None:
    shared, a, b, c = SharedOverlays(), disk / "a", disk / "b", disk / "c"
    one, two, other = (made(disk, name) for name in ("1", "2", "3"))
    for target, layers in ((one, [a, b]), (two, [a, b]), (other, [b, c])):
        shared.mount(str(target), layers)
    assert [content(target) for target in (one, two, other)] == ["ab", "ab", "bc"]
    assert os.stat(one).st_dev == os.stat(two).st_dev != os.stat(other).st_dev
    with pytest.raises(OSError, match="Read-only"):
        (two / "new").touch()
    shared.unmount(str(one))
    shared.unmount(str(one))
    assert content(two) == "ab"
    shared.mount(str(one), [b, c])
    again = made(disk, "4")
    shared.mount(str(again), [a, b])
    assert (content(one), content(again)) == ("bc", "ab")
    assert os.stat(again).st_dev == os.stat(two).st_dev


def test_a_new_process_shares_what_it_notes(disk: Path) -> None:
    layers = [disk / "a", disk / "b"]
    SharedOverlays().mount(str(made(disk, "1")), layers)
    later = SharedOverlays()
    later.note(str(disk / "1"), layers)
    later.note(str(disk / "gone"), layers)
    later.mount(str(made(disk, "2")), layers)
    assert os.stat(disk / "2").st_dev == os.stat(disk / "1").st_dev


def test_what_is_mounted_in_one_volume_is_in_no_other(disk: Path) -> None:
    """A container with mountPropagation Bidirectional could keep the volumes of other pods from being unmounted."""
    run(["mount", "--make-shared", str(disk)])
    shared, layers = SharedOverlays(), [disk / "a", disk / "b"]
    (disk / "b" / "inner").mkdir()
    one, two = made(disk, "1"), made(disk, "2")
    for target in (one, two):
        shared.mount(str(target), layers)
    mount.mount("tmpfs", one / "inner", "tmpfs")
    assert (mount.is_mount(one / "inner"), mount.is_mount(two / "inner")) == (True, False)
    shared.unmount(str(two))
    assert not mount.is_mount(two)


def test_a_layer_that_is_missing(disk: Path) -> None:
    with pytest.raises(HostError, match="cannot open the layers"):
        SharedOverlays().mount(str(made(disk, "1")), [disk / "a", disk / "none"])
    assert not mount.is_mount(disk / "1")


def test_volumes_that_come_and_go_at_once_always_show_the_layers(disk: Path) -> None:
    shared, layers = SharedOverlays(), [disk / "a", disk / "b"]
    targets = [made(disk, f"t{number}") for number in range(4)]

    def work(target: Path) -> set[str]:
        seen = set()
        for _ in range(200):
            shared.mount(str(target), layers)
            seen.add(content(target))
            shared.unmount(str(target))
        return seen

    with ThreadPoolExecutor(len(targets)) as pool:
        assert set().union(*pool.map(work, targets)) == {"ab"}
    assert not any(mount.is_mount(target) for target in targets)
    assert not shared._layers
    assert not shared._targets

"""What is found out before a driver starts, and that finding out touches nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tonnage.base.errors import HostError, InvalidError, PreconditionError, UnavailableError
from tonnage.base.observe.exporter import Address
from tonnage.node.config import preflight
from tonnage.node.config.driver import DriverConfig
from tonnage.node.config.preflight import PreflightFinding
from tonnage.storage.pools.config import parse

Make = Callable[..., DriverConfig]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path."""
    return tmp_path_factory.mktemp("d")


@pytest.fixture
def make(folder: Path) -> Make:
    """A configuration over one pool."""

    def config(pool: str = "fake,size=1Gi", **changes: object) -> DriverConfig:
        base = DriverConfig(folder / "csi.sock", [parse(pool)], "n1", folder / "state")
        return replace(base, **changes)  # type: ignore[arg-type]

    return config


def _of(findings: list[PreflightFinding], what: str) -> PreflightFinding:
    (found,) = [finding for finding in findings if finding.what == what]
    return found


def test_an_old_name_and_a_size_that_no_one_means_are_warned_of(make: Make, folder: Path) -> None:
    config = make("memory,size=1Gi", registry=folder)
    tiny = replace(config, pools=[*config.pools, parse(f"image:{folder / 'pool'},size=10")])
    findings = preflight.check(tiny)

    assert _of(findings, "kind").text == "pool memory: kind memory is called fake now: write fake,name=memory"
    assert _of(findings, "size").text == "pool image: 10 bytes hold no volume: write the size with its unit, as 10Gi"
    assert _of(findings, "kind").warning
    assert _of(findings, "size").warning
    assert not [finding for finding in preflight.check(config) if finding.what == "size"]


def test_all_is_well_and_nothing_was_touched(make: Make, folder: Path) -> None:
    findings = preflight.check(make(registry=folder, metrics=Address("127.0.0.1", 9100)))

    assert [f.what for f in findings] == [
        "driver",
        "endpoint",
        "state",
        "registry",
        "metrics",
        "cgroups",
        "pool fake",
    ]
    assert not [f for f in findings if f.fault or f.warning]
    preflight.require(findings)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("changes", "what", "text"),
    [
        ({"driver_name": "no name"}, "driver", "driver name 'no name': want a DNS name of at most 63 characters"),
        ({"node_name": "n" * 257}, "driver", "want 1 to 256 bytes"),
        ({"pools": [parse("fake")]}, "pool fake", "a fake pool needs size="),
        ({"pools": [parse("image")]}, "driver", "image needs a directory, as image:/var/lib/tonnage"),
        (
            {"registry": Path("/nowhere/at/all")},
            "registry",
            "registry /nowhere/at/all does not exist: name the kubelet's",
        ),
        ({"registry": Path("/" + "x" * 90)}, "registry", "Linux takes 107"),
        ({"sources": (Path("/nowhere/at/all"),)}, "source", "source /nowhere/at/all does not exist: make it"),
        ({"sources": (Path("/proc/self/exe"),)}, "source", "has a symlink in it: name /"),
        ({"sources": (Path("/etc/hostname"),)}, "source", "source /etc/hostname is not a directory"),
    ],
)
def test_faults(make: Make, changes: dict[str, object], what: str, text: str) -> None:
    findings = preflight.check(make(**changes))

    assert text in _of(findings, what).text
    with pytest.raises(InvalidError):
        preflight.require(findings)


def test_something_else_lies_at_the_endpoint(make: Make, folder: Path) -> None:
    (folder / "csi.sock").write_text("mine")

    assert "exists and is not a socket: remove it" in _of(preflight.check(make()), "endpoint").text
    assert (folder / "csi.sock").read_text() == "mine"


def test_a_socket_that_is_there_is_told(make: Make, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(folder / "csi.sock"))
        finding = _of(preflight.check(make()), "endpoint")

    assert "it is replaced if no program answers" in finding.text
    assert finding.fault is None


def test_the_state_folder_is_a_file(make: Make, folder: Path) -> None:
    (folder / "state").write_text("")

    assert _of(preflight.check(make()), "state").text == f"state folder {folder}/state is not a directory"


def test_metrics_that_others_can_read_are_told(make: Make) -> None:
    finding = _of(preflight.check(make(metrics=Address("0.0.0.0", 9100))), "metrics")

    assert (finding.warning, finding.fault) == (True, None)
    assert "open to other machines, without a password" in finding.text


def test_what_can_limit_io_is_told(make: Make, folder: Path) -> None:
    missing = _of(preflight.check(make(cgroups=folder)), "cgroups")
    assert "there is no cgroup hierarchy with the controller io" in missing.text
    assert (missing.warning, missing.fault) == (False, None), "volumes without limits are served"
    (folder / "cgroup.controllers").write_text("io")
    assert "cgroup v2" in _of(preflight.check(make(cgroups=folder)), "cgroups").text
    (folder / "nomad.slice").mkdir()
    assert "of nomad.slice" in _of(preflight.check(make(cgroups=folder, io_cgroup="nomad.slice")), "cgroups").text
    wrong = _of(preflight.check(make(cgroups=folder, io_cgroup="nomat.slice")), "cgroups")
    assert isinstance(wrong.fault, PreconditionError)


def test_folders_that_volumes_may_get_content_from(make: Make, folder: Path) -> None:
    assert _of(preflight.check(make(sources=(folder,))), "source").text == str(folder)
    assert _of(preflight.check(make(sources=(Path("/"),))), "source").warning, "that is everything"


async def test_a_pool_on_the_nodes_own_disk_must_be_meant(make: Make) -> None:
    alone = make("image:/nowhere-yet/pool,size=1Gi,rootfs=no")
    findings = preflight.check(alone)
    assert "give it a disk of its own or say rootfs=yes" in _of(findings, "pool image").text
    with pytest.raises(UnavailableError, match="is on the node's root file system"):
        preflight.require(findings)

    beside = make(pools=[*alone.pools, parse("fake,size=1Gi")])
    preflight.require(preflight.check(beside))  # its disk may come, the other pool is served meanwhile
    driver = preflight.make(beside)
    assert driver.openings is not None
    await driver.openings.open()
    await driver.openings.close()
    assert "mount its disk" in driver.openings.why("image")
    assert driver.openings.why("fake") == ""
    assert not Path("/nowhere-yet").exists()


@pytest.mark.real
def test_a_pool_on_the_nodes_own_disk_is_warned_of(
    make: Make, real_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    findings = preflight.check(make("image:/nowhere-yet/pool,size=1Gi"))
    found = _of(findings, "pool image")
    assert (found.warning, found.fault) == (True, None)
    assert "free (keep=), rootfs=yes says that it is meant" in found.text
    preflight.warn(findings)
    assert found.text in caplog.text
    assert not _of(preflight.check(make("image:/nowhere-yet/pool,size=1Gi,rootfs=yes")), "pool image").warning
    assert not Path("/nowhere-yet").exists()


def _link(path: Path) -> None:
    path.symlink_to(path.parent)


def _foreign(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("")


def _other_kind(path: Path) -> None:
    path.mkdir()
    (path / ".tonnage-pool").write_text(
        '{"kind":"btrfs","id":"00000000-0000-0000-0000-000000000000","version":1,"name":""}'
    )


def _damaged(path: Path) -> None:
    path.mkdir()
    (path / ".tonnage-pool").write_text("{")


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (_link, "is a symlink: name the directory itself"),
        (lambda path: path.write_text(""), "is not a directory"),
        (_foreign, "holds files that are not tonnage's ('thesis.txt'): name an empty one"),
        (_other_kind, "belongs to a pool of kind btrfs, not image"),
        (_damaged, ".tonnage-pool cannot be read"),
    ],
)
def test_directories_that_are_no_pools(make: Make, folder: Path, prepare: Callable[[Path], None], text: str) -> None:
    where = folder / "pool"
    prepare(where)

    finding = _of(preflight.check(make(f"image:{where}")), "pool image")
    assert text in finding.text
    assert isinstance(finding.fault, UnavailableError)


def test_real_pools_need_root(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    finding = _of(preflight.check(make(f"image:{folder}/pool")), "pool image")
    assert "takes root: run it as root" in finding.text
    assert isinstance(finding.fault, HostError)


def test_more_is_promised_than_the_disk_has(make: Make, folder: Path) -> None:
    finding = preflight.check(make(f"image:{folder}/pool,size=1Ei"))[-1]

    assert (finding.warning, finding.fault) == (True, None)
    assert "more than it has" in finding.text

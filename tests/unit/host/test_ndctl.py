"""Reading sysfs and ndctl's words. What really happens to memory is tried in tests/vm/guest_pmem.py."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tonnage.base.errors import ExhaustedError, HostError, NotFoundError, PreconditionError
from tonnage.host import ndctl
from tonnage.host.ndctl import Ndctl, PmemNamespace, Region
from tonnage.host.run import CommandError

MI = 1024**2
SOME = UUID("11111111-2222-3333-4444-555555555555")


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """What Linux 6.1 shows of two DIMMs: region0 with labels and four namespaces, region1 without."""
    for number, kind in ((0, 5), (1, 4)):
        write(
            tmp_path / f"region{number}",
            devtype="nd_pmem", size=512 * MI, available_size=256 * MI, max_available_extent=128 * MI, nstype=kind,
            align="0x1000000", set_cookie="0xba90120012b4dc", read_only=0, mapping0=f"nmem{number},0,536870912,0",
        )  # fmt: skip
        write(tmp_path / f"nmem{number}", available_slots=509)
    write(tmp_path / "region2", devtype="nd_volatile", size=MI)
    region = tmp_path / "region0"
    write(region / "namespace0.0", size=64 * MI, uuid=SOME, alt_name="a", mode="memory", holder="pfn0.0")
    write(region / "pfn0.0", size=62 * MI)
    (region / "pfn0.0" / "block" / "pmem0").mkdir(parents=True)
    write(region / "namespace0.1", size=32 * MI, uuid="", alt_name="", mode="safe", holder="btt0.0")
    write(region / "btt0.0", size=30 * MI)
    (region / "btt0.0" / "block" / "pmem0.1s").mkdir(parents=True)
    write(region / "namespace0.2", size=64 * MI, uuid=SOME, alt_name="d", mode="dax", holder="dax0.0")
    write(region / "dax0.0" / "dax0.2", size=62 * MI)
    write(region / "dax0.0", size=62 * MI)
    write(region / "namespace0.3", size=0, uuid="", alt_name="", mode="raw", holder="")
    write(region / "namespace0.4", size=16 * MI, uuid=SOME, alt_name="off", mode="memory", holder="")
    return tmp_path


def test_regions(devices: Path) -> None:
    found = ndctl.regions(devices)
    assert [region.name for region in found] == ["region0", "region1"]
    assert found[0] == Region(
        "region0", 512 * MI, 0xBA90120012B4DC, 16 * MI, 256 * MI, 128 * MI, labelled=True, readonly=False, slots=509
    )
    assert not found[1].labelled
    assert ndctl.region("region1", devices) == found[1]
    for name in ("region2", "region9", "../x"):
        with pytest.raises(NotFoundError):
            ndctl.region(name, devices)


def test_a_region_once_namespaces_are_destroyed(devices: Path) -> None:
    start, align = 0x240000000, 16 * MI
    for name, offset in (("namespace0.0", 0), ("namespace0.1", 64), ("namespace0.2", 256), ("namespace0.4", 320)):
        write(devices / "region0" / name, resource=hex(start + offset * MI))
    hidden = ndctl.region("region0", devices)
    assert not hidden.start
    write(devices / "region0", resource=hex(start), available_size=336 * MI, max_available_extent=176 * MI)
    region, (a, b, d, off) = ndctl.region("region0", devices), ndctl.namespaces("region0", devices)
    assert (region.start, region.align, d.start) == (start, align, start + 256 * MI)

    def left(*gone: PmemNamespace, of: Region = region) -> tuple[int, int, int]:
        found = of.without(gone, [one for one in (off, d, b, a) if one not in gone])
        return found.free // MI, found.largest // MI, found.slots - of.slots

    assert left() == (336, 176, 0)
    assert left(a) == (400, 176, 1), "64 MiB in front"
    assert left(d) == (400, 224, 1), "between b and off, with what was free"
    assert left(d, off) == (416, 416, 2), "all behind b"
    assert left(b, a) == (432, 256, 2)
    assert left(a, b, d, off) == (512, 512, 4)
    assert left(a, d, of=hidden) == (384, 128, 2), "without addresses at least the largest of them"


def test_a_machine_without_persistent_memory(tmp_path: Path) -> None:
    assert ndctl.regions(tmp_path / "nothing") == []
    with pytest.raises(HostError, match="region0"):
        ndctl.namespaces("region0", tmp_path)


def test_namespaces(devices: Path) -> None:
    assert ndctl.namespaces("region0", devices) == [
        PmemNamespace("namespace0.0", "region0", SOME, "a", 64 * MI, "fsdax", "/dev/pmem0", 62 * MI),
        PmemNamespace("namespace0.1", "region0", None, "", 32 * MI, "sector", "/dev/pmem0.1s", 30 * MI),
        PmemNamespace("namespace0.2", "region0", SOME, "d", 64 * MI, "devdax", "/dev/dax0.2", 62 * MI),
        PmemNamespace("namespace0.4", "region0", SOME, "off", 16 * MI, "fsdax"),
    ]


def test_a_namespace_is_found_by_its_uuid(devices: Path) -> None:
    write(devices / "region0" / "namespace0.0", uuid="22222222-2222-3333-4444-555555555555")
    found = ndctl.find("region0", UUID("22222222-2222-3333-4444-555555555555"), devices)
    assert found is not None
    assert (found.name, found.device) == ("namespace0.0", "/dev/pmem0")
    assert ndctl.find("region1", SOME, devices) is None
    with pytest.raises(HostError, match="region9"):
        ndctl.find("region9", SOME, devices)


def answer(monkeypatch: pytest.MonkeyPatch, said: str | CommandError) -> list[list[str]]:
    """Stand in for ndctl, where only its words matter; what it was asked."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> str:
        asked.append(command)
        if isinstance(said, CommandError):
            raise said
        return said

    monkeypatch.setattr(ndctl, "run", run)
    return asked


def test_an_answer_that_is_not_understood_is_an_error(monkeypatch: pytest.MonkeyPatch, devices: Path) -> None:
    monkeypatch.setattr(ndctl, "DEVICES", devices)
    for said in ("", "[]", "{}", "garbage", '{"dev": "namespace0.1"}'):
        answer(monkeypatch, said)
        with pytest.raises(HostError, match="create-namespace"):
            Ndctl().create("region0", mode="fsdax", size=64 * MI, uuid=SOME, label="a")


def test_what_is_asked_of_ndctl(monkeypatch: pytest.MonkeyPatch, devices: Path) -> None:
    monkeypatch.setattr(ndctl, "DEVICES", devices)
    asked = answer(monkeypatch, '{"dev": "namespace0.0", "other": 1}')
    made = Ndctl().create("region0", mode="fsdax", size=64 * MI, uuid=SOME, label="a")
    assert made.device == "/dev/pmem0"
    words = "create-namespace --region region0 --mode fsdax --size 67108864"
    assert asked == [["ndctl", *words.split(), "--uuid", str(SOME), "--name", "a"]]
    Ndctl().destroy("namespace9.9")
    assert len(asked) == 1, "one that is gone needs no command"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("failed to create namespace: No space left on device", ExhaustedError),
        ("error destroying namespaces: Device or resource busy", PreconditionError),
        ("  Error: namespace0.0: failed to enable", HostError),
    ],
)
def test_errors_by_what_ndctl_says(monkeypatch: pytest.MonkeyPatch, said: str, error: type[Exception]) -> None:
    answer(monkeypatch, CommandError(["ndctl"], "exit code 1", code=1, stderr=said))
    with pytest.raises(error, match="ndctl create-namespace") as raised:
        Ndctl().create("region0", mode="fsdax", size=64 * MI, uuid=SOME, label="a")
    assert type(raised.value) is error

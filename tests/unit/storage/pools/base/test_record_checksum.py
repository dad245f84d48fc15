"""Records, jobs and markers: what was changed since it was written is damage, whatever bit it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from tonnage.base.errors import UnavailableError
from tonnage.storage.pools.base.record import VolumeRecord, checksum, seal, unseal
from tonnage.storage.pools.core.wipe import EraseJob
from tonnage.storage.pools.directory.directory import MARKER, Directory, Marker, read_marker
from tonnage.storage.pools.directory.erase_queue import _Entry
from tonnage.storage.pools.lvm.tags import TagEntry, TagKind, decode, encode, is_ours
from tonnage.storage.pools.static.records import DiskRecord

UUID_ = UUID("0b1c3cf0-3a5f-4a2b-8a7e-1d2e3f4a5b6c")
RECORD = VolumeRecord(
    "v", 4096, UUID_, length=8192, fstype="ext4", state="formatted", parameters={"erase": "zero"},
    owner={"claim": "default/x"}, created=12.5, mutable={"iops": "5"},
)  # fmt: skip
JOB = EraseJob("d1", "v", "zero", 8192, reserved=4096, done=512)
TEXTS: dict[str, msgspec.Struct] = {
    "record": RECORD,
    "record, new": replace(RECORD, state="new", parameters={}, owner={}, mutable={}),
    "disk's record": DiskRecord("d1", "wwid=1", volume=RECORD),
    "disk's job": DiskRecord("d1", "wwid=1", job=JOB),
    "job": JOB,
    "job with content": _Entry("d1", "v", "zero", 8192, volume=UUID_),
}


def flips(text: bytes) -> Iterator[bytes]:
    """All texts with one bit flipped, and all that are cut off."""
    for at in range(len(text)):
        for bit in range(8):
            yield text[:at] + bytes([text[at] ^ 1 << bit]) + text[at + 1 :]
        yield text[:at]


@pytest.mark.parametrize("what", TEXTS)
def test_every_flipped_bit_and_every_truncation_is_damage(what: str) -> None:
    value = TEXTS[what]
    text = seal(value)
    assert unseal(text, type(value)) == value
    for damaged in flips(text):
        with pytest.raises(ValueError, match=r"^it"):
            unseal(damaged, type(value))


def test_every_flipped_bit_and_every_truncation_of_a_marker_is_damage() -> None:
    text = seal(Marker("image", UUID_, name="p")).ljust(512)
    assert read_marker(text).name == "p"
    for damaged in flips(text):
        with pytest.raises(ValueError, match=r"^it"):
            read_marker(damaged)


def test_every_flipped_bit_of_a_tag_is_damage() -> None:
    """LVM's own metadata have a checksum too; a person's lvchange has none."""
    tags = encode(TagEntry(TagKind.VOLUME, RECORD))
    for number, tag in enumerate(tags):
        others = tags[:number] + tags[number + 1 :]
        for damaged in [*flips(tag.encode()), b""]:
            found = [*others, damaged.decode("latin-1")]
            assert is_ours(found)
            with pytest.raises(ValueError, match=r"."):
                decode(found)


@pytest.mark.parametrize("field", VolumeRecord.__struct_fields__)
def test_no_field_has_a_default_when_it_is_read(field: str) -> None:
    """Also in the first format, which has no checksum."""
    plain = msgspec.json.decode(seal(replace(RECORD, version=1)))
    assert unseal(msgspec.json.encode(plain), VolumeRecord).version == 1
    for changed in ({k: v for k, v in plain.items() if k != field}, {**plain, f"{field}x": 1}):
        with pytest.raises(ValueError, match="it"):
            unseal(msgspec.json.encode(changed), VolumeRecord)


def test_the_second_format_cannot_become_the_first() -> None:
    text = seal(RECORD)
    unsealed = msgspec.json.encode(RECORD)
    with pytest.raises(ValueError, match="it has no checksum"):
        unseal(unsealed, VolumeRecord)
    for damaged in (text.replace(b'"version":2', b'"version":1'), text.replace(b'"checksum"', b'"checksun"')):
        with pytest.raises(ValueError, match="it"):
            unseal(damaged, VolumeRecord)
    old = seal(replace(RECORD, version=1))
    with pytest.raises(ValueError, match="it"):  # the first format with a checksum of its own
        unseal(old[:-1] + b',"checksum":"' + checksum(old).encode() + b'"}', VolumeRecord)


def test_of_a_later_tonnage() -> None:
    with pytest.raises(ValueError, match=r"newer tonnage \(format 3\)"):
        unseal(seal(replace(RECORD, version=3)), VolumeRecord)


@pytest.mark.parametrize(
    "change",
    [
        {"created": 1e300}, {"created": -1.0}, {"fstype": ""}, {"block": True}, {"size": 0}, {"length": -1},
        {"made": 2**70}, {"project": -1}, {"state": "old"}, {"parameters": {"erase": "all"}}, {"name": "../v"},
        {"parameters": {"reserve": "much"}}, {"mkfs": "-d /etc"},
    ],
)  # fmt: skip
def test_odd_values_are_damage_of_that_record_only(directory: Directory, change: dict[str, object]) -> None:
    directory.write(replace(RECORD, name="w"))
    for version in (1, 2):
        plain = msgspec.json.decode(seal(replace(RECORD, version=1))) | change | {"version": version}
        text = msgspec.json.encode(plain)
        if version == 2:
            text = text[:-1] + b',"checksum":"' + checksum(text).encode() + b'"}'
        (directory.path / "v.json").write_bytes(text)
        whole, damaged = directory.records()
        assert (list(damaged), list(whole)) == (["v"], ["w"])


ODD: dict[str, Callable[[Path], object]] = {
    "deep": lambda path: path.write_bytes(b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "deep in an unknown field": lambda path: path.write_bytes(
        msgspec.json.encode(replace(RECORD, version=1))[:-1] + b',"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    ),
    "large": lambda path: path.write_bytes(b" " * 2**21),
    "a folder": lambda path: path.mkdir(),
    "a FIFO": lambda path: os.mkfifo(path),
    "a symlink": lambda path: path.symlink_to("/etc/passwd"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_record_stops_nothing(directory: Directory, odd: str) -> None:
    directory.write(replace(RECORD, name="w"))
    ODD[odd](directory.path / "v.json")
    whole, damaged = directory.records()
    assert (list(damaged), list(whole)) == (["v"], ["w"])


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    made = Directory(tmp_path / "pool", "image")
    made.open("p")
    yield made
    made.close()


HARM: dict[str, Callable[[Path], object]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut off": lambda path: os.truncate(path, 100),
    "zeroed": lambda path: path.write_bytes(bytes(512)),
    "flipped": lambda path: path.write_bytes(path.read_bytes().replace(b"image", b"imagd")),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_marker_is_written_anew_from_its_copy(directory: Directory, harm: str) -> None:
    directory.write(RECORD)
    before = (directory.path / MARKER).read_bytes()
    directory.close()
    try:
        os.getxattr(directory.path, "trusted.tonnage.marker")
    except OSError:
        pytest.skip("needs root, and a file system with trusted extended attributes")
    HARM[harm](directory.path / MARKER)
    for kind, name, words in (("btrfs", "p", "belongs to a pool of kind image"), ("image", "q", "named 'p'")):
        with pytest.raises(UnavailableError, match=words):
            Directory(directory.path, kind).open(name)
    directory.open("p")
    assert (directory.path / MARKER).read_bytes() == before
    assert directory.records() == ({RECORD.name: RECORD}, {})


@pytest.mark.parametrize("harm", HARM)
def test_without_a_copy_nobody_guesses_whose_volumes_they_are(directory: Directory, harm: str) -> None:
    directory.write(RECORD)
    directory.close()
    HARM[harm](directory.path / MARKER)
    with suppress(OSError):
        os.removexattr(directory.path, "trusted.tonnage.marker")
    with pytest.raises(UnavailableError, match=r"marker \.tonnage-pool is damaged") as raised:
        directory.open("p")
    line = str(raised.value).partition("write this line to it: ")[2]
    (directory.path / MARKER).write_text(f"{line}\n")
    directory.open("p")
    assert directory.records() == ({RECORD.name: RECORD}, {})


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_marker_of_a_folder_inside_stops_nothing(tmp_path: Path, harm: str) -> None:
    inside = Directory(tmp_path / ".snapshots", "image-snapshots")
    inside.open("p", inside=True)
    inside.write(RECORD)
    inside.close()
    HARM[harm](inside.path / MARKER)
    with suppress(OSError):
        os.removexattr(inside.path, "trusted.tonnage.marker")
    inside.open("p", inside=True)
    assert inside.records() == ({RECORD.name: RECORD}, {})
    inside.close()


def test_a_marker_of_the_first_format_is_upgraded(directory: Directory) -> None:
    directory.close()
    (directory.path / MARKER).write_bytes(seal(Marker("image", UUID_, version=1, name="p")).ljust(512))
    directory.open("p")
    marker = read_marker((directory.path / MARKER).read_bytes())
    assert (marker.id, marker.version) == (UUID_, 2)

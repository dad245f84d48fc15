"""What a class may say about how file systems are made: the tables, and what is rejected by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import InvalidError
from tonnage.storage.pools.base.mkfs_options import read_mkfs_options
from tonnage.storage.pools.base.parameters import NO_MKFS_OPTIONS
from tonnage.storage.pools.fs.formats import EXT4, FORMATS, GI, MI, form_of


@pytest.mark.parametrize(
    ("fstype", "text", "words"),
    [
        ("ext4", "-i 8192", [("-i", "8192")]),
        ("ext4", "-i8192 -I512", [("-i", "8192"), ("-I", "512")]),
        ("ext4", "-O ^has_journal,large_dir", [("-O", "^has_journal,large_dir")]),
        ("ext4", "-E 'lazy_itable_init=0,stripe_width=64'", [("-E", "lazy_itable_init=0,stripe_width=64")]),
        ("xfs", "-m reflink=0,crc=1 -n size=65536", [("-m", "reflink=0,crc=1"), ("-n", "size=65536")]),
        ("btrfs", "--nodesize=16k --csum xxhash", [("-n", "16k"), ("--checksum", "xxhash")]),
        ("btrfs", "-O no-holes,^extref", [("-O", "no-holes,^extref")]),
    ],
)
def test_what_is_let_through(fstype: str, text: str, words: list[tuple[str, str]]) -> None:
    assert list(read_mkfs_options(fstype, text).words) == words


def test_nothing_said_is_the_pools_choice() -> None:
    assert read_mkfs_options("ext4", "") is NO_MKFS_OPTIONS
    assert form_of("ext4") is EXT4


@pytest.mark.parametrize(
    ("fstype", "text", "fault"),
    [
        ("ext4", "-L precious", "'-L' is not for ext4 here, want -i, -I"),
        ("ext4", "-U clear", "'-U' is not"),
        ("ext4", "-m 5", "'-m' is not"),
        ("ext4", "-b 1024", "'-b' is not"),
        ("ext4", "-F", "'-F' is not"),
        ("ext4", "-d /etc", "'-d' is not"),
        ("ext4", "/dev/sda", "'/dev/sda' is no option"),
        ("ext4", "-i 4096 1000", "'1000' is no option"),
        ("ext4", "-i", "-i lacks its value"),
        ("ext4", "-i 1024", "-i 1024: -i takes bytes for each inode"),
        ("ext4", "-i 0x1000", "takes bytes"),
        ("ext4", "-i \u0664\u0660\u0669\u0666", "takes bytes"),
        ("ext4", "-I 128", "-I takes bytes of an inode"),
        ("ext4", "-i 4096 -N 100", "say the same thing"),
        ("ext4", "-i 4096 -i 8192", "-i is there twice"),
        ("ext4", "-O bigalloc", "-O bigalloc: -O takes"),
        ("ext4", "-O large_dir,,verity", "-O takes"),
        ("ext4", "-E resize=1000000", "-E resize=1000000: -E takes"),
        ("ext4", "-E offset=4096", "-E takes"),
        ("ext4", "-E root_owner=1000:1000", "-E takes"),
        ("ext4", "-E lazy_itable_init", "-E takes"),
        ("ext4", "-i '4096", "No closing quotation"),
        ("ext4", "-i 4096\n-L x", "printable"),
        ("ext4", "-i 4096 " * 100, "at most 512"),
        ("xfs", "-d size=1g", "'-d' is not for xfs"),
        ("xfs", "-m uuid=00000000-0000-0000-0000-000000000000", "-m takes"),
        ("xfs", "-m crc=0", "-m crc=0: -m takes"),
        ("xfs", "-m rmapbt=1", "-m takes"),
        ("xfs", "-i size=300", "-i takes"),
        ("btrfs", "-d raid1", "'-d' is not for btrfs"),
        ("btrfs", "--nodesize 5000", "-n takes"),
        ("btrfs", "--nodesize=", "-n takes"),
        ("btrfs", "--label=x", "'--label' is not"),
        ("btrfs", "--rootdir /etc", "'--rootdir' is not"),
        ("btrfs", "-O zoned", "-O takes"),
    ],
)
def test_what_is_rejected(fstype: str, text: str, fault: str) -> None:
    with pytest.raises(InvalidError, match="parameter mkfsOptions") as rejected:
        form_of(fstype, text)
    assert fault in str(rejected.value)


@given(st.sampled_from(sorted(FORMATS)), st.text(alphabet="-iINOEmn=,4096k^/ '\"\\", max_size=30))
def test_whatever_is_written_is_understood_or_rejected(fstype: str, text: str) -> None:
    try:
        options = read_mkfs_options(fstype, text)
    except InvalidError:
        return
    for name, value in options.words:
        assert name.startswith("-")
        assert not value.startswith(("-", "/"))


def test_the_smallest_volume_follows_from_the_options() -> None:
    assert form_of("ext4", "-N 100000").least == 100000 * 4096
    assert form_of("btrfs", "-n 64k").least == 256 * MI
    assert form_of("btrfs", "-n 4k").least == FORMATS["btrfs"].least


def test_more_inodes_take_a_longer_image() -> None:
    lengths = [form_of("ext4", options).length(GI) for options in ("-i 1048576", "", "-i 4096", "-i 4096 -I 1024")]
    assert lengths == sorted(set(lengths))

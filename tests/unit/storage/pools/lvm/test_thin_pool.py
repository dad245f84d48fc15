"""How a thin pool that is ahead of LVM is recognised and LVM's metadata are changed; done in tests/vm/guest_lvm_stale.py."""

from __future__ import annotations

import pytest

from tonnage.base.errors import HostError
from tonnage.storage.pools.lvm import thin_pool

POOL = """\
\t\tpool {{
\t\t\tid = "2DbBwE-A0i2-yhtr-2JiB-5OVC-n6Cu-PRgF2q"
\t\t\tsegment_count = 1

\t\t\tsegment1 {{
\t\t\t\ttype = "{type}"
\t\t\t\tmetadata = "pool_tmeta"
\t\t\t\ttransaction_id = {transaction}
\t\t\t\tzero_new_blocks = 1{more}
\t\t\t}}
\t\t}}
"""
VOLUME = """\
\t\t{name} {{
\t\t\tsegment1 {{
\t\t\t\ttype = "thin"
\t\t\t\tthin_pool = "pool"
\t\t\t\ttransaction_id = {transaction}
\t\t\t\tdevice_id = 1
\t\t\t}}
\t\t}}
"""


def metadata(transaction: int, *, kind: str = "thin-pool", more: str = "") -> str:
    """As vgcfgbackup writes them, with a pool between two volumes."""
    parts = VOLUME.format(name="a", transaction=7), VOLUME.format(name="poolb", transaction=7)
    pool = POOL.format(transaction=transaction, type=kind, more=more)
    return f"vg0 {{\n\tlogical_volumes {{\n\n{parts[0]}\n{pool}\n{parts[1]}\t}}\n}}\n"


def test_only_the_pool_s_own_transaction_changes() -> None:
    assert thin_pool.following(metadata(7), "pool", before=7) == metadata(8)


@pytest.mark.parametrize(
    ("text", "pool"),
    [
        (metadata(6), "pool"),
        (metadata(77), "pool"),
        (metadata(7), "other"),
        (metadata(7), "a"),
        (metadata(7, kind="linear"), "pool"),
        (metadata(7, more='\n\t\t\t\tmessage1 {\n\t\t\t\t\tcreate = "b"\n\t\t\t\t}'), "pool"),
        ("", "pool"),
    ],
)
def test_metadata_that_are_not_as_expected_are_left_alone(text: str, pool: str) -> None:
    with pytest.raises(HostError, match="by hand"):
        thin_pool.following(text, pool, before=7)


@pytest.mark.parametrize(
    "said",
    [
        "Volume group vg0 not found",
        "Thin pool vg0-pool-tpool (254:2) transaction_id is 3, while expected 1.",
        "Thin pool vg0-pool-tpool (254:2) transaction_id is 1, while expected 2.",
        "Thin pool vg0-pool-tpool (254:2) transaction_id is 2, while expected 2.",
    ],
)
def test_nothing_is_done_about_other_failures(said: str) -> None:
    assert not thin_pool.catch_up("no-such-group", "pool", said)

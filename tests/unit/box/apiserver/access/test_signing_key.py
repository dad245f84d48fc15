"""The key of a cluster: made once, private, and never replaced when it is damaged."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tonnage.base.errors import HostError
from tonnage_box.apiserver.access.signing_key import SigningKey


async def test_it_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert not SigningKey(path).is_made
    first = await SigningKey(path).pair()
    assert SigningKey(path).is_made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = await SigningKey(path).pair()
    assert again.identifier == first.identifier
    assert again.verify(b"data", first.sign(b"data"))
    assert not again.verify(b"other", first.sign(b"data"))
    assert not again.verify(b"data", b"short")


@pytest.mark.parametrize("damage", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
async def test_a_damaged_key_is_an_error_and_stays(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(damage)
    with pytest.raises(HostError, match="remove it"):
        await SigningKey(path).pair()
    assert path.read_bytes() == damage

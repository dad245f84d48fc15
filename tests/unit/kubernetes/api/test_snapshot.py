"""VolumeSnapshotContents: the id of a snapshot."""

from __future__ import annotations

import pytest

from tonnage.kubernetes.api.decode import decode
from tonnage.kubernetes.api.snapshot import VolumeSnapshotContent


@pytest.mark.parametrize(
    ("text", "handle"),
    [
        (b'{"status": {"snapshotHandle": "made"}, "spec": {"source": {"snapshotHandle": "given"}}}', "made"),
        (b'{"spec": {"source": {"snapshotHandle": "given"}}}', "given"),
        (b'{"spec": {"source": {"volumeHandle": "v"}}}', ""),
    ],
)
def test_the_id_is_the_made_ones_or_the_given_ones(text: bytes, handle: str) -> None:
    assert decode(text, VolumeSnapshotContent).handle == handle

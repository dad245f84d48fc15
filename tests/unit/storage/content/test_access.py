"""What a node allows, and how far a filling is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import BusyError, InvalidError, OutOfRangeError, UnavailableError
from tonnage.storage.content.access import ContentAccess, Progress, StoppedError, is_final, pause
from tonnage.storage.content.hosts import FetchPolicy, parse_host
from tonnage.storage.content.spec import ContentSpec, FolderSpec, ImageSpec, S3Spec, UrlSpec

HEX = "0" * 64
GI = 1 << 30


def test_progress_is_shown_in_one_unit() -> None:
    progress = Progress("x")
    assert str(progress) == "from x"
    progress.add(12 * GI)
    assert str(progress) == "12 GiB from x"
    progress.total = 40 * GI
    assert str(progress) == "12 of 40 GiB from x"
    progress.halt()
    with pytest.raises(StoppedError):
        progress.add(1)
    with pytest.raises(StoppedError):
        pause(progress, 60)


def test_nothing_is_allowed_unless_it_is_said() -> None:
    contents: list[ContentSpec] = [
        ImageSpec("a"),
        UrlSpec("https://h/x", HEX),
        S3Spec("https://h", "buk", "k"),
        FolderSpec("m"),
    ]
    for content in contents:
        with pytest.raises(InvalidError):
            ContentAccess().check(content)
    access = ContentAccess(FetchPolicy((parse_host("h"),)), (Path("/s"),), (Path("/a/m"),))
    for content in contents:
        access.check(content)


def test_what_may_pass_is_not_final() -> None:
    assert is_final(InvalidError("x"))
    assert is_final(OutOfRangeError("x"))
    assert not is_final(UnavailableError("x"))
    assert not is_final(BusyError("x"))

"""Errors of the kernel, wrapped for people."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tonnage.base.errors import HostError, NotFoundError, UnavailableError, host_errors, ignore_errno


def test_an_oserror_is_wrapped_with_the_kernels_words(tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught, host_errors("cannot open it"):
        os.open(tmp_path / "missing", os.O_RDONLY)
    assert str(caught.value) == "cannot open it: No such file or directory"
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_advice_follows_and_the_class_is_the_callers(tmp_path: Path) -> None:
    with (
        pytest.raises(UnavailableError) as caught,
        host_errors("pool p", advice="name another one", error=UnavailableError),
    ):
        os.listdir(tmp_path / "missing")
    assert str(caught.value) == "pool p: No such file or directory; name another one"


def test_an_oserror_without_a_number_shows_its_text() -> None:
    with pytest.raises(HostError) as caught, host_errors("cannot read"):
        raise OSError("no number here")
    assert str(caught.value) == "cannot read: no number here"


@pytest.mark.parametrize("other", [NotFoundError("volume v"), ValueError("v"), KeyboardInterrupt()])
def test_other_exceptions_pass_both(other: BaseException) -> None:
    with pytest.raises(type(other)) as caught, host_errors("cannot read"), ignore_errno(errno.ENOENT):
        raise other
    assert caught.value is other


def test_only_the_numbers_that_are_named_are_ignored(tmp_path: Path) -> None:
    passed = []
    with host_errors("cannot read"), ignore_errno(errno.ENOTDIR, errno.ENOENT):
        os.stat(tmp_path / "missing")
        passed.append("not reached")
    with pytest.raises(HostError), host_errors("cannot read"), ignore_errno(errno.ENOTDIR):
        os.stat(tmp_path / "missing")
    assert passed == []

"""Keys of the kernel, for tests of who can reach them."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_CALLS = {"x86_64": (248, 250), "aarch64": (217, 219)}
_USER_KEYRING = -4
_SET_PERMISSION, _UNLINK, _JOIN_SESSION_KEYRING = 5, 9, 1
_ALL = 0x3F3F0000  # to who has it, and to its user
_libc = ctypes.CDLL(None, use_errno=True)

CONTAINER_TRIES = """
import ctypes, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
add, request, keyctl = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[platform.machine()]
buffer = ctypes.create_string_buffer(64)
name = sys.argv[1].encode()
for call in (
    (keyctl, 11, int(sys.argv[2]), buffer, 64),
    (keyctl, 10, -4, b"user", name, 0),
    (keyctl, 0, -3, 0),
    (keyctl, 8, -4, -3),
    (keyctl, 1, b"_uid_ses.0"),
    (request, b"user", name, None, -3),
    (add, b"user", b"mine", b"x", 1, -4),
):
    done = libc.syscall(*call)
    print("failed" if done < 0 else "done", os.strerror(ctypes.get_errno()) if done < 0 else buffer.value)
"""
"""A program that tries, with the name and number of a key as arguments, to reach it."""


def needs_keys() -> None:
    """Skip the test where there are none."""
    if platform.machine() not in _CALLS or not os.path.exists("/proc/keys") or os.geteuid() != 0:
        pytest.skip("needs root, a kernel with keys, and x86_64 or arm64")


@contextmanager
def key_of_root(name: str, content: bytes) -> Iterator[int]:
    """A key in root's user keyring, which all processes of root may read; its number."""
    add, keyctl = _CALLS[platform.machine()]
    number = _libc.syscall(add, b"user", name.encode(), content, len(content), _USER_KEYRING)
    assert number > 0, os.strerror(ctypes.get_errno())
    assert _libc.syscall(keyctl, _SET_PERMISSION, number, _ALL) == 0
    try:
        yield number
    finally:
        _libc.syscall(keyctl, _UNLINK, number, _USER_KEYRING)


def session_keyring() -> int:
    """The number of this thread's session keyring."""
    return int(_libc.syscall(_CALLS[platform.machine()][1], 0, -3, 0))

"""What tests use and a machine may lack: only here is it looked for.

Programs of Debian packages, programs that `make programs` builds, and libraries of Python that only some tests use. A
test asks with need(), a module or a parameter with needs(); both skip, with the reason. The lanes unit and agents run
where the machine has none of these programs (scripts/bare.py).
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from cluster import programs as kubernetes
from cluster.gobuild import Missing
from tests.integration.third_party import programs as third_party

KUBECTL, CONTAINERD = "kubectl", ("containerd", "ctr")
LIBRARIES = ("kopf", "kr8s")


def find(name: str) -> Path:
    """The program. Raises Missing, which says what brings it; KeyError where nobody knows a package with it."""
    if name == KUBECTL:
        return kubernetes.kubectl()
    if name in CONTAINERD and (built := kubernetes.folder() / name).exists():
        return built
    if name in (*third_party.NAMES, *third_party.VELERO):
        return third_party.find(name)
    return kubernetes.debian(name)


def absent(*names: str) -> str:
    """Why some of these programs and libraries cannot be had here, "" where all are there."""
    return "; ".join(dict.fromkeys(filter(None, map(_absent, names))))


def _absent(name: str) -> str:
    if name in LIBRARIES:
        return "" if find_spec(name) else f"needs {name} (make setup)"
    try:
        find(name)
    except Missing as reason:
        return str(reason)
    return ""


def need(*names: str) -> None:
    """Skip the test where one of them is not there."""
    if reason := absent(*names):
        pytest.skip(reason)


def found(name: str) -> Path:
    """The program; skips the test where it is not there."""
    need(name)
    return find(name)


def needs(*names: str) -> pytest.MarkDecorator:
    """The mark that skips where one of them is not there."""
    reason = absent(*names)
    return pytest.mark.skipif(bool(reason), reason=reason)


def _containers() -> pytest.MarkDecorator:
    reason = absent("bwrap") if os.geteuid() == 0 else "needs root: containers"
    return pytest.mark.skipif(bool(reason), reason=reason)


needs_containers = _containers()
"""The mark of tests with real containers."""

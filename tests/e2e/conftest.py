"""A real control plane for tests: etcd, kube-apiserver, kube-controller-manager and kube-scheduler of a current release.

`control_plane` is one for the whole session, without nodes: take namespaces and names of your own in it. `installed` is
the same with the objects of `tonnage manifests` in it, its policies at work. Where its programs are not built,
its tests are skipped with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster import programs
from cluster.__main__ import down, up
from deploy.image import debian
from deploy.image.build import build
from tests.e2e.control_plane import ControlPlane, helm_program, install, release

from tonnage.tools.ops.install.options import IMAGE, parse_version

if TYPE_CHECKING:
    from tests.e2e.machines import Machines


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the storms of test_two_volume_storm.py are repeated."""
    group = parser.getgroup("tonnage")
    group.addoption("--storms", type=int, default=1, help="storms in a row, of each kind (default %(default)s)")
    group.addoption("--before", metavar="FOLDER", help="an earlier commit's checkout, from which to upgrade")
    group.addoption("--storm-seed", type=int, default=1, help="seed of the delays of writes (default %(default)s)")


@pytest.hookimpl(tryfirst=True)  # before items are chosen by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what the chosen release does not have yet: marker `since`. Mark what needs real kubelets."""
    for item in items:
        if "machines" in getattr(item, "fixturenames", ()):
            item.add_marker("kubelets")
        for mark in item.iter_markers("since"):
            if release() < parse_version(mark.args[0]):
                item.add_marker(pytest.mark.skip(f"needs Kubernetes {mark.args[0]}, this is {programs.version()}"))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this session, without nodes."""
    folder = tmp_path_factory.mktemp("control-plane")
    try:
        kubectl = programs.kubectl()
        found = up(folder, 0)
    except programs.Missing as reason:
        pytest.skip(f"no real Kubernetes: {reason}")
    try:
        yield ControlPlane(folder, Path(str(found["kubeconfig"])), str(found["server"]), kubectl)
    finally:
        down(folder)


@pytest.fixture(scope="session")
def installed(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with tonnage's objects, as soon as the policies are at work."""
    return install(control_plane)


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """A cluster of two nodes with real kubelets, tonnage installed on them from our own image; for the whole session.

    Its control plane is not `control_plane`.
    """
    from tests.e2e.machines import Machines

    if os.geteuid() != 0:
        pytest.skip("needs root: kubelets and containers")
    folder = tmp_path_factory.mktemp("machines")
    try:
        kubectl = programs.kubectl()
        image = build(folder / "tonnage.tar", IMAGE)
        found = up(folder / "cluster", 2, images=[image.file])
    except (programs.Missing, debian.Missing) as reason:
        pytest.skip(f"no real Kubernetes: {reason}")
    try:
        plane = ControlPlane(folder / "cluster", Path(str(found["kubeconfig"])), str(found["server"]), kubectl)
        made = Machines(plane, ("node-1", "node-2"))
        made.install(helm_program())
        yield made
    finally:
        down(folder / "cluster")
        image.file.unlink()

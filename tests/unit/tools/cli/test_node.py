"""The command line of `tonnage node`, and which cluster a verb means."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.errors import InvalidError, NotFoundError
from tonnage.host import mount
from tonnage.host.run import run as host_run
from tonnage.node.config.declared_pools import DeclaredPool
from tonnage.storage.pools.setup_plan import PoolSetupPlan, Step
from tonnage.tools.cli import node
from tonnage.tools.cli.main import build_parser

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_NAME", "POD_NAMESPACE", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def _parsed(*arguments: object) -> argparse.Namespace:
    return build_parser("node").parse_args(["node", *map(str, arguments)])


def test_the_command_line_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("bind: controller\nscope: all\npools: [{kind: fake, name: b, size: 1Gi}]\n")
    config = node.configured(_parsed("--config", file, "--pool", "fake,name=a,size=1Gi", "--scope", "label"))
    assert [pool.name for pool in config.driver.pools] == ["a", "b"]
    assert (config.agent.binding, config.agent.scope) == ("controller", "label")


def test_the_environment_names_node_and_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "n1")
    monkeypatch.setenv("POD_NAMESPACE", "storage")
    config = node.configured(_parsed("--pool", "fake,size=1Gi"))
    assert (config.driver.node_name, config.agent.node_name, config.agent.namespace) == ("n1", "n1", "storage")


def test_without_pools() -> None:
    with pytest.raises(InvalidError, match="no pools: name at least one"):
        node.configured(_parsed())


def test_check_shows_faults_and_starts_nothing(tonnage: Run, tmp_path: Path) -> None:
    shown = tonnage("node", "--check", "--kubelet", tmp_path, "--pool", "fake,size=1Gi", "--node-name", "n1")
    assert shown.code == 2
    assert f"[FAULT] registry: registry {tmp_path}/plugins_registry does not exist" in shown.out
    assert not list(tmp_path.iterdir())


def test_a_cluster_that_does_not_run(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    node.add_cluster_arguments(parser)
    with pytest.raises(NotFoundError, match=r"no cluster runs in .*: name another with --data or --kubeconfig"):
        node.cluster_of(parser.parse_args(["--data", str(tmp_path / "none")]))


def test_check_shows_the_commands_for_declared_pools_and_runs_none(
    tonnage: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step(("mkfs.xfs", "-q", "/dev/sdx"), "make the xfs")
    monkeypatch.setattr(DeclaredPool, "plan", lambda self: PoolSetupPlan((step,)))
    (tmp_path / "plugins_registry").mkdir()
    file = tmp_path / "node.yaml"
    where = tmp_path / "fast"
    file.write_text(
        f"kubelet: {tmp_path}\nnodeName: n1\npools: [{{kind: image, path: {where}, name: fast, rootfs: true}}]\n"
        "declare: [{pool: fast, devices: [/dev/sdx]}]\n"
    )
    shown = tonnage("node", "--check", "--config", file)
    assert "[missing] declared pool fast on /dev/sdx: mkfs.xfs -q /dev/sdx" in shown.out
    assert (shown.code, where.exists()) == (2, False)
    shown = tonnage("node", "--check", "--config", file, "--make-pools")
    assert "[will run] declared pool fast on /dev/sdx: mkfs.xfs -q /dev/sdx" in shown.out
    started = tonnage("node", "--config", file)
    assert started.code == 3
    assert "declared, but not made: mkfs.xfs -q /dev/sdx; set makePools: true" in started.error


def test_an_unknown_field_of_a_declared_pool_is_named(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("pools: [{kind: fake, size: 1Gi}]\ndeclare: [{pool: fake, devices: [/dev/sdx], wipe: true}]\n")
    with pytest.raises(InvalidError, match=r"declare\[0\]: .*wipe"):
        node.configured(_parsed("--config", file))


@pytest.mark.real
def test_a_start_makes_the_declared_pool_and_serves_it(tonnage: Run, real_folder: Path) -> None:
    """Without an API server: the pool is made and mounted, the socket listens, and a check finds nothing to make."""
    disk, where, file = real_folder / "disk", real_folder / "fast", real_folder / "node.yaml"
    disk.touch()
    os.truncate(disk, 400 << 20)
    device = host_run(["losetup", "--find", "--show", str(disk)]).strip()
    (real_folder / "plugins_registry").mkdir()
    file.write_text(
        f"kubelet: {real_folder}\nnodeName: n1\nmakePools: true\npools: [{{kind: image, path: {where}, name: fast}}]\n"
        f"declare: [{{pool: fast, devices: [{device}]}}]\n"
    )
    kubeconfig = real_folder / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {token: none}}]}"
    )
    command = [sys.executable, "-m", "tonnage", "node", "--config", str(file), "--kubeconfig", str(kubeconfig)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not list((real_folder / "plugins").glob("*/csi.sock")):
            assert process.poll() is None
            assert time.monotonic() < deadline, "the driver does not listen"
            time.sleep(0.05)
        assert [entry.source for entry in mount.mounts() if entry.target == str(where)] == [device]
        assert list(where.glob(".tonnage*")), "the pool's own folder is on the device"
        process.terminate()
        said = process.communicate(timeout=60)[0]
        assert f"pool fast on {device}: done: mkfs.xfs " in said
        shown = tonnage("node", "--check", "--config", file)
        assert "declared" not in shown.out
        assert shown.code == 0, shown.out
    finally:
        process.kill()
        process.wait()
        host_run(["umount", "--lazy", str(where)])
        host_run(["losetup", "--detach", device])

"""Built-in volumes: which keys become which files, and which paths of the machine may be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.base.errors import HostError, InvalidError, NotFoundError, UnsupportedError
from tonnage.kubernetes.api.kinds import CONFIG_MAPS
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.pods import ConfigMapVolumeSource, EmptyDirVolumeSource, KeyToPath, Pod, Volume
from tonnage.kubernetes.client.client import Client
from tonnage_box.kubelet.containers.paths import Paths
from tonnage_box.kubelet.volumes.builtin_volumes import FileVolumes, host_path, pick
from tonnage_box.kubelet.volumes.sources import NodeFields, ObjectSources

POD = Pod(metadata=ObjectMeta(name="p", namespace="default", uid="u"))


async def test_volumes_are_made_and_removed_with_what_is_in_them(kube: Client, tmp_path: Path) -> None:
    await kube.create(CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {"k": "v"}}, "default")
    files = FileVolumes(Paths(tmp_path), ObjectSources(kube, NodeFields("n", "127.0.0.1", {})))
    empty = await files.mount(POD, Volume(name="e", empty_dir=EmptyDirVolumeSource()))
    Path(empty, "data").write_text("x")
    assert os.stat(empty).st_mode & 0o777 == 0o777
    source = ConfigMapVolumeSource(name="c")
    made = await files.mount(POD, Volume(name="c", config_map=source))
    assert Path(made, "k").read_text() == "v"
    with pytest.raises(NotFoundError, match='configmap "none" not found'):
        await files.mount(POD, Volume(name="d", config_map=ConfigMapVolumeSource(name="none")))
    with pytest.raises(UnsupportedError, match="medium 'Disk'"):
        await files.mount(POD, Volume(name="f", empty_dir=EmptyDirVolumeSource(medium="Disk")))
    files.remove("u")
    files.remove("u")
    assert not os.path.exists(empty)
    assert not os.path.exists(made)


def test_keys_become_files() -> None:
    keys = {"a": b"1", "b": b"2"}
    assert {name: content.mode for name, content in pick(keys, [], 0o400, optional=False).items()} == {
        "a": 0o400,
        "b": 0o400,
    }
    items = [KeyToPath(key="a", path="x/y", mode=0o600), KeyToPath(key="gone", path="z")]
    assert {name: content.mode for name, content in pick(keys, items, None, optional=True).items()} == {"x/y": 0o600}
    with pytest.raises(NotFoundError, match="non-existent config key: gone"):
        pick(keys, items, None, optional=False)


def test_a_host_path_is_what_its_type_says(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert host_path(str(tmp_path / "anything"), "") == str(tmp_path / "anything")
    assert host_path(str(tmp_path), "Directory") == str(tmp_path)
    assert host_path(str(tmp_path / "new" / "one"), "DirectoryOrCreate") == str(tmp_path / "new" / "one")
    assert host_path(str(tmp_path / "made"), "FileOrCreate") == str(tmp_path / "made")
    assert host_path("/dev/null", "CharDevice") == "/dev/null"
    with pytest.raises(InvalidError, match="is not a directory"):
        host_path(str(tmp_path / "file"), "Directory")
    with pytest.raises(HostError, match="type check failed"):
        host_path(str(tmp_path / "gone"), "File")
    with pytest.raises(UnsupportedError):
        host_path("/", "Whatever")
    for path in ("relative", "/a/../b"):
        with pytest.raises(InvalidError, match="want an absolute path"):
            host_path(path, "")


async def test_the_automatic_token_is_not_written_where_no_container_runs(kube: Client, tmp_path: Path) -> None:
    files = FileVolumes(Paths(tmp_path), ObjectSources(kube, NodeFields("n", "127.0.0.1", {})))
    source = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
    assert not os.path.exists(await files.mount(POD, Volume(name="kube-api-access-x", projected=source)))
    with pytest.raises(NotFoundError, match="failed to fetch token"):
        await files.mount(POD, Volume(name="own", projected=source))

"""The writer of image archives: what is read back, and that nothing but the input is in it."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

from deploy.image.archive import Entry, layer, write
from deploy.image.contents import is_left_out, merged

TREE = {
    "usr/bin/tool": Entry(0o755, b"program"),
    "bin": Entry(0o777, link="usr/bin"),
    "tmp": Entry(0o1777),
}


def read(archive: Path, path: str) -> bytes:
    with tarfile.open(archive) as members:
        file = members.extractfile(path)
        assert file is not None
        return file.read()


def test_layer_has_folders_above_files_and_one_time(tmp_path: Path) -> None:
    file = tmp_path / "layer.tar"
    file.write_bytes(layer(TREE, 1234))
    with tarfile.open(file) as members:
        found = {m.name: m for m in members}
    assert list(found) == ["bin", "tmp", "usr", "usr/bin", "usr/bin/tool"]
    assert {(m.mtime, m.uid, m.gid, m.uname) for m in found.values()} == {(1234, 0, 0, "root")}
    assert (found["bin"].linkname, found["tmp"].mode, found["usr/bin/tool"].mode) == ("usr/bin", 0o1777, 0o755)


def test_descriptors_lead_to_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "image.tar"
    digest = write(file, "example.test/a:1", [layer(TREE, 1)], config={"User": "1"}, time=86400)
    (found,) = json.loads(read(file, "index.json"))["manifests"]
    assert found["digest"] == digest
    assert found["annotations"]["io.containerd.image.name"] == "example.test/a:1"

    def blob(descriptor: dict[str, object]) -> bytes:
        algorithm, _, value = str(descriptor["digest"]).partition(":")
        content = read(file, f"blobs/{algorithm}/{value}")
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (value, descriptor["size"])
        return content

    manifest = json.loads(blob(found))
    config = json.loads(blob(manifest["config"]))
    assert config["rootfs"]["diff_ids"] == [entry["digest"] for entry in manifest["layers"]]
    assert blob(manifest["layers"][0]) == layer(TREE, 1)
    assert (config["created"], config["config"]) == ("1970-01-02T00:00:00Z", {"User": "1"})
    (docker,) = json.loads(read(file, "manifest.json"))
    assert docker["RepoTags"] == ["example.test/a:1"]
    assert read(file, docker["Layers"][0]) == layer(TREE, 1)


def test_same_input_same_bytes(tmp_path: Path) -> None:
    made = []
    for name, tree in (("a", TREE), ("b", dict(reversed(TREE.items())))):
        write(tmp_path / name, "example.test/a:1", [layer(tree, 1)], config={}, time=1)
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]


def test_merged_usr() -> None:
    assert [merged(p) for p in ("bin/sh", "lib64/ld.so", "usr/bin/env", "etc/fstab")] == [
        "usr/bin/sh",
        "usr/lib64/ld.so",
        "usr/bin/env",
        "etc/fstab",
    ]


def test_what_is_left_out() -> None:
    out = (
        "usr/share/doc/lvm2/copyright",
        "usr/lib/python3.11/test/test_os.py",
        "usr/sbin/xfs_scrub",
        "etc/init.d/lvm2",
    )
    kept = ("usr/sbin/lvm", "etc/lvm/lvm.conf", "usr/lib/python3.11/asyncio/tasks.py", "usr/lib/python3.11/testing.py")
    assert all(map(is_left_out, out))
    assert not any(map(is_left_out, kept))

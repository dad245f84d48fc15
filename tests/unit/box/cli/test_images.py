"""`tonnage images`: what it loads, shows and removes, and what it rejects."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.content.server import Files, served
from tests.unit.storage.registry.images import put

from tonnage_box.cli.images import _rounded
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are unpacked with their owners, which needs root")
Run = Callable[..., Any]
LAYER = LayerTar().add("a", b"1" * 2048).data()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An archive, and a layout in a folder."""
    path = tmp_path / "images"
    made.write(path / "layout", made.layout([LAYER, LAYER], name="layout:1"))
    (path / "web.tar").write_bytes(made.archive(made.saved([LAYER], name="web:1")))
    return path


def test_load_list_and_rm(tonnage: Run, folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shown = tonnage("images", "load", folder, "--data", data)
    header, layout, web = shown.out.splitlines()
    assert header.split() == ["IMAGE", "DIGEST", "PLATFORM", "LAYERS", "SIZE", "USES"]
    assert layout.split()[0] == "docker.io/library/layout:1"
    assert web.split()[3:] == ["1", "2Ki", "0"]
    assert tonnage("images", "list", "--data", data).out == shown.out
    listed = json.loads(tonnage("images", "list", "--data", data, "-o", "json").out)["images"]
    assert [image["name"] for image in listed] == ["docker.io/library/layout:1", "docker.io/library/web:1"]
    removed = tonnage("images", "rm", "web:1", "layout:1", "--data", data)
    assert removed.out.splitlines() == ["removed docker.io/library/web:1", "removed docker.io/library/layout:1"]
    assert json.loads(tonnage("images", "list", "--data", data, "-o", "json").out) == {"images": []}


@pytest.mark.parametrize(
    ("size", "shown"), [(0, 0), (1, 1 << 10), (1024, 1 << 10), (10 << 20, 10 << 20), (21804891, 21 << 20)]
)
def test_sizes_are_short_to_read(size: int, shown: int) -> None:
    assert _rounded(size) == shown


def test_a_name_for_one(tonnage: Run, folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shown = tonnage("images", "load", folder / "web.tar", "--name", "my/web", "--store", store, "-o", "yaml")
    assert "name: docker.io/my/web:latest" in shown.out
    rejected = tonnage("images", "load", folder, "--name", "x", "--store", store)
    assert rejected.code == 2
    assert "it is for one archive, 2 are given" in rejected.error


def test_pull_pin_and_prune(tonnage: Run, tmp_path: Path) -> None:
    store, auth = tmp_path / "store", tmp_path / "config.json"
    with served(Files()) as files:
        put(files, "web", "1", LAYER)
        name = f"localhost:{files.port}/web:1"
        entry = {"auth": base64.b64encode(b"me:word").decode()}
        auth.write_text(json.dumps({"auths": {f"localhost:{files.port}": entry}}))
        files.challenge, files.auth = "Basic", f"Basic {entry['auth']}"
        rejected = tonnage("images", "pull", name, "--plain-http", "--store", store)
        assert "it may need a pull secret" in rejected.error
        shown = tonnage("images", "pull", name, "--plain-http", "--auth", auth, "--store", store)
    assert shown.out.splitlines()[1].split()[0] == name
    assert tonnage("images", "prune", "--store", store).out == ""  # it is young
    for path in (store / "images").iterdir():
        os.utime(path, (0, 0))
    assert tonnage("images", "pin", name, "--store", store).out == f"pinned {name}\n"
    assert tonnage("images", "prune", "--store", store).out == ""
    assert "cannot be read" in tonnage("images", "pull", name, "--auth", tmp_path / "none", "--store", store).error


def test_prune_removes_what_was_pulled(tonnage: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with served(Files()) as files:
        put(files, "web", "1", LAYER)
        tonnage("images", "pull", f"localhost:{files.port}/web:1", "--plain-http", "--store", store)
        for path in (store / "images").iterdir():
            os.utime(path, (0, 0))
        removed = tonnage("images", "prune", "--store", store)
        assert removed.out == f"removed localhost:{files.port}/web:1\n"


def test_rejections(tonnage: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    rejected = tonnage("images", "load", tmp_path / "empty", "--data", tmp_path)
    assert "has no image: want files *.tar, or folders with an OCI layout" in rejected.error
    assert "it is not in store" in tonnage("images", "rm", "none", "--store", tmp_path / "new").error
    store = tmp_path / "store"
    tonnage("images", "load", folder / "web.tar", "--store", store)
    assert "give it to `tonnage up --images`" in tonnage("images", "load", store, "--store", store).error
    (folder / "web.tar").write_bytes(b"\0" * 100)
    assert "tar" in tonnage("images", "load", folder / "web.tar", "--store", store).error


@pytest.mark.slow
def test_up_with_a_folder_that_is_not_there(tonnage: Run, tmp_path: Path) -> None:
    options = ("--pool", "fake", "--runtime", "none", "--port", "0", "--data", tmp_path / "data")
    rejected = tonnage("up", "--images", tmp_path / "none", *options)
    assert rejected.code == 4
    assert f"--images {tmp_path}/none: {tmp_path}/none: there is no such file or folder" in rejected.error
    assert not (tmp_path / "data").exists()


def test_a_folder_with_images_may_become_a_box(tonnage: Run, folder: Path, tmp_path: Path) -> None:
    from tonnage_box.data_dir import DataFolder, Settings

    data = tmp_path / "data"
    tonnage("images", "load", folder, "--data", data)
    box = DataFolder(data)
    box.open(Settings())
    box.undo()
    box.close()
    assert len(json.loads(tonnage("images", "list", "--data", data, "-o", "json").out)["images"]) == 2

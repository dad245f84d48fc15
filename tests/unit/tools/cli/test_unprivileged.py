"""What a user without rights is told: one sentence, whatever the verb. No traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tonnage.tools.cli.main import VERBS

_PROGRAM = """
import contextlib, importlib, importlib.metadata, io, json, os, pkgutil, sys, traceback
import tonnage, tonnage_box
from tonnage.tools.cli.main import main
for package in (tonnage, tonnage_box):  # nobody may read the files later
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
told = []
for arguments in json.loads(sys.argv[1]):
    error = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
        try:
            code = main(arguments)
        except BaseException:
            code = -1
            traceback.print_exc()
    told.append([arguments, code, error.getvalue()])
print(json.dumps(told))
"""


@pytest.mark.slow
def test_every_verb_says_in_one_sentence_that_it_may_not(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    inside = str(closed / "inside")
    closed.chmod(0)
    box, fake, kubeconfig = ["--data", inside], ["--pool", "fake,size=1Gi"], ["--kubeconfig", inside]
    lines = [
        ["up", "--pool", "fake", "--runtime", "none", *box],
        ["up", "--pool", "fake", "--runtime", "none", "--detach", *box],
        ["up", *box],
        ["down", *box],
        ["down", "--purge", *box],
        ["pools", *box],
        ["pools", "list", *box],
        *(["pools", "--pool", f"{kind}:{inside}"] for kind in ("image", "btrfs", "quota", "static")),
        ["pools", "--endpoint", f"unix://{inside}/csi.sock"],
        ["pools", "--config", inside],
        ["pools", "init", "lvm:vg0", "/dev/loop0"],
        ["pools", "init", f"btrfs:{inside}", "/dev/loop0", "--yes"],
        ["pools", "extend", f"btrfs:{inside}"],
        ["volumes", "list", *box],
        ["volumes", "orphans", *box],
        ["volumes", "show", "a/b", *box],
        ["volumes", "purge", "a/b", *box],
        ["volumes", "adopt", "a/b", *box],
        ["volumes", "list", "--pool", f"image:{inside}"],
        ["images", "load", inside, *box],
        ["images", "list", *box],
        ["images", "rm", "busybox", *box],
        ["why", "pod", *box],
        ["why", "pod", *kubeconfig],
        ["doctor", *kubeconfig],
        ["driver", "--config", inside],
        ["driver", "--endpoint", f"unix://{inside}", *fake],
        ["driver", "--endpoint", f"unix://{closed}.sock", "--pool", f"image:{inside}"],
        ["cinder", "--config", inside, "--endpoint", f"unix://{inside}"],
        ["node", "--config", inside],
        ["node", "--kubelet", inside, *kubeconfig, *fake],
        ["controller", *kubeconfig],
        ["scheduler", *kubeconfig],
        ["simulate", inside, "--nodes", "1"],
        ["flexvolume", "install", "--dir", inside],
        ["demo"],
    ]
    assert {line[0] for line in lines} == VERBS.keys() - {"manifests"}, (
        "a verb that touches the machine and is not here"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, json.dumps(lines)],
            capture_output=True, text=True, timeout=300, cwd="/", env={**os.environ, "XDG_DATA_HOME": inside},
        )  # fmt: skip
    finally:
        closed.chmod(0o700)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told) == len(lines)
    for arguments, code, error in told:
        assert "Traceback" not in error, f"{arguments}: {error}"
        assert code in (1, 2, 3, 4), f"{arguments}: {code} {error}"
        assert error.count("\n") == 1, f"{arguments}: {error}"
        assert error.startswith(f"tonnage {arguments[0]}: "), error


def test_a_user_who_forgot_sudo_learns_where_the_cluster_of_root_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tonnage: Callable[..., Any]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os.path, "lexists", lambda path: True)
    for verb in ("down", "pools"):
        shown = tonnage(verb, "--data", tmp_path / "none")
        assert "(that of root is in /var/lib/tonnage: repeat with sudo)" in shown.error

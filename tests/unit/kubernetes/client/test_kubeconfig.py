"""Kubeconfig files, exec plugins and service accounts."""

from __future__ import annotations

import shlex
import stat
import sys
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.kubernetes.client import kubeconfig

CONFIG = """
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: c, cluster: {server: "http://127.0.0.1:1/"}}
contexts:
- {name: one, context: {cluster: c, user: u, namespace: team}}
- {name: two, context: {cluster: missing, user: u}}
users:
- {name: u, user: %s}
"""


def write(folder: Path, user: str) -> Path:
    file = folder / "config"
    file.write_text(CONFIG % user)
    return file


async def test_token_and_namespace(tmp_path: Path) -> None:
    access = kubeconfig.load(write(tmp_path, '{token: "abc"}'))

    assert access.server == "http://127.0.0.1:1"
    assert access.namespace == "team"
    assert await access.token() == "abc"


async def test_token_file_is_read_again_after_a_minute(tmp_path: Path) -> None:
    file, now = tmp_path / "token", [0.0]
    file.write_text("one\n")
    token = kubeconfig.FileToken(file, now=lambda: now[0])

    assert await token() == "one"
    file.write_text("two")
    assert await token() == "one"
    now[0] = 61.0
    assert await token() == "two"
    file.unlink()
    now[0] = 200.0
    assert await token() == "two"  # better an old one than none


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "{}")

    with pytest.raises(InvalidError, match="no cluster named 'missing'"):
        kubeconfig.load(file, context="two")
    with pytest.raises(InvalidError, match=r"no context named 'three'; there are \['one', 'two'\]"):
        kubeconfig.load(file, context="three")
    with pytest.raises(InvalidError, match="No such file"):
        kubeconfig.load(tmp_path / "nowhere")
    file.write_text("current-context: [")
    with pytest.raises(InvalidError, match="config"):
        kubeconfig.load(file)


def test_first_existing_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "{}")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/gone:{file}")

    assert kubeconfig.load().namespace == "team"


def plugin(folder: Path, body: str) -> str:
    script, code = folder / "plugin", folder / "plugin.py"
    code.write_text(body)
    script.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(code)])} "$@"\n')  # a path may hold spaces
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return '{exec: {apiVersion: client.authentication.k8s.io/v1, command: "./plugin", args: [x], env: [{name: A, value: b}]}}'


COUNTING = """
import json, os, pathlib, sys
assert os.environ["A"] == "b" and sys.argv[1] == "x" and "ExecCredential" in os.environ["KUBERNETES_EXEC_INFO"]
count = pathlib.Path(__file__).with_name("count")
n = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(n))
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                  "status": {"token": f"t{n}", "expirationTimestamp": EXPIRY}}))
"""


@pytest.mark.parametrize(("expiry", "tokens"), [('"2999-01-01T00:00:00Z"', ["t1", "t1"]), ('"2001-01-01T00:00:00Z"', ["t1", "t2"])])  # fmt: skip
async def test_exec_plugin_is_asked_again_when_its_token_has_run_out(
    tmp_path: Path, expiry: str, tokens: list[str]
) -> None:
    access = kubeconfig.load(write(tmp_path, plugin(tmp_path, COUNTING.replace("EXPIRY", expiry))))

    assert [await access.token(), await access.token()] == tokens


async def test_exec_plugin_that_fails_says_so(tmp_path: Path) -> None:
    access = kubeconfig.load(write(tmp_path, plugin(tmp_path, "import sys; sys.exit('no login')")))

    with pytest.raises(UnavailableError, match="failed with code 1: no login"):
        await access.token()


def test_in_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidError, match="not inside a pod"):
        kubeconfig.in_cluster(tmp_path)

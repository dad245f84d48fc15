"""A real control plane: its programs, and requests to it as the administrator or with a token."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from cluster import programs
from tests.programs import absent, find

from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation, parse_installed_issuer, parse_version

Object = dict[str, Any]
ISSUER = "internal"
"""Of certificates, in `installed`."""
MERGE_PATCH, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"


@dataclass(frozen=True)
class Answer:
    """What the API server said: the HTTP status, the object or the Status, and the Warning headers."""

    status: int
    body: Any
    warnings: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """Of a Status."""
        return str(self.body.get("message", ""))


def changes(claim: Object) -> list[str]:
    """Types of a claim's conditions about a change. `Unused` is of no pod that has it, since Kubernetes 1.37."""
    return [one["type"] for one in claim["status"].get("conditions", ()) if one["type"] != "Unused"]


@dataclass(frozen=True)
class ControlPlane:
    """Its folder, the administrator's kubeconfig, its address, and kubectl's program."""

    folder: Path
    kubeconfig: Path
    server: str
    program: Path

    def try_kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; whatever it says and however it ends is the caller's to judge."""
        return self._run(f"--kubeconfig={self.kubeconfig}", *arguments, stdin=stdin)

    def try_as(self, token: str, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl with a token and nothing else of the administrator's."""
        flags = (f"--server={self.server}", f"--certificate-authority={self.folder}/pki/ca.crt", f"--token={token}")
        return self._run("--kubeconfig=/dev/null", *flags, *arguments, stdin=stdin)

    def write_kubeconfig(self, file: Path, token: str) -> Path:
        """For a program that gets that token and nothing else of the administrator's; the file."""
        cluster = {"server": self.server, "certificate-authority": f"{self.folder}/pki/ca.crt"}
        config: Object = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
        config["clusters"] = [{"name": "x", "cluster": cluster}]
        config["users"] = [{"name": "x", "user": {"token": token}}]
        config["contexts"] = [{"name": "x", "context": {"cluster": "x", "user": "x"}}]
        file.write_text(json.dumps(config))
        return file

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator; its output. It must not fail."""
        ended = self.try_kubectl(*arguments, stdin=stdin)
        assert ended.returncode == 0, f"kubectl {' '.join(arguments)}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Make objects, or change them to what is given."""
        self.kubectl("apply", "-f", "-", stdin=as_list(*objects))

    def create(self, body: Mapping[str, Any]) -> Any:
        """Make an object; what became of it."""
        return json.loads(self.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(body)))

    def get(self, *arguments: str) -> Any:
        """Objects as data."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def until(self, what: str, holds: Callable[[], bool], *, seconds: float = 300) -> None:
        """Wait for something."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not so after {seconds:.0f} s: {what}"
            time.sleep(0.1)

    def send(self, method: str, path: str, body: Any = None, *, token: str = "", content_type: str = "") -> Answer:
        """One request, as the administrator or with a token; whatever the answer is. A list is a JSON patch."""
        context = ssl.create_default_context(cafile=str(self.folder / "pki" / "ca.crt"))
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        else:
            context.load_cert_chain(self.folder / "pki" / "admin.crt", self.folder / "pki" / "admin.key")
        if body is not None:
            patch = JSON_PATCH if isinstance(body, list) else MERGE_PATCH
            headers["Content-Type"] = content_type or (patch if method == "PATCH" else "application/json")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                return Answer(answer.status, json.loads(answer.read()), _warnings(answer.headers))
        except urllib.error.HTTPError as failure:
            with failure:
                return Answer(failure.code, json.loads(failure.read()), _warnings(failure.headers))

    def watched(self, path: str, since: str, *, seconds: int = 2) -> list[Any]:
        """What a watch tells within so many seconds, beginning after a resourceVersion."""
        query = f"watch=true&resourceVersion={since}&timeoutSeconds={seconds}"
        lines = self.kubectl("get", "--raw", f"{path}{'&' if '?' in path else '?'}{query}").splitlines()
        return [json.loads(line) for line in lines]

    def _run(self, *arguments: str, stdin: str | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, f"--cache-dir={self.folder}/kubectl", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            env={**os.environ, "HOME": str(self.folder)},
        )


def _warnings(headers: Message) -> tuple[str, ...]:
    return tuple(headers.get_all("Warning", ()))


def as_list(*objects: Mapping[str, Any]) -> str:
    """Several objects in one text."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def release() -> tuple[int, int]:
    """The Kubernetes that these tests run on (programs.CHOICE)."""
    return parse_version(programs.version())


def install(control_plane: ControlPlane) -> ControlPlane:
    """Make tonnage's objects and wait until the policies are at work."""
    node = {"flexvolume": "/usr/libexec/kubernetes/flex"}
    issuers = [parse_installed_issuer(f"{ISSUER}=internal-ca")]
    text = manifests.render(Installation(kubernetes=release(), node=node, issuers=issuers))
    control_plane.kubectl("apply", "--validate=strict", "-f", "-", stdin=text)
    probe = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "probe", "annotations": {"volume.kubernetes.io/selected-node": "n"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "tonnage-scratch",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }

    def scopes() -> bool:
        made = control_plane.send("POST", "/api/v1/namespaces/default/persistentvolumeclaims?dryRun=All", probe)
        return bool(made.body["metadata"].get("labels"))

    def restrains() -> bool:
        token = control_plane.kubectl("-n", "tonnage-system", "create", "token", "tonnage-node").strip()
        rejected = control_plane.send("DELETE", "/api/v1/persistentvolumes/none", token=token)
        path = "/api/v1/namespaces/default/events?dryRun=All"
        event: Object = {"metadata": {"name": "probe"}, "involvedObject": {"namespace": "default"}}
        event |= {"apiVersion": "v1", "kind": "Event"}
        return rejected.status == 404 and control_plane.send("POST", path, event, token=token).status == 403

    if release() >= manifests.SCOPE_POLICY_SINCE:
        control_plane.until("claims are labelled", scopes)
    control_plane.until("agents are held to their nodes", restrains)
    return control_plane


def helm_program() -> Path | None:
    """The program, None where it cannot be had."""
    return None if absent("helm") else find("helm")

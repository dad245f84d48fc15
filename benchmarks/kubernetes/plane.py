"""A real control plane that writes down each write that it is asked for, with nodes that have no kubelet."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml
from benchmarks.kubernetes.audit import POLICY, Audit
from cluster import programs
from cluster.__main__ import down, up
from cluster.processes import Processes

from tonnage.base.errors import ApiAlreadyExistsError, ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CSI_NODES, NODES, PODS, SERVICE_ACCOUNTS
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport

RAISED = ("--kube-api-qps=1000", "--kube-api-burst=2000")
"""Client limits that do not hold anybody back."""
_NODE_ROOM = {"cpu": "100", "memory": "1Ti", "pods": "1000"}
_TOKEN_SECONDS = 24 * 3600
_WRITERS = 16
NOT_RUN = ("node-lifecycle-controller",)
"""Controllers that planes do without: nobody renews the leases of nodes without kubelets."""


@dataclass(frozen=True)
class Plane:
    """A control plane. client: the administrator's. raised: whether client limits are out of the way."""

    folder: Path
    server: str
    client: Client
    audit: Audit
    raised: bool
    nodes: tuple[str, ...]
    processes: Processes = field(repr=False)

    def pid(self, program: str) -> int:
        """Of a part of the control plane. Raises ProcessLookupError."""
        found = Processes(self.folder / "processes").pid(program)
        if found is None:
            raise ProcessLookupError(program)
        return found

    async def apply(self, documents: str) -> None:
        """Make objects, or change them, as kubectl does. Raises RuntimeError."""
        kubectl = programs.kubectl()
        config = self.folder / "pki" / "admin.kubeconfig"
        process = await asyncio.create_subprocess_exec(
            kubectl, f"--kubeconfig={config}", f"--cache-dir={self.folder}/kubectl", "apply", "--server-side",
            "--validate=strict", "-f", "-",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, errors = await process.communicate(documents.encode())
        if process.returncode:
            raise RuntimeError(f"kubectl apply: {errors.decode()}")

    async def identity(self, namespace: str, account: str, node: str) -> Path:
        """A kubeconfig with the token that a pod of that account would have on that node; the pod is made."""
        pod = f"{account}-{node}"
        body = {
            "metadata": {"name": pod},
            "spec": {
                "nodeName": node,
                "serviceAccountName": account,
                "containers": [{"name": "main", "image": "none.invalid/none"}],
                "tolerations": [{"operator": "Exists"}],
            },
        }
        with suppress(ApiAlreadyExistsError):
            await self.client.create(PODS, body, namespace)
        uid = (await self.client.get(PODS, pod, namespace)).metadata.uid
        reference = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
        spec = {"boundObjectRef": reference, "expirationSeconds": _TOKEN_SECONDS}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = SERVICE_ACCOUNTS.path(namespace, account, "token")
        answer = msgspec.json.decode(await self.client.post(path, request))
        return self._kubeconfig(pod, answer["status"]["token"])

    def _kubeconfig(self, name: str, token: str) -> Path:
        cluster = {"server": self.server, "certificate-authority": str(self.folder / "pki" / "ca.crt")}
        config: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
        config["clusters"] = [{"name": "x", "cluster": cluster}]
        config["users"] = [{"name": "x", "user": {"token": token}}]
        config["contexts"] = [{"name": "x", "context": {"cluster": "x", "user": "x"}}]
        file = self.folder / f"{name}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(json.dumps(config))
        return file


@asynccontextmanager
async def plane(
    *, nodes: int, raised: bool, drivers: Mapping[str, str], not_run: Sequence[str] = NOT_RUN, real: bool = False
) -> AsyncIterator[Plane]:
    """A control plane from its start to its end. drivers: those that each node lists, with their topology keys.

    raised: whether the limits of Kubernetes' own clients are raised. not_run: controllers of the controller manager.
    real: whether the nodes have kubelets, which list drivers themselves.
    Raises cluster.programs.Missing.
    """
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/var/tmp") as name:
        folder = Path(name) / "k"
        audit = Path(name) / "audit"
        (policy := Path(name) / "audit.yaml").write_text(yaml.safe_dump(POLICY))
        try:
            arguments = _arguments(policy, audit, raised=raised, not_run=not_run)
            found = await asyncio.to_thread(up, folder, nodes if real else 0, arguments=arguments)
            client = Client(HttpTransport(kubeconfig.load(str(found["kubeconfig"])), user_agent="benchmark"))
            made = Plane(
                folder, str(found["server"]), client, Audit(audit), raised,
                tuple(f"node-{n}" for n in range(1, nodes + 1)), Processes(Path(name) / "processes"),
            )  # fmt: skip
            try:
                if not real:
                    await _make_nodes(made, drivers)
                yield made
            finally:
                await client.close()
        finally:
            await asyncio.to_thread(down, folder)


def _arguments(policy: Path, audit: Path, *, raised: bool, not_run: Sequence[str]) -> dict[str, Sequence[str]]:
    limits = RAISED if raised else ()
    return {
        "kube-apiserver": [
            f"--audit-policy-file={policy}", f"--audit-log-path={audit}", "--audit-log-mode=batch",
            # A new node would not be ready for pods until the controller that we do not run says so.
            "--disable-admission-plugins=TaintNodesByCondition",
        ],
        "kube-controller-manager": [f"--controllers={','.join(['*', *(f'-{name}' for name in not_run)])}", *limits],
        "kube-scheduler": limits,
    }  # fmt: skip


async def _make_nodes(made: Plane, drivers: Mapping[str, str]) -> None:
    async def one(node: str) -> None:
        async with slots:
            await _make_node(made.client, node, drivers)

    slots = asyncio.Semaphore(_WRITERS)
    async with asyncio.TaskGroup() as tasks:
        for node in made.nodes:
            tasks.create_task(one(node))


async def _make_node(client: Client, node: str, drivers: Mapping[str, str]) -> None:
    labels = dict.fromkeys(drivers.values(), node) | {names.HOSTNAME_LABEL: node}
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"capacity": _NODE_ROOM, "allocatable": _NODE_ROOM, "conditions": conditions}
    uid = (await client.create(NODES, {"metadata": {"name": node, "labels": labels}, "status": status})).metadata.uid
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    listed = [{"name": name, "nodeID": node, "topologyKeys": [key]} for name, key in drivers.items()]
    csi = {"metadata": {"name": node, "ownerReferences": [owner]}, "spec": {"drivers": listed}}
    await client.create(CSI_NODES, csi)


async def forget_pod(client: Client, name: str, namespace: str) -> None:
    """Remove a pod at once. May be repeated."""
    try:
        await client.delete(PODS, name, namespace, grace_seconds=0)
    except ApiNotFoundError:
        return

"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, with their default settings."""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cluster.network import Network
from cluster.pki import Authority
from cluster.processes import Processes, free_port

_READY = 120.0
_GRACE = 60.0


class ControlPlane:
    """One cluster's head below `folder`. programs: the folder of the binaries; arguments: more flags by program."""

    def __init__(
        self,
        folder: Path,
        programs: Path,
        processes: Processes,
        *,
        network: Network,
        arguments: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._folder, self._programs, self._processes = folder, programs, processes
        self._arguments = arguments or {}
        self._network = network
        self.authority = Authority(folder / "pki")
        self.port = free_port()

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> Path:
        """Start everything; the administrator's kubeconfig. Raises Failed."""
        pki = self.authority
        names = (
            "127.0.0.1",
            self._network.service,
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        )
        pki.server("apiserver", "kube-apiserver", names)
        pki.client("admin", "test-admin", "system:masters")
        pki.client("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        for part in ("controller-manager", "scheduler"):
            pki.client(part, f"system:kube-{part}")
            pki.kubeconfig(part, self.server)
        admin = pki.kubeconfig("admin", self.server)
        etcd = self._start_etcd()
        self._start_apiserver(etcd)
        self._start_part("controller-manager", self._controller_manager())
        self._start_part("scheduler", [])
        return admin

    def _run(self, name: str, flags: Sequence[str]) -> None:
        self._processes.start(name, [self._programs / name, *flags, *self._arguments.get(name, ())])

    def _start_etcd(self) -> str:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._run(
            "etcd",
            [
                "--name=test",
                f"--data-dir={self._folder}/etcd",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=test={peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )
        self._processes.wait("etcd", lambda: answers(f"{client}/health"), _READY)
        return client

    def _start_apiserver(self, etcd: str) -> None:
        path = self.authority.path
        self._run(
            "kube-apiserver",
            [
                f"--etcd-servers={etcd}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self.port}",
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
                f"--service-cluster-ip-range={self._network.services}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                f"--client-ca-file={path('ca.crt')}",
                f"--tls-cert-file={path('apiserver.crt')}",
                f"--tls-private-key-file={path('apiserver.key')}",
                f"--kubelet-client-certificate={path('kubelet-client.crt')}",
                f"--kubelet-client-key={path('kubelet-client.key')}",
                f"--kubelet-certificate-authority={path('ca.crt')}",
                "--kubelet-preferred-address-types=InternalIP,Hostname",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={path('accounts.pub')}",
                f"--service-account-signing-key-file={path('accounts.key')}",
                "--profiling=false",
            ],
        )
        self._processes.wait("kube-apiserver", lambda: answers(f"{self.server}/readyz"), _READY)

    def _controller_manager(self) -> list[str]:
        path = self.authority.path
        return [
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={path('accounts.key')}",
            f"--root-ca-file={path('ca.crt')}",
        ]

    def _start_part(self, part: str, flags: Sequence[str]) -> None:
        config, port = self.authority.path(f"{part}.kubeconfig"), free_port()
        name = f"kube-{part}"
        common = [
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--leader-elect=false",
        ]
        self._run(name, [*common, *flags])
        self._processes.wait(name, lambda: answers(f"https://127.0.0.1:{port}/healthz"), _READY)


def answers(url: str) -> bool:
    """Whether a health page says 200. Certificates are not looked at: it is loopback, and only life is asked for."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), urllib.request.urlopen(url, timeout=2, context=context) as answer:
        return bool(answer.status == 200)
    return False

"""A real node on this machine: containerd and a kubelet in a mount and a cgroup namespace of their own.

What they mount, and every cgroup of their pods, stays inside. Of the machine itself only an address on `lo` and a
bridge are used, which stop() takes away. One `sleep` holds the namespaces, so that the parts can be restarted.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import yaml
from cluster import programs
from cluster.network import Network
from cluster.pki import Authority
from cluster.processes import Failed, Processes, until

_READY = 120.0
PLUGINS = "/var/lib/kubelet/volume-plugins"
"""Where FlexVolume drivers are, inside a node."""
_SETUP = Path(__file__).parent / "namespaces.sh"


class Node:
    """Node number `number` (from 1) of a cluster below `folder`. patience: seconds for each of its parts to start."""

    def __init__(
        self,
        folder: Path,
        number: int,
        built: Path,
        processes: Processes,
        network: Network,
        *,
        patience: float = _READY,
    ) -> None:
        self._patience = patience
        self.name = f"node-{number}"
        self.address = network.node(number)
        self._pods, self._bridge = network.pods(number), network.bridge(number)
        self._built, self._processes = built, processes
        self._folder = folder / self.name
        self._flags: tuple[str, ...] = ()
        # Of this cluster alone: a kubelet ends the processes of groups below its own whose pods it does not know.
        self._group = f"tonnage-{network.number}-{number}-{folder.name}"[:60]

    def start(
        self,
        authority: Authority,
        server: str,
        images: Sequence[Path],
        *,
        labels: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """Bring the node up; returns when its kubelet answers. flags: more of the kubelet. Raises Failed, Missing."""
        self._flags = tuple(flags)
        self.issue(authority, server)
        self.run(images, labels=labels)

    def issue(self, authority: Authority, server: str) -> None:
        """Write the certificates of its kubelet beside those of the authority."""
        authority.client(self.name, f"system:node:{self.name}", "system:nodes")
        authority.server(f"{self.name}-serving", f"system:node:{self.name}", (self.address, self.name), "system:nodes")
        authority.kubeconfig(self.name, server)

    def run(self, images: Sequence[Path], *, labels: Mapping[str, str] | None = None) -> None:
        """Bring the node up whose certificates are there. Raises Failed, programs.Missing."""
        for place in ("kubelet", "containerd", "state", "log", "cni", "upper", "work", "sysctl"):
            (self._folder / place).mkdir(parents=True, exist_ok=True)
        _call("ip", "addr", "replace", f"{self.address}/32", "dev", "lo")
        self._hold_namespaces()
        self._start_containerd()
        for image in images:
            self.ctr("images", "import", str(image))
        (self._folder / "resolv.conf").touch()
        (self._folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet()))
        self.start_kubelet(labels=labels)

    def _hold_namespaces(self) -> None:
        for name, value in (("overcommit_memory", 1), ("panic", 10), ("panic_on_oops", 1), ("ip_forward", 1)):
            (self._folder / "sysctl" / name).write_text(f"{value}\n")
        ready = self._folder / "ready"
        ready.unlink(missing_ok=True)
        hold = ["unshare", "--mount", "--cgroup", "--propagation", "private", "bash"]
        self._processes.start(f"{self.name}-namespaces", [*hold, _SETUP, self._folder, self._group])
        self._processes.wait(f"{self.name}-namespaces", ready.exists, self._patience)

    @property
    def holder(self) -> int:
        """The process whose namespaces are the node's. Raises Failed when it is gone."""
        pid = self._processes.pid(f"{self.name}-namespaces")
        if pid is None:
            raise Failed(f"{self.name} does not run")
        return pid

    def enter(self) -> list[str]:
        """The command that runs another one inside the node."""
        return ["nsenter", "--target", str(self.holder), "--mount", "--cgroup"]

    def inside(self, *command: str) -> str:
        """Run a program inside the node; what it printed. Raises Failed."""
        return _call(*self.enter(), *command)

    @property
    def containerd_socket(self) -> str:
        """Where its containerd listens."""
        return f"{self._folder}/containerd.sock"

    def _ctr(self) -> list[str]:
        return ["--address", self.containerd_socket, "--namespace", "k8s.io"]

    def _start_containerd(self) -> None:
        runc = programs.debian("runc")
        plugins = programs.debian("host-local").parent
        (self._folder / "containerd.toml").write_text(_containerd(self._folder, runc, plugins))
        (self._folder / "cni" / "10-bridge.conflist").write_text(self._network())
        command = [*self.enter(), str(self._built / "containerd"), "--config", f"{self._folder}/containerd.toml"]
        path = {"PATH": f"{self._built}:{os.environ['PATH']}"}  # it looks for its shim there
        self._processes.start(f"{self.name}-containerd", command, environment=path)

        def ready() -> bool:
            with suppress(Failed):
                return bool(self.ctr("version"))
            return False

        self._processes.wait(f"{self.name}-containerd", ready, self._patience)

    def _network(self) -> str:
        import json

        bridge = {
            "type": "bridge",
            "bridge": self._bridge,
            "isGateway": True,
            "isDefaultGateway": True,
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "dataDir": f"{self._folder}/ipam",
                "ranges": [[{"subnet": self._pods}]],
            },
        }
        return json.dumps({"cniVersion": "1.0.0", "name": "test", "plugins": [bridge]})

    def start_kubelet(self, *, labels: Mapping[str, str] | None = None) -> None:
        """Start the kubelet, also after it was ended. Raises Failed."""
        more = [f"--node-labels={','.join(f'{k}={v}' for k, v in labels.items())}"] if labels else []
        self._processes.start(
            f"{self.name}-kubelet",
            [
                *self.enter(),
                str(self._built / "kubelet"),
                f"--config={self._folder}/kubelet.yaml",
                f"--kubeconfig={self._pki(f'{self.name}.kubeconfig')}",
                "--root-dir=/var/lib/kubelet",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                *more,
                *self._flags,
            ],
        )
        from cluster.control_plane import answers

        self._processes.wait(
            f"{self.name}-kubelet", lambda: answers(f"http://{self.address}:10248/healthz"), self._patience
        )

    def _pki(self, file: str) -> Path:
        return self._folder.parent / "pki" / file

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "healthzBindAddress": self.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._pki("ca.crt"))},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(self._pki(f"{self.name}-serving.crt")),
            "tlsPrivateKeyFile": str(self._pki(f"{self.name}-serving.key")),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._group}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "containerRuntimeEndpoint": f"unix://{self.containerd_socket}",
            "resolvConf": str(self._folder / "resolv.conf"),
            "syncFrequency": "10s",
            "volumePluginDir": PLUGINS,
            "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }

    def stop_kubelet(self, sign: signal.Signals = signal.SIGTERM) -> None:
        """End the kubelet; its pods go on."""
        self._processes.end(f"{self.name}-kubelet", sign=sign)

    def stop(self) -> None:
        """End the node and all its pods and take away what it left on the machine. May be repeated."""
        self.stop_kubelet()
        with suppress(Failed):
            self._end_containers()
        self._processes.end(f"{self.name}-containerd")
        with suppress(Failed):
            self._end_left_over()
        self._processes.end(f"{self.name}-namespaces", sign=signal.SIGKILL)
        for command in (("ip", "addr", "del", f"{self.address}/32", "dev", "lo"), ("ip", "link", "del", self._bridge)):
            with suppress(Failed):
                _call(*command)
        until(lambda: _removed(self._folder), 10.0)

    def lose(self) -> None:
        """As if its power were gone: the kubelet and all containers end at once, what is on its disk and mounted stays.

        start_kubelet() brings it back. Raises Failed.
        """
        self.stop_kubelet(signal.SIGKILL)
        self._kill_containers()

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own client, for the images and containers of the node's pods. Raises Failed."""
        return self.inside(str(self._built / "ctr"), *self._ctr(), *arguments)

    def _kill_containers(self) -> None:
        for task in self.ctr("tasks", "ls", "--quiet").split():
            with suppress(Failed):
                self.ctr("tasks", "kill", "--signal", "9", task)

    def _end_containers(self) -> None:
        self._kill_containers()
        for task in self.ctr("tasks", "ls", "--quiet").split():
            with suppress(Failed):
                self.ctr("tasks", "rm", "--force", task)

    def _end_left_over(self) -> None:
        """Kill what still runs in the node's cgroups or namespaces (shims, daemons), then remove the cgroups."""
        wanted = os.readlink(f"/proc/{self.holder}/ns/mnt")
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.holder:
                continue
            with suppress(OSError):
                shim = self.containerd_socket.encode() in (entry / "cmdline").read_bytes()
                if shim or os.readlink(entry / "ns" / "mnt") == wanted or self._in_group(entry):
                    os.kill(int(entry.name), signal.SIGKILL)
        remove = f"find /sys/fs/cgroup -depth -type d -path '*/{self._group}*' -exec rmdir {{}} + 2>/dev/null; true"
        until(lambda: not self.inside("sh", "-c", f"{remove}; ls -d /sys/fs/cgroup/*/{self._group} 2>/dev/null"), 10.0)

    def _in_group(self, process: Path) -> bool:
        return f"/{self._group}/" in (process / "cgroup").read_text() + "/"


def _containerd(node: Path, runc: Path, plugins: Path) -> str:
    """containerd's settings: its files below the node's folder, no sysctls, no out-of-memory scores (they take
    CAP_SYS_RESOURCE, which a test machine may lack)."""
    return f"""
version = 3
root = '{node}/containerd'
state = '{node}/state'
disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.internal.v1.opt', 'io.containerd.snapshotter.v1.btrfs',
  'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.zfs',
  'io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.erofs', 'io.containerd.differ.v1.erofs']
[grpc]
  address = '{node}/containerd.sock'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = 'test.local/pause:1'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '{runc}'
      Root = '{node}/runc'
      SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{plugins}']
    conf_dir = '{node}/cni'
[plugins.'io.containerd.grpc.v1.cri']
  disable_tcp_service = true
  stream_server_address = '127.0.0.1'
"""


def _removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _call(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise Failed(f"{' '.join(command)}: {ended.stderr.strip()[-2000:]}")
    return ended.stdout

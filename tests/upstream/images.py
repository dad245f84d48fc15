"""The images that upstream's storage tests run in, made on this machine under the names that the tests expect.

They are stand-ins: Debian's busybox and tools; agnhost and the volume populator are built from their Go modules. The
validator of data sources only writes Events, which no test looks at: its image does nothing. The tests find them by the
registries that registries() names, instead of upstream's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from cluster import programs
from deploy.image import archive, debian
from deploy.image.archive import Entry, Tree
from deploy.image.build import cache

REGISTRY, TESTS, STORAGE = "test.local", "test.local/e2e-test-images", "test.local/sig-storage"
HOLDER = "/var/lib/node-namespaces"
"""The file of a node that has the number of the process which holds the node's namespaces."""
_TOOLS = ("bash", "coreutils", "util-linux", "mount", "grep", "sed", "findutils", "diffutils", "hostname", "tar",
          "procps", "e2fsprogs")  # fmt: skip
_FOLDERS = {"tmp": 0o1777, "etc": 0o755, "proc": 0o755, "dev": 0o755, "sys": 0o755, "mnt": 0o755, "var": 0o755,
            "home": 0o755, "root": 0o700, "run": 0o755}  # fmt: skip
# The tests enter process 1, which is the machine's and not the node's: a node here is a few namespaces of the machine.
_NSENTER = f"""#!/bin/sh
pid=$(cat /rootfs{HOLDER}) || exit 1
first=$1
shift
case $first in --mount=/rootfs/proc/1/ns/mnt) first=--mount=/rootfs/proc/$pid/ns/mnt ;; esac
exec /bin/busybox nsenter $first "$@"
"""


def registries() -> Mapping[str, str]:
    """What the file of KUBE_TEST_REPO_LIST says."""
    return {"promoterE2eRegistry": TESTS, "gcRegistry": REGISTRY, "sigStorageRegistry": STORAGE}


def build(folder: Path, suite: Path) -> list[Path]:
    """Write the archives into a folder; the files. Blocking. Idempotent.

    suite: the folder of the programs. Raises Missing of cluster and of deploy.image.
    """
    busybox = _busybox(programs.debian("busybox"))
    host = busybox | {
        "agnhost": Entry(0o755, (suite / "agnhost").read_bytes()),
        "bin/nsenter": Entry(0o755, _NSENTER.encode()),
    }
    populator = busybox | {"hello-populator": Entry(0o755, (suite / "hello-populator").read_bytes())}
    tools, newest = debian.unpack(debian.fetch(_TOOLS, cache(), debian.architecture()))
    tools = _base() | {"bin": Entry(0o777, link="usr/bin"), "lib": Entry(0o777, link="usr/lib")} | tools
    tools |= {"lib64": Entry(0o777, link="usr/lib64"), "sbin": Entry(0o777, link="usr/sbin")}
    tools |= {"usr/bin/sh": Entry(0o777, link="bash")}
    shell, path = ["/bin/sh"], "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    sleep = ["/bin/sleep", "2147483647"]
    idle = {"Entrypoint": ["/bin/sh", "-c", " ".join(sleep)], "Env": [path]}  # whatever its arguments are
    return [
        _write(folder, f"{TESTS}/busybox:1.37.0-1", busybox, {"Cmd": shell, "Env": [path]}, 0),
        _write(folder, f"{REGISTRY}/pause:3.10.2", busybox, {"Entrypoint": sleep, "Env": [path]}, 0),
        _write(
            folder, f"{TESTS}/agnhost:2.63.0", host, {"Entrypoint": ["/agnhost"], "Cmd": ["pause"], "Env": [path]}, 0
        ),
        _write(folder, f"{TESTS}/glibc-dns-testing:2.0.0", tools, {"Cmd": shell, "Env": [path]}, newest),
        _write(folder, f"{TESTS}/nginx:1.15-4", tools, {"Cmd": sleep, "Env": [path]}, newest),
        _write(folder, f"{STORAGE}/hello-populator:v1.0.1", populator, {"Entrypoint": ["/hello-populator"]}, 0),
        _write(folder, f"{STORAGE}/volume-data-source-validator:v1.0.0", busybox, idle, 0),
    ]


def _busybox(program: Path) -> Tree:
    """A system of nothing but busybox, with all that it can do."""
    said = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    tree = _base() | {f"bin/{applet}": Entry(0o777, link="busybox") for applet in said if applet != "busybox"}
    tree["bin/busybox"] = Entry(0o755, program.read_bytes())
    return tree


def _base() -> Tree:
    tree: Tree = {path: Entry(mode) for path, mode in _FOLDERS.items()}
    tree["etc/passwd"] = Entry(0o644, b"root:x:0:0:root:/root:/bin/sh\n")
    tree["etc/group"] = Entry(0o644, b"root:x:0:\n")
    return tree


def _write(folder: Path, name: str, tree: Tree, config: Mapping[str, object], time: int) -> Path:
    file = folder / f"{name.rpartition('/')[2].replace(':', '-')}.tar"
    archive.write(file, name, [archive.layer(tree, time)], config=config, time=time, debian=debian.architecture())
    return file

"""Makes the files of a folder beside this one, with the code of the commit that the folder is named after.

The folder's program `make` names the commit and has the functions that call its code (Version). It needs root, the
packages that `make setup` installs, user-mode Linux and kubectl, and writes:

    pools/*.tar.xz  a pool of one folder each, or the disk (*.img) of a pool that needs another kernel
    pools.json      by pool: its description, its volumes with their content, what else is to be found
    lvm.json        what `lvs` shows of the LVM pools: names, tags
    data.tar.xz     the data folder of a cluster, state.db in it
    objects.tar.xz  objects.json: all objects of that cluster as its API server served them, by the path of their list

annotations.json is written by hand: the names of annotations and labels of that commit, and what they mean.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

MI = 1 << 20
DRIVER = "csi.tonnage.dev"
OWNER = {
    "driver": DRIVER,
    "csi.storage.k8s.io/pvc/name": "data",
    "csi.storage.k8s.io/pvc/namespace": "default",
    "csi.storage.k8s.io/pv/name": "pvc-1b3c5d7f-3a5f-4a2b-8a7e-1d2e3f4a5b6c",
    "tonnage.dev/cluster": "0b1c3cf0-3a5f-4a2b-8a7e-1d2e3f4a5b6c",
    "tonnage.dev/ephemeral": "false",
    "tonnage.dev/reclaim": "Delete",
    "tonnage.dev/class": "tonnage-scratch",
}
DISK = "/dev/ubda"
ENDS_HERE = 9  # exit code of a process that ends in the middle of a call
Json = dict[str, Any]


class Version:
    """How one commit is called. Its methods run in that commit's environment, but for cluster_objects()."""

    commit = ""
    name = ""
    """The folder's name, which their content names."""
    cluster_options: Sequence[str] = ()
    thin_size = "240Mi"
    ready: Sequence[str] = ("one-ephemeral", "two-ephemeral", "inline", "two-claims", "s-0")
    """Pods of the cluster that run."""

    def pool(self, description: str) -> Any:
        """A pool, not open yet."""
        raise NotImplementedError

    def request(self, name: str, size: int, **more: Any) -> Any:
        """What a pool's create() takes."""
        raise NotImplementedError

    def copied(self, snapshot: str) -> Any:
        """The source of a copy of a snapshot."""
        raise NotImplementedError

    def offers(self, pool: Any, what: str) -> Any:
        """A feature of a pool: snapshots, clones, expansion, modifiable."""
        raise NotImplementedError

    def context(self, volume: Any) -> dict[str, str]:
        """A volume's context, which its PersistentVolume has for good."""
        raise NotImplementedError

    def fail_removals(self, pool: Any) -> None:
        """Let a pool remove no content any more."""
        raise NotImplementedError

    def end_at_write(self) -> None:
        """Let the next write of a record end the process."""
        raise NotImplementedError

    def lvm(self, *arguments: str) -> str:
        """Run a command of LVM; what it prints."""
        raise NotImplementedError

    def write_pmem_records(self, folder: Path) -> None:
        """The files beside a region's namespaces: a volume, one that is being made, one that is erased."""
        raise NotImplementedError

    def write_static_records(self, folder: Path) -> None:
        """The records of whole disks, of which others can only have those of the same serial number."""
        raise NotImplementedError

    async def make_more(self, maker: Maker) -> None:
        """Make in a pool what only this commit and later ones have."""

    def cluster_objects(self) -> list[Json]:
        """Objects of the cluster that only this commit and later ones have."""
        return []

    async def use_cluster(self, kubectl: Callable[..., str], data: Path) -> None:
        """Do in the running cluster what only this commit and later ones can."""

    def server(self, state: Path) -> Any:
        """The API server over a database."""
        raise NotImplementedError

    def api_request(self, method: str, path: str, body: bytes, content_type: str) -> Any:
        """A request to it."""
        raise NotImplementedError


def run(version: Version, here: Path, arguments: list[str]) -> None:
    """The program: all parts, or as its own child, in the commit's environment, one. here: the file `make`."""
    version.name = here.parent.name
    recipes = {"in-host": in_host, "in-guest": in_guest, "in-cluster": in_cluster}
    if len(arguments) == 2 and arguments[0] in recipes:
        out = Path(arguments[1])
        try:
            asyncio.run(recipes[arguments[0]](version, out))
        finally:
            unmount_below(out)
    else:
        make_all(version, here, Path(arguments[0]).resolve() if arguments else here.parent)


def make_all(version: Version, here: Path, target: Path) -> None:
    """Check the commit out, run the parts there, and pack what they made."""
    base = Path(tempfile.mkdtemp(prefix=f"tonnage-{version.name}-", dir="/var/tmp"))
    tree, out = base / "tree", base / "out"
    out.mkdir()
    git = ["git", "-C", str(here.parent), "worktree"]
    try:
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), version.commit], check=True)
        subprocess.run(["sh", "scripts/venv", sys.executable, ".venv"], cwd=tree, check=True)
        inside = [str(tree / ".venv/bin/python"), str(here)]
        guest = [sys.executable, "tests/vm/uml.py", *["--disk", "400M"] * 2, "--timeout", "900", "--"]
        subprocess.run([*inside, "in-host", str(out)], cwd=tree, check=True)
        subprocess.run([*guest, *inside, "in-guest", str(out)], cwd=tree, check=True)
        subprocess.run([*inside, "in-cluster", str(out)], cwd=tree, check=True)
        pack_all(out, target)
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=False)
        shutil.rmtree(base, ignore_errors=True)


def pack_all(out: Path, target: Path) -> None:
    """Write the files of the folder."""
    parts = [json.loads(path.read_text()) for path in sorted(out.glob("part-*.json"))]
    pools = {name: pool for part in parts for name, pool in part.items()}
    (target / "pools.json").write_text(text_of(pools))
    (target / "pools").mkdir(parents=True, exist_ok=True)
    for path in sorted((out / "pools").iterdir()):
        pack(path, target / "pools" / f"{path.stem}.tar.xz")
    for name in ("data", "objects.json"):
        pack(out / "cluster" / name, target / f"{Path(name).stem}.tar.xz")
    shutil.copyfile(out / "lvm.json", target / "lvm.json")


def text_of(value: object) -> str:
    """JSON as it is committed."""
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def pack(path: Path, archive: Path) -> None:
    """Holes stay holes, zeros become some: the images are larger than the disks of small machines."""
    for image in [path] if path.suffix == ".img" else path.rglob("*.img"):
        subprocess.run(["fallocate", "--dig-holes", str(image)], check=True)
    options = ["-S", "--one-file-system", "--numeric-owner", "--sort=name"]
    command = ["tar", *options, "-C", str(path.parent), "-cf", "-", path.name]
    with archive.open("wb") as file, subprocess.Popen(command, stdout=subprocess.PIPE) as tar:
        subprocess.run(["xz", "-9e", "-c"], stdin=tar.stdout, stdout=file, check=True)
    if tar.returncode:
        raise SystemExit(f"tar of {path} failed")


# From here on: run in that commit's environment


class Maker:
    """A pool that is being made, and what is to be found of it. folder: what its description has as {folder}."""

    def __init__(self, version: Version, name: str, description: str, folder: Path) -> None:
        self.version, self.name, self.folder = version, name, folder
        self.work = folder.parent.parent / "work" / name
        self.work.mkdir(parents=True)
        self.description = description
        self.parameters: dict[str, str] = {}
        """Of all its volumes."""
        self.volumes: dict[str, Json] = {}
        self.more: Json = {}
        self.pool: Any = None

    async def open(self, more: str = "") -> None:
        self.pool = self.version.pool(self.description.replace("{folder}", str(self.folder)) + more)
        await self.pool.open()

    async def make(
        self,
        name: str,
        size: int = 16,
        *,
        block: bool = False,
        fstype: str = "",
        use: str = "unstaged",
        parameters: dict[str, str] | None = None,
        owner: dict[str, str] | None = None,
    ) -> str:
        """A volume; its content. size: MiB. use: `new`, never staged; `unstaged`, written to; `staged`, is mounted."""
        wanted = self.version.request(
            name,
            size * MI,
            block=block,
            fstype=fstype,
            owner={**OWNER, **(owner or {})},
            parameters={**self.parameters, **(parameters or {})},
        )
        made = await self.pool.create(wanted)
        text = "" if use == "new" else f"{name} of {self.name}, as {self.version.name} wrote it\n" * 5
        if use != "new":
            await self.publish(name)
            self.write(name, text, block=block)
        if use == "unstaged":
            await self.unpublish(name)
        self.volumes[name] = {"size": made.size, "block": block, "fstype": made.fstype, "text": text}
        return text

    async def publish(self, name: str) -> None:
        await self.pool.stage(name, self.work / f"{name}-staging")
        await self.pool.publish(name, self.work / f"{name}-staging", self.work / name)

    async def unpublish(self, name: str) -> None:
        await self.pool.unpublish(name, self.work / name)
        await self.pool.unstage(name, self.work / f"{name}-staging")

    def write(self, name: str, text: str, *, block: bool = False) -> None:
        place = self.work / name if block else self.work / name / "file"
        fd = os.open(place, os.O_RDWR if block else os.O_RDWR | os.O_CREAT)
        os.write(fd, text.encode())
        os.fsync(fd)
        os.close(fd)

    async def interrupt(self) -> None:
        """End in the middle of a deletion, of erasing and of making a volume. The pool is not opened again."""
        await self.make("erased", 16, parameters={"erase": "zero"})
        await self.make("half-deleted")
        del self.volumes["erased"], self.volumes["half-deleted"]
        await self.end()
        self.more["erasing"] = ["erased"]
        self.more["gone"] = ["erased", "half-deleted", "half-made"]

        async def run() -> None:
            await self.open(",eraserate=1Ki")
            await self.pool.delete("erased")
            self.version.fail_removals(self.pool)
            await self.pool.delete("half-deleted")
            self.version.end_at_write()
            await self.pool.create(self.version.request("half-made", 16 * MI, owner=OWNER))

        if ends_in_child(run) != ENDS_HERE:
            raise SystemExit(f"{self.name}: it was not interrupted")

    async def common(self) -> None:
        """What all pools with snapshots, larger volumes and changes have."""
        offers = partial(self.version.offers, self.pool)
        await self.make("new", use="new")
        await self.make("plain")
        if "iops" in (offers("modifiable") or ()):
            await self.modify("plain", {"iops": "500"})
        if offers("expansion"):
            await self.make("larger")
            larger = await self.pool.expand("larger", 24 * MI)
            self.volumes["larger"] |= {"size": larger.size, "pending": larger.pending}
        if not offers("snapshots"):
            return
        room = {"cowSize": "8Mi"} if self.name == "lvm-thick" else {}
        text = await self.make("origin", parameters=room)
        await self.pool.create_snapshot("snapshot", "origin", owner={"driver": DRIVER})
        self.more["snapshots"] = {"snapshot": text}
        self.more["snapshots"]["survivor"] = await self.make("deleted", 8, parameters=room)
        await self.pool.create_snapshot("survivor", "deleted", owner={"driver": DRIVER})
        await self.pool.delete("deleted")
        del self.volumes["deleted"]
        if offers("clones"):
            source = self.version.copied("snapshot")
            await self.pool.create(self.version.request("copy", 16 * MI, owner=OWNER, source=source))
            found = await self.pool.get("copy")
            self.volumes["copy"] = {**self.volumes["origin"], "size": found.size, "source": "snapshot"}
        await self.publish("origin")
        text = "written after the snapshot\n" * 5
        self.write("origin", text)
        await self.unpublish("origin")
        self.volumes["origin"] = {**self.volumes["origin"], "text": text}

    async def modify(self, name: str, mutable: dict[str, str]) -> None:
        """Set parameters of a volume as a VolumeAttributesClass does."""
        await self.pool.modify(name, mutable)
        self.volumes[name]["mutable"] = self.volumes[name].get("mutable", {}) | mutable

    async def erased_half(self) -> None:
        """A deleted volume whose content is being erased."""
        await self.make("erased", 8, parameters={"erase": "zero"})
        del self.volumes["erased"]
        await self.pool.close()
        await self.open(",eraserate=1Ki")
        await self.pool.delete("erased")
        if [job.name for job in await self.pool.erasing()] != ["erased"]:
            raise SystemExit(f"{self.name}: it is erased already")
        self.more["erasing"] = ["erased"]

    async def end(self) -> Json:
        """What is to be found."""
        for name in self.volumes if "gone" not in self.more else ():
            self.volumes[name]["context"] = self.version.context(await self.pool.get(name))
        await self.pool.close()
        os.sync()
        return {"pool": self.description, "volumes": self.volumes, **self.more}


def ends_in_child(run: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Exit code of a process of its own."""
    if (child := os.fork()) == 0:
        asyncio.run(run())
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def unmount_below(folder: Path) -> None:
    """Unmount what is mounted in a folder, and detach the loop devices of files in it."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for target in reversed(mounts):
        if target.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", target], check=True)
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        if backing.read_text().startswith(f"{folder}/"):
            subprocess.run(["losetup", "--detach", f"/dev/{backing.parts[3]}"], check=True)


async def in_host(version: Version, out: Path) -> None:
    """Pools that any kernel can have. What is mounted stays so until they are copied."""
    live = out / "live"
    live.mkdir()
    made: Json = {}

    async def image(name: str, options: str) -> Maker:
        maker = Maker(version, name, f"image:{{folder}},name=p,size=4Gi,{options}", live / name)
        await maker.open()
        await maker.make("staged", use="staged")
        await maker.make("raw", block=True)
        await maker.common()
        await version.make_more(maker)
        return maker

    thick = await image("image-thick", "sparse=no")
    made["image-thick"] = await thick.end()
    sparse = await image("image-sparse", "sparse=yes,overcommit=yes")
    await sparse.make("xfs", 300, fstype="xfs")
    await sparse.make("btrfs", 110, fstype="btrfs")
    await sparse.make("raw-staged", block=True, use="staged")
    await sparse.interrupt()
    made["image-sparse"] = await sparse.end()

    btrfs = Maker(version, "btrfs", "btrfs:{folder},name=p,size=600Mi,sparse=yes", live / "btrfs")
    await btrfs.open()
    await btrfs.make("staged", use="staged")
    await btrfs.common()
    await version.make_more(btrfs)
    made["btrfs"] = await btrfs.end()

    made["static"] = await static(version, out, live / "static")
    version.write_pmem_records(live / "pmem")
    version.write_static_records(live / "static-records")
    for name in ("image-sparse", "image-thick", "btrfs", "static", "pmem", "static-records"):
        copy_tree(live / name, out / "pools" / name)
    (out / "part-host.json").write_text(text_of(made))


def call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder without what is mounted in it, holes as holes."""
    target.mkdir()
    copy = ["tar", "-S", "--one-file-system", "-C", str(source), "-cf", "-", "."]
    with subprocess.Popen(copy, stdout=subprocess.PIPE) as tar:
        subprocess.run(["tar", "-S", "-C", str(target), "-xf", "-"], stdin=tar.stdout, check=True)


async def static(version: Version, out: Path, folder: Path) -> Json:
    """A pool of three disks."""
    disks = out / "pools" / "static-disks"
    disks.mkdir(parents=True)
    folder.mkdir(mode=0o755)
    for number, size in enumerate((8, 12, 16)):
        disk, place = disks / f"d{number}.img", folder / f"d{number}"
        disk.touch()
        os.truncate(disk, size * MI)
        call(["mkfs.ext4", "-q", str(disk)])
        place.mkdir()
        call(["mount", "-o", "loop", str(disk), str(place)])
    maker = Maker(version, "static", "static:{folder},name=p", folder)
    await maker.open()
    await maker.make("small", 5, parameters={"cleaner": "quick"})
    await maker.make("staged", 9, use="staged")
    maker.more["disks"] = ["d0", "d1", "d2"]
    return await maker.end()


async def in_guest(version: Version, out: Path) -> None:
    """Pools that need project quotas or the device mapper, on disks that are copied whole."""
    made = {f"quota-{fstype}": await quota(version, out, fstype) for fstype in ("ext4", "xfs")}
    wipe()
    version.lvm("vgcreate", "--quiet", "vg0", DISK)
    reports = {}
    for name, options in (("lvm-thick", ""), ("lvm-thin", f",thin=pool,thinsize={version.thin_size}")):
        maker = Maker(version, name, f"lvm:vg0,name=p{options}", out / name / "none")
        maker.folder.parent.mkdir(exist_ok=True)
        await maker.open()
        await maker.make("raw", 8, block=True)
        await maker.make("staged", use="staged")
        await maker.common()
        await version.make_more(maker)
        if name == "lvm-thick":
            await maker.erased_half()
        unmount_below(out)
        made[name] = {**await maker.end(), "disk": f"{name}.img"}
        columns = "lv_name,lv_tags,lv_attr,lv_size,segtype,origin,pool_lv"
        report = version.lvm("lvs", "-a", "--reportformat", "json", "-o", columns, "--units", "b", "vg0")
        reports[name] = json.loads(report)["report"][0]["lv"]
        version.lvm("vgchange", "--quiet", "-an", "vg0")
        copy_disk(out / "pools" / f"{name}.img")
        version.lvm("lvremove", "--yes", "vg0")
    (out / "lvm.json").write_text(text_of(reports))
    (out / "part-guest.json").write_text(text_of(made))


async def quota(version: Version, out: Path, fstype: str) -> Json:
    """A pool with project quotas on a file system of its own."""
    wipe()
    options = ["-F", "-O", "quota,project", DISK, "64M"] if fstype == "ext4" else ["-f", DISK]
    call([f"mkfs.{fstype}", "-q", *options])
    place = out / "quota-disk" / fstype
    place.mkdir(parents=True)
    call(["mount", "-t", fstype, "-o", "prjquota", DISK, str(place)])
    maker = Maker(version, f"quota-{fstype}", "quota:{folder},name=p", place / "pool")
    maker.parameters = {"allowUnenforced": "true"} if fstype == "ext4" else {}
    await maker.open()
    await maker.make("staged", 6, use="staged")
    await maker.make("plain", 6)
    await maker.make("new", 6, use="new")
    await version.make_more(maker)
    found = {**await maker.end(), "disk": f"{maker.name}.img", "file system": fstype}
    unmount_below(out)
    copy_disk(out / "pools" / f"{maker.name}.img")
    return found


def wipe() -> None:
    """Write zeros over the scratch disk."""
    with open(DISK, "r+b", buffering=0) as disk:
        for _ in range(400):
            disk.write(bytes(MI))


def copy_disk(target: Path) -> None:
    """Copy the scratch disk; what is zero becomes a hole."""
    os.sync()
    with open(DISK, "rb") as disk, target.open("wb") as file:
        while piece := disk.read(65536):
            if piece.count(0) == len(piece):
                file.seek(len(piece), os.SEEK_CUR)
            else:
                file.write(piece)
        file.truncate(disk.tell())


def claim_spec(storage_class: str, size: str) -> Json:
    return {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
    }


def claim(name: str, storage_class: str, size: str, **spec: object) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": {"app": "x"}},
        "spec": {**claim_spec(storage_class, size), **spec},
    }


def pod(name: str, volumes: list[Json], **metadata: object) -> Json:
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    main = {"name": "main", "image": "busybox", "command": ["sleep", "100000"], "volumeMounts": mounts}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [main], "volumes": volumes},
    }


def template(name: str, storage_class: str, size: str) -> Json:
    return {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(storage_class, size)}}}


def of_claim(name: str) -> Json:
    return {"name": name, "persistentVolumeClaim": {"claimName": name}}


def storage_class(name: str, parameters: dict[str, str]) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": parameters,
    }


def objects() -> list[Json]:
    """What people gave that cluster."""
    inner = pod("x", [template("scratch", "tonnage-scratch", "64Mi")], labels={"app": "x"})
    del inner["apiVersion"], inner["kind"], inner["metadata"]["name"]
    inline = {"name": "data", "csi": {"driver": DRIVER, "volumeAttributes": {"size": "64Mi"}}}
    selector = {"matchLabels": {"app": "x"}}
    return [
        storage_class("lost", {"tonnage.dev/on-node-gone": "release-after:1h", "tonnage.dev/rollback": "true"}),
        storage_class("impossible", {"pool": "scratch", "nonsense": "1"}),
        pod("one-ephemeral", [template("data", "tonnage-scratch", "1Gi")]),
        pod("two-ephemeral", [template("a", "tonnage-scratch", "1Gi"), template("b", "tonnage-fast", "1Gi")]),
        pod("inline", [inline], labels={"tonnage.dev/evict-unfit": "true"}),
        *(claim(name, "lost", "1Gi") for name in ("a", "b")),
        pod("two-claims", [of_claim("a"), of_claim("b")]),
        claim("immediate", "tonnage-immediate", "128Mi"),
        *(claim(name, "lost", "9Ti") for name in ("large-a", "large-b")),
        pod("too-large", [of_claim("large-a"), of_claim("large-b")]),
        claim("never", "impossible", "1Mi"),
        pod("never", [of_claim("never")]),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"key": "värde"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "value"}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "spec": {"replicas": 2, "selector": selector, "template": inner},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "s"},
            "spec": {
                "replicas": 1,
                "serviceName": "s",
                "selector": selector,
                "template": inner,
                "volumeClaimTemplates": [claim("data", "tonnage-scratch", "64Mi")],
            },
        },
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000},
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "50"}}},
    ]


async def in_cluster(version: Version, out: Path) -> None:
    """A cluster of three nodes with pods, whose objects have what that commit writes on objects."""
    data = out / "cluster" / "data"
    data.parent.mkdir()
    tonnage = [sys.executable, "-m", "tonnage.cli"]
    options = ["--nodes", "3", "--runtime", "none", "--capacity", "tiers", *version.cluster_options]

    def kubectl(*arguments: str, given: str = "") -> str:
        command = ["kubectl", "--kubeconfig", str(data / "kubeconfig"), *arguments]
        return subprocess.run(command, input=given, text=True, check=True, stdout=subprocess.PIPE).stdout

    call([*tonnage, "up", "--detach", "--port", "0", "--data", str(data), *options])
    try:
        given = {"apiVersion": "v1", "kind": "List", "items": [*objects(), *version.cluster_objects()]}
        kubectl("apply", "-f", "-", given=json.dumps(given))
        kubectl("wait", "--for=condition=Ready", "--timeout=120s", *(f"pod/{name}" for name in version.ready))
        for name in ("too-large", "never"):
            kubectl("wait", "--for=condition=PodScheduled=False", "--timeout=120s", f"pod/{name}")
        await version.use_cluster(kubectl, data)
    finally:
        call([*tonnage, "down", "--data", str(data)])
    await note(version, data, out / "cluster")
    for name in ("kubeconfig", "lock", "state.db.lock", "tonnage.log"):
        (data / name).unlink(missing_ok=True)
    for name in ("tls", "run"):
        shutil.rmtree(data / name, ignore_errors=True)


async def note(version: Version, data: Path, out: Path) -> None:
    """Write on objects what needs more nodes or time than there are, by its names of then; end as if killed.

    So part of the database is in its log.
    """
    here = Path(__file__).parent / version.name / "annotations.json"
    key = {meaning: entry["key"] for meaning, entry in json.loads(here.read_text()).items()}
    server = version.server(data / "state.db")
    await server.start()
    transport = server.transport()

    async def send(method: str, path: str, body: object = None) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        text = b"" if body is None else json.dumps(body).encode()
        answer = await transport.request(version.api_request(method, path, text, kind))
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.body.decode()}")
        return json.loads(answer.body)

    async def annotate(path: str, notes: dict[str, str]) -> None:
        await send("PATCH", path, {"metadata": {"annotations": notes}})

    claims, volumes = "/api/v1/namespaces/default/persistentvolumeclaims", "/api/v1/persistentvolumes"
    capacities = "/apis/storage.k8s.io/v1/namespaces/tonnage-system/csistoragecapacities"
    for name, other, count in (("large-a", "large-b", "3"), ("large-b", "large-a", "1")):
        await annotate(f"{claims}/{name}", {key["claim group"]: other, key["reschedules"]: count})
    notices = [item for item in (await send("GET", capacities))["items"] if is_notice(item, key["tier"], "lost")]
    notes = {key["exact capacity, bytes"]: "9Ti", key["exact capacity, nodes"]: "node-1,node-3"}
    await annotate(f"{capacities}/{notices[0]['metadata']['name']}", notes)
    bound = (await send("GET", f"{claims}/a"))["spec"]["volumeName"]
    await annotate(f"{volumes}/{bound}", {key["node gone since"]: "2026-11-22T12:00:00Z"})
    other = (await send("GET", f"{claims}/immediate"))["spec"]["volumeName"]
    await annotate(f"{volumes}/{other}", {key["disk"]: "d1"})
    await send("POST", capacities, {
        "metadata": {
            "name": "csisc-template",
            "namespace": "tonnage-system",
            "annotations": {key["without nodes since"]: "2026-11-22T12:00:00Z"},
        },
        "storageClassName": "lost",
        "capacity": "5Gi",
        "nodeTopology": {"matchLabels": {"cloud.example/group": "large"}},
    })  # fmt: skip
    await send("POST", capacities, {
        "metadata": {
            "name": "csisc-exact",
            "namespace": "tonnage-system",
            "labels": {
                "csi.storage.k8s.io/drivername": DRIVER,
                "csi.storage.k8s.io/managed-by": "tonnage-node-1",
                key["node"]: "node-1",
                key["pool"]: "scratch",
                key["default pool"]: "true",
            },
            "annotations": {key["observed claim version"]: "7", key["inline capacity"]: "7104Mi"},
        },
        "storageClassName": "tonnage-scratch",
        "capacity": "6080Mi",
        "maximumVolumeSize": "6080Mi",
        "nodeTopology": {"matchLabels": {"topology.tonnage.dev/node": "node-1"}},
    })  # fmt: skip
    served = {path: items for path in await lists(send) if (items := (await send("GET", path))["items"])}
    (out / "objects.json").write_text(text_of(served))
    killed = data.with_name("killed")
    killed.mkdir()
    for name in ("state.db", "state.db-wal"):
        shutil.copyfile(data / name, killed / name)
    await server.stop()
    for path in data.glob("state.db*"):
        path.unlink()
    for path in killed.iterdir():
        path.rename(data / path.name)
    killed.rmdir()


def is_notice(capacity: Json, tier: str, storage_class: str) -> bool:
    """Whether it is the notice of a class."""
    labels: dict[str, str] = capacity["metadata"].get("labels", {})
    return (labels.get(tier), capacity["storageClassName"]) == ("0", storage_class)


async def lists(send: Callable[..., Coroutine[Any, Any, Any]]) -> list[str]:
    """The paths of all kinds of objects."""
    groups = (await send("GET", "/apis"))["groups"]
    found = []
    for base in ("/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)):
        resources = (await send("GET", base))["resources"]
        found += [f"{base}/{one['name']}" for one in resources if "/" not in one["name"] and "list" in one["verbs"]]
    return found

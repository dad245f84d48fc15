"""`tonnage volumes`: lists volumes and snapshots, finds orphans, purges or adopts them, restores deleted volumes."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import InvalidError, NotFoundError, PreconditionError, TonnageError
from tonnage.kubernetes.api import names
from tonnage.tools.cli import listing
from tonnage.tools.ops import orphans, sources
from tonnage.tools.ops.inventory import Direct, Served, Source
from tonnage.tools.ops.orphans import Owner, Registry
from tonnage.tools.ops.report import Contents, ErasureReport, VolumeReport
from tonnage.tools.ops.sources import ClusterSources

_COLUMNS = ("NODE", "VOLUME", "SIZE", "STATE", "MADE FOR", "CREATED")
_SNAPSHOT_COLUMNS = ("NODE", "SNAPSHOT", "SIZE", "OF", "CREATED")
_TRASH_COLUMNS = ("NODE", "VOLUME", "SIZE", "MADE FOR", "DELETED", "UNTIL")
_BY_KUBERNETES = re.compile(r"snapshot-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""How external-snapshotter names snapshots."""
_NAME_HELP = "POOL/NAME, or NAME where it is the only one; snapshot:NAME where a volume has that name too"
_ABOUT_CLASS = (
    'it has no class, because volumes do not record theirs: a claim binds it with storageClassName: ""; '
    "--storage-class NAME gives it one"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb and its actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary, options in (
        ("list", "all volumes and snapshots, and what is being erased", ()),
        ("show", "everything about volumes and snapshots", ("names",)),
        ("orphans", "volumes and snapshots that no object of the cluster refers to", ("cluster",)),
        ("trash", "deleted volumes that can be restored, the oldest first", ()),
        (
            "restore", "make a deleted volume usable again in its namespace: shows the objects, --yes creates them",
            ("name", "cluster", "yes", "restore"),
        ),
        ("purge", "delete orphans: shows what would be deleted, --yes deletes", ("names", "cluster", "yes")),
        (
            "adopt", "create an orphan's PersistentVolume or VolumeSnapshotContent: shows it, --yes creates it",
            ("name", "cluster", "yes", "adopt"),
        ),
    ):  # fmt: skip
        action = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        listing.add_arguments(action)
        if "names" in options:
            action.add_argument("names", nargs="+", metavar="NAME", help=_NAME_HELP)
        if "name" in options:
            action.add_argument("names", nargs=1, metavar="NAME", help=_NAME_HELP)
        if "cluster" in options:
            action.add_argument("--kubeconfig", type=Path, metavar="FILE", help="the cluster (default: the box's own)")
        if "yes" in options:
            action.add_argument("--yes", action="store_true", help="make the change; without it nothing is changed")
        if "restore" in options:
            action.add_argument("--storage-class", default="", metavar="NAME", help="class of the claim and its volume")
            action.add_argument(
                "--claim", default="", metavar="NAME", help="name of the claim (default: its former one)"
            )
        if "adopt" in options:
            action.add_argument("--storage-class", default="", metavar="NAME", help="class of the PersistentVolume")
            action.add_argument("--as", dest="pv", default="", metavar="NAME", help="name of the object that is made")
            action.add_argument(
                "--namespace", default="default", metavar="NAME", help="where the VolumeSnapshot is to be (snapshots)"
            )


def run(options: argparse.Namespace) -> int:
    """Run the action."""
    actions: dict[str, Callable[[argparse.Namespace, ClusterSources], Awaitable[int]]] = {
        "list": _list, "show": _show, "orphans": _orphans, "purge": _purge, "adopt": _adopt,
        "trash": _trash, "restore": _restore,
    }  # fmt: skip
    return asyncio.run(_with_sources(options, actions[options.action]))


async def _with_sources(
    options: argparse.Namespace, action: Callable[[argparse.Namespace, ClusterSources], Awaitable[int]]
) -> int:
    async with sources.opened(listing.wanted(options)) as found:
        return await action(options, found)


async def _list(options: argparse.Namespace, found: ClusterSources) -> int:
    held = await found.contents()
    _print(options.output, held.volumes, held.snapshots, held.erasing)
    for volume in (v for v in held.volumes if v.condition):
        print(f"tonnage volumes: volume {volume.id}: {volume.condition}", file=sys.stderr)
    for erasure in (e for e in held.erasing if e.problem):
        print(f"tonnage volumes: deleted volume {erasure.id}: {erasure.problem}", file=sys.stderr)
    return 0


async def _show(options: argparse.Namespace, found: ClusterSources) -> int:
    volumes = _pick(await found.contents(), options.names)
    if options.output != "table":
        sys.stdout.write(listing.text(options.output, volumes if len(volumes) > 1 else volumes[0]))
        return 0
    for volume in volumes:
        for key, value in msgspec.to_builtins(volume).items():
            print(f"{key}: {listing.size(value) if key in ('size', 'bandwidth') else _plain(value)}")
    return 0


async def _orphans(options: argparse.Namespace, found: ClusterSources) -> int:
    held = await found.contents()
    async with _registry(found) as registry:
        volumes = [v for v in held.volumes if await registry.owner(v) is Owner.NOBODY]
        snapshots = [s for s in held.snapshots if await registry.owner(s) is Owner.NOBODY]
        drivers = {volume.driver for volume in (*held.volumes, *held.snapshots)}
        contents = [content for content in registry.without_snapshot if content.spec.driver in drivers]
    _print(options.output, volumes, snapshots)
    for content in contents if options.output == "table" else ():
        name, ref, policy = content.metadata.name, content.spec.volume_snapshot_ref, content.spec.deletion_policy
        print(
            f"    VolumeSnapshotContent {name} ({content.handle or 'no snapshot'}, policy {policy}) has no"
            f" VolumeSnapshot {ref.namespace}/{ref.name} any more: `kubectl delete volumesnapshotcontent {name}`"
        )
    if (volumes or snapshots) and options.output == "table":
        print("    `tonnage volumes purge NAME` deletes, `tonnage volumes adopt NAME` makes usable again")
    return 0


async def _purge(options: argparse.Namespace, found: ClusterSources) -> int:
    held = await found.contents()
    chosen = _pick(held, options.names)
    await _reject_owned(chosen, found, held)
    count = f"{_counted(chosen)} ({listing.size(sum(volume.size for volume in chosen))})"
    _print(options.output, [v for v in chosen if not v.snapshot_of], [s for s in chosen if s.snapshot_of])
    if not options.yes:
        print(
            f"{count} would be deleted with all data; nothing was touched. Repeat with --yes to delete", file=sys.stderr
        )
        return 0
    failures = [reason for volume in chosen if (reason := await _delete(found.source_of(volume), volume))]
    for reason in failures:
        print(f"tonnage volumes: {reason}", file=sys.stderr)
    of = f"{len(chosen)}: {count}" if " and " in count else count
    print(f"deleted {len(chosen) - len(failures)} of {of}", file=sys.stderr)
    with suppress(TonnageError):  # what is deleted is deleted, whoever cannot be asked any more
        if stay := {volume.id for volume in (await found.contents()).trash} & {volume.id for volume in chosen}:
            print(f"in the trash for a while, as their classes say: {', '.join(sorted(stay))}", file=sys.stderr)
    if any(volume.erase not in ("", "none") for volume in chosen):
        print(_still_erasing(map(found.source_of, chosen)), file=sys.stderr)
    return 3 if failures else 0


def _still_erasing(chosen: Iterable[Source]) -> str:
    if any(isinstance(source, Direct) for source in chosen):
        return "content that is to be erased is erased when a driver serves the pool"
    return "content is being erased: `tonnage volumes list` shows how far"


def _counted(volumes: Sequence[VolumeReport]) -> str:
    counts = [(what, sum(v.what == what for v in volumes)) for what in ("volume", "snapshot")]
    return " and ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts if count)


async def _delete(source: Source, volume: VolumeReport) -> str:
    """The error of deleting a volume, "" when it is deleted."""
    try:
        await source.delete(volume)
    except TonnageError as failure:
        return f"{volume.what} {volume.id} was not deleted: {failure}"
    return ""


async def _reject_owned(volumes: Sequence[VolumeReport], found: ClusterSources, held: Contents) -> None:
    """Raise PreconditionError if any of the volumes has an owner, or if that cannot be known."""
    claimed = {volume.id for volume in held.volumes if volume.cluster or volume.claim}
    for volume in volumes:
        if volume.inline:
            raise PreconditionError(f"volume {volume.id} {Owner.POD.value}")
        named = volume.snapshot_of and _BY_KUBERNETES.fullmatch(volume.name)
        is_a_clusters = volume.cluster or named or claimed & {volume.id, volume.snapshot_of}
        if not found.kubeconfig and is_a_clusters:
            why = f"was made for {volume.used_by or 'a Kubernetes cluster'}, and only its cluster knows"
            raise PreconditionError(f"{volume.what} {volume.id} {why} whether it is in use: {found.why_none}")
    if not found.kubeconfig:
        return
    async with _registry(found) as registry:
        for volume in volumes:
            if (owner := await registry.owner(volume)) is not Owner.NOBODY:
                raise PreconditionError(_rejection(volume, owner, registry.volume_of(volume)))


@asynccontextmanager
async def _registry(found: ClusterSources) -> AsyncIterator[Registry]:
    """The volumes that the cluster knows. Raises: PreconditionError where no cluster can be asked."""
    async with found.client() as client:
        if client is None:
            raise PreconditionError(f"only a volume's cluster knows whether it is in use: {found.why_none}")
        registry = Registry(client, RealClock())
        await registry.look()
        yield registry


def _rejection(volume: VolumeReport, owner: Owner, pv: str) -> str:
    hints = {
        Owner.VOLUME: f"{pv}: delete its claim, or the PersistentVolume",
        Owner.CONTENT: f"{pv}: delete its VolumeSnapshot, or that",
        Owner.CLAIM: f"{volume.claim}: delete that",
        Owner.YOUNG: "its PersistentVolume may be in creation: repeat in a minute",
        Owner.FOREIGN: f"{volume.cluster}: name that one's kubeconfig",
    }
    return f"{volume.what} {volume.id} {owner.value}" + (f" ({hints[owner]})" if owner in hints else "")


async def _adopt(options: argparse.Namespace, found: ClusterSources) -> int:
    (volume,) = _pick(await found.contents(), options.names)
    source = found.source_of(volume)
    if isinstance(source, Direct):
        raise PreconditionError(f"{volume.what} {volume.id}: to adopt it, its driver must run: start the driver first")
    async with _registry(found) as registry:
        if (owner := await registry.owner(volume)) is not Owner.NOBODY:
            raise PreconditionError(_rejection(volume, owner, registry.volume_of(volume)))
        body = await _body(options, source, volume)
        sys.stdout.write(listing.text("json" if options.output == "json" else "yaml", body))
        if not volume.snapshot_of and not options.storage_class:
            print(_ABOUT_CLASS, file=sys.stderr)
        if options.yes:
            await registry.adopt(body)
            field = "VolumeSnapshot with that volumeSnapshotContentName"
            taker = field if volume.snapshot_of else "claim with that volumeName"
            print(f"made {body['kind']} {body['metadata']['name']}; a {taker} takes it", file=sys.stderr)
        else:
            print("nothing was made; repeat with --yes, or pass this to kubectl apply", file=sys.stderr)
    return 0


async def _trash(options: argparse.Namespace, found: ClusterSources) -> int:
    held = (await found.contents()).trash
    rows = [(v.node or "-", v.id, listing.size(v.size), v.used_by or "-", v.deleted, v.until) for v in held]
    listing.show(options.output, _TRASH_COLUMNS, rows, {"trash": held})
    if held and options.output == "table":
        print("    `tonnage volumes restore NAME` restores; the oldest is removed when its capacity is needed")
    return 0


async def _restore(options: argparse.Namespace, found: ClusterSources) -> int:
    """Restore trash. Its PersistentVolume, which only an administrator may make, comes first.

    A volume that was restored, and whose claim could not be made, is taken as well.
    """
    contents = await found.contents()
    async with _registry(found) as registry:
        unfinished = [volume for volume in contents.volumes if registry.lacks_claim(volume)]
        (volume,) = _pick(Contents([*contents.trash, *unfinished]), options.names, of="trash")
        return await _restore_one(options, found, registry, volume)


async def _restore_one(
    options: argparse.Namespace, found: ClusterSources, registry: Registry, volume: VolumeReport
) -> int:
    source = found.source_of(volume)
    if isinstance(source, Direct):
        raise PreconditionError(f"volume {volume.id}: to restore it, its driver must run: start the driver first")
    volume = msgspec.structs.replace(volume, topology=await source.topology(volume))
    persistent_volume, claim = orphans.restored(volume, claim=options.claim, storage_class=options.storage_class)
    items = {"apiVersion": "v1", "kind": "List", "items": [persistent_volume, claim]}
    sys.stdout.write(listing.text("json" if options.output == "json" else "yaml", items))
    if not options.yes:
        print(
            "nothing was restored; repeat with --yes. It takes the volume's bytes from the free capacity",
            file=sys.stderr,
        )
        return 0
    await registry.check_cluster(volume)
    await registry.restore(persistent_volume, claim, lambda: source.restore(volume))
    about = claim["metadata"]
    print(f"restored volume {volume.id} to claim {about['namespace']}/{about['name']}", file=sys.stderr)
    return 0


async def _body(options: argparse.Namespace, source: Served, volume: VolumeReport) -> dict[str, Any]:
    name = options.pv or volume.persistent_volume or volume.name
    if not names.is_dns_subdomain(name):
        raise InvalidError(f"{name!r} cannot name an object: give it another name with --as")
    if volume.snapshot_of:
        return orphans.snapshot_content(volume, name=name, namespace=options.namespace, block=bool(volume.block))
    block = await source.is_block(volume)
    return orphans.persistent_volume(volume, name=name, storage_class=options.storage_class, block=block)


def _pick(held: Contents, wanted: Sequence[str], *, of: str = "list") -> list[VolumeReport]:
    """The volumes and snapshots of those names. Raises: NotFoundError, InvalidError for a name that several have.

    of: the command that shows what there is.
    """
    chosen: dict[tuple[str, str, str], VolumeReport] = {}
    for word in wanted:
        kind, colon, name = word.rpartition(":")
        all_of_them = [*held.volumes, *held.snapshots]
        fitting = [v for v in all_of_them if name in (v.id, v.name) and (not colon or v.what == kind)]
        if not fitting:
            what = "volume in the trash" if of == "trash" else "volume or snapshot"
            raise NotFoundError(f"there is no {what} {word!r}; `tonnage volumes {of}` shows those there are")
        if len(fitting) > 1:
            listed = ", ".join(f"{v.node} {v.what}:{v.id}".strip() for v in fitting)
            raise InvalidError(f"several have the name {word!r} ({listed})")
        chosen[fitting[0].node, fitting[0].what, fitting[0].id] = fitting[0]
    return list(chosen.values())


def _print(
    form: str,
    volumes: Sequence[VolumeReport],
    snapshots: Sequence[VolumeReport] = (),
    erasing: Sequence[ErasureReport] = (),
) -> None:
    rows = []
    for v in volumes:
        state = "abnormal" if v.condition else "ok"
        rows.append((v.node or "-", v.id, listing.size(v.size), state, v.used_by or "-", v.created or "-"))
    rows += [(e.node or "-", e.id, listing.size(e.size), _progress(e), "-", "-") for e in erasing]
    document = {"volumes": volumes, "snapshots": snapshots, "erasing": erasing}
    if rows or not snapshots or form != "table":
        listing.show(form, _COLUMNS, rows, document)
    if snapshots and form == "table":
        shown = [(s.node or "-", s.id, listing.size(s.size), s.snapshot_of, s.created or "-") for s in snapshots]
        listing.show(form, _SNAPSHOT_COLUMNS, shown, document)


def _progress(erasure: ErasureReport) -> str:
    return "cannot be erased" if erasure.problem else f"erasing {erasure.percent} %"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={entry}" for key, entry in value.items())
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)

"""`tonnage volumes`: list and show volumes, find those that belong to nobody, purge or adopt them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tonnage.aio.clock import RealClock
from tonnage.api import names
from tonnage.apps import orphans, sources
from tonnage.apps.inventory import Direct, Served, Source, VolumeReport
from tonnage.apps.orphans import Owner, Registry
from tonnage.apps.sources import Sources
from tonnage.cli import listing
from tonnage.errors import Invalid, NotFound, Precondition, TonnageError

_COLUMNS = ("NODE", "VOLUME", "SIZE", "MADE FOR", "CREATED")
Found = tuple[Source, VolumeReport]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb: one more word says what to do."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary, options in (
        ("list", "all volumes", ()),
        ("show", "everything about volumes", ("names",)),
        ("orphans", "volumes that no PersistentVolume and no claim refers to", ("cluster",)),
        ("purge", "delete orphans: shows what would go, --yes deletes", ("names", "cluster", "yes")),
        ("adopt", "give an orphan a PersistentVolume: shows it, --yes makes it", ("name", "cluster", "yes", "adopt")),
    ):
        action = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        listing.add_arguments(action)
        if "names" in options:
            action.add_argument("names", nargs="+", metavar="NAME", help="POOL/NAME, or NAME where it is the only one")
        if "name" in options:
            action.add_argument("names", nargs=1, metavar="NAME", help="POOL/NAME, or NAME where it is the only one")
        if "cluster" in options:
            action.add_argument("--kubeconfig", type=Path, metavar="FILE", help="the cluster (default: the box's own)")
        if "yes" in options:
            action.add_argument("--yes", action="store_true", help="do it; without it nothing is changed")
        if "adopt" in options:
            action.add_argument("--storage-class", default="", metavar="NAME", help="class of the PersistentVolume")
            action.add_argument("--as", dest="pv", default="", metavar="NAME", help="name of the PersistentVolume")


def run(options: argparse.Namespace) -> int:
    """Do what the action says."""
    actions: dict[str, Callable[[argparse.Namespace, Sources], Awaitable[int]]] = {
        "list": _list, "show": _show, "orphans": _orphans, "purge": _purge, "adopt": _adopt,
    }  # fmt: skip
    return asyncio.run(_with_sources(options, actions[options.action]))


async def _with_sources(
    options: argparse.Namespace, action: Callable[[argparse.Namespace, Sources], Awaitable[int]]
) -> int:
    async with sources.opened(listing.wanted(options)) as found:
        return await action(options, found)


async def _list(options: argparse.Namespace, found: Sources) -> int:
    _print(options.output, [volume for _, volume in await found.volumes()])
    return 0


async def _show(options: argparse.Namespace, found: Sources) -> int:
    volumes = [volume for _, volume in _pick(await found.volumes(), options.names)]
    if options.output != "table":
        sys.stdout.write(listing.text(options.output, volumes if len(volumes) > 1 else volumes[0]))
        return 0
    for volume in volumes:
        for key, value in msgspec.to_builtins(volume).items():
            print(f"{key}: {listing.size(value) if key == 'size' else _plain(value)}")
    return 0


async def _orphans(options: argparse.Namespace, found: Sources) -> int:
    async with _registry(found) as registry:
        kept = [v for _, v in await found.volumes() if await registry.owner(v) is Owner.NOBODY]
    _print(options.output, kept)
    if kept and options.output == "table":
        print("    `tonnage volumes purge NAME` deletes, `tonnage volumes adopt NAME` makes usable again")
    return 0


async def _purge(options: argparse.Namespace, found: Sources) -> int:
    chosen = _pick(await found.volumes(), options.names)
    await _refuse_owned([volume for _, volume in chosen], found)
    total = listing.size(sum(volume.size for _, volume in chosen))
    count = f"{len(chosen)} volume{'s' * (len(chosen) != 1)} ({total})"
    _print(options.output, [volume for _, volume in chosen])
    if not options.yes:
        print(
            f"{count} would be deleted with all data; nothing was touched. Repeat with --yes to delete", file=sys.stderr
        )
        return 0
    failures = [reason for source, volume in chosen if (reason := await _delete(source, volume))]
    for reason in failures:
        print(f"tonnage volumes: {reason}", file=sys.stderr)
    print(f"deleted {len(chosen) - len(failures)} of {count}", file=sys.stderr)
    return 3 if failures else 0


async def _delete(source: Source, volume: VolumeReport) -> str:
    """Why it could not be deleted, "" when it is gone."""
    try:
        await source.delete(volume)
    except TonnageError as failure:
        return f"volume {volume.id} is kept: {failure}"
    return ""


async def _refuse_owned(volumes: Sequence[VolumeReport], found: Sources) -> None:
    """Raises Precondition unless nobody has any of the volumes; also where that cannot be known."""
    for volume in volumes:
        if volume.inline:
            raise Precondition(f"volume {volume.id} {Owner.POD.value}")
        if not found.kubeconfig and (volume.cluster or volume.claim):
            why = f"was made for {volume.used_by or 'a Kubernetes cluster'}, and only its cluster knows"
            raise Precondition(f"volume {volume.id} {why} whether it is in use: {found.why_none}")
    if not found.kubeconfig:
        return
    async with _registry(found) as registry:
        for volume in volumes:
            if (owner := await registry.owner(volume)) is not Owner.NOBODY:
                raise Precondition(_refusal(volume, owner, registry.volume_of(volume)))


@asynccontextmanager
async def _registry(found: Sources) -> AsyncIterator[Registry]:
    """What the cluster knows. Raises Precondition where none can be asked."""
    async with found.client() as client:
        if client is None:
            raise Precondition(f"only a volume's cluster knows whether it is in use: {found.why_none}")
        registry = Registry(client, RealClock())
        await registry.look()
        yield registry


def _refusal(volume: VolumeReport, owner: Owner, pv: str) -> str:
    hints = {
        Owner.VOLUME: f"{pv}: delete its claim, or the PersistentVolume",
        Owner.CLAIM: f"{volume.claim}: delete that",
        Owner.YOUNG: "its PersistentVolume may be on its way: repeat in a minute",
        Owner.FOREIGN: f"{volume.cluster}: name that one's kubeconfig",
    }
    return f"volume {volume.id} {owner.value}" + (f" ({hints[owner]})" if owner in hints else "")


async def _adopt(options: argparse.Namespace, found: Sources) -> int:
    ((source, volume),) = _pick(await found.volumes(), options.names)
    if isinstance(source, Direct):
        raise Precondition(f"volume {volume.id}: a volume is adopted while its driver runs: start that first")
    async with _registry(found) as registry:
        if (owner := await registry.owner(volume)) is not Owner.NOBODY:
            raise Precondition(_refusal(volume, owner, registry.volume_of(volume)))
        body = await _body(options, source, volume)
        sys.stdout.write(listing.text("json" if options.output == "json" else "yaml", body))
        if options.yes:
            await registry.adopt(body)
            print(
                f"made PersistentVolume {body['metadata']['name']}; a claim with that volumeName takes it",
                file=sys.stderr,
            )
        else:
            print("nothing was made; repeat with --yes, or pass this to kubectl apply", file=sys.stderr)
    return 0


async def _body(options: argparse.Namespace, source: Served, volume: VolumeReport) -> dict[str, Any]:
    name = options.pv or volume.persistent_volume or volume.name
    if not names.is_dns_subdomain(name):
        raise Invalid(f"{name!r} cannot name a PersistentVolume: give it another name with --as")
    block = await source.is_block(volume)
    return orphans.persistent_volume(volume, name=name, storage_class=options.storage_class, block=block)


def _pick(volumes: Sequence[Found], wanted: Sequence[str]) -> list[Found]:
    """The volumes of those names. Raises NotFound, Invalid for a name that several have."""
    chosen: dict[tuple[str, str], Found] = {}
    for name in wanted:
        fitting = [f for f in volumes if name in (f[1].id, f[1].name)]
        if not fitting:
            raise NotFound(f"there is no volume {name!r}; `tonnage volumes list` shows those there are")
        if len(fitting) > 1:
            raise Invalid(f"several volumes are named {name!r} ({', '.join(f'{v.node} {v.id}' for _, v in fitting)})")
        chosen[fitting[0][1].node, fitting[0][1].id] = fitting[0]
    return list(chosen.values())


def _print(form: str, volumes: Sequence[VolumeReport]) -> None:
    rows = [(v.node or "-", v.id, listing.size(v.size), v.used_by or "-", v.created or "-") for v in volumes]
    listing.show(form, _COLUMNS, rows, {"volumes": volumes})


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={entry}" for key, entry in value.items())
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)

"""`tonnage images`: load, pull, list, pin and remove the images of a store."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from tonnage.base.errors import HostError, InvalidError
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.images.store import ImageRecord, ImageStore, is_store
from tonnage.tools.cli import listing
from tonnage_box.data_dir import default_folder

_COLUMNS = ("IMAGE", "DIGEST", "PLATFORM", "LAYERS", "SIZE", "USES")
_SHORT = 19  # characters of a digest in a table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions, with their options."""
    actions = parser.add_subparsers(dest="action", metavar="load|pull|list|pin|prune|rm", required=True)
    load = actions.add_parser("load", help="load OCI layouts, OCI archives and archives of `docker save`")
    load.add_argument("sources", nargs="+", type=Path, metavar="FILE|DIR", help="an archive, a layout, or a folder of")
    load.add_argument("--name", default="", help="name for the image, instead of that in the archive")
    pull = actions.add_parser("pull", help="pull images from their registries; unused ones may be evicted later")
    pull.add_argument("names", nargs="+", metavar="NAME")
    pull.add_argument("--plain-http", action="store_true", help="ask the registry without encryption")
    pull.add_argument("--ca", type=Path, metavar="FILE", help="certificates of the registry's authority")
    pull.add_argument("--auth", type=Path, metavar="FILE", help="a Docker configuration with logins (config.json)")
    show = actions.add_parser("list", help="show the images")
    remove = actions.add_parser("rm", help="remove images, and the layers that nothing uses")
    remove.add_argument("names", nargs="+", metavar="NAME")
    pin = actions.add_parser("pin", help="keep pulled images from being evicted")
    pin.add_argument("names", nargs="+", metavar="NAME")
    prune = actions.add_parser("prune", help="remove pulled images that nothing uses, but for pinned ones")
    for action in (load, pull, show, pin, prune, remove):
        action.add_argument("--data", type=Path, metavar="DIR", help="a box's data folder (default: as `tonnage up`)")
        action.add_argument("--store", type=Path, metavar="DIR", help="a store elsewhere, as `up --images` takes it")
    for action in (load, pull, show):
        action.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")


def run(options: argparse.Namespace) -> int:
    """Run an action; 1 when one of several images failed."""
    path = options.store or (options.data or default_folder()) / "images"
    store = ImageStore(Path(os.path.abspath(path)))
    return _ACTIONS[options.action](store, options)


def _remove(store: ImageStore, options: argparse.Namespace) -> int:
    for name in options.names:
        print(f"removed {store.remove(name).name}")
    return 0


def _pin(store: ImageStore, options: argparse.Namespace) -> int:
    for name in options.names:
        print(f"pinned {store.pin(name).name}")
    return 0


def _prune(store: ImageStore, options: argparse.Namespace) -> int:
    for record in store.evict(lambda: True, now=time.time()):
        print(f"removed {record.name}")
    return 0


def _pull(store: ImageStore, options: argparse.Namespace) -> int:
    from tonnage.storage.images import reference
    from tonnage.storage.images.manifest import machine
    from tonnage.storage.registry.client import parse_access
    from tonnage.storage.registry.login import CONFIG_JSON
    from tonnage.storage.registry.pull import pull

    _check_root()
    secrets = {CONFIG_JSON: _read(options.auth)} if options.auth else {}
    records = []
    for name in options.names:
        image = reference.parse(name)
        host = image.repository.partition("/")[0]
        access = parse_access((f"http://{host}" if options.plain_http else host,), options.ca)
        client = access.client(image, access.login(image, secrets))
        records.append(pull(client, client.resolve(machine()), store).record)
    _show(store, records, options.output)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as failure:
        raise InvalidError(f"{path}: cannot be read: {getattr(failure, 'strerror', None) or failure}") from failure


def _list(store: ImageStore, options: argparse.Namespace) -> int:
    _show(store, store.images(), options.output)
    damaged = store.damaged()
    for failure in damaged:
        print(f"warning: {failure}", file=sys.stderr)
    return 1 if damaged else 0


def _load(store: ImageStore, options: argparse.Namespace) -> int:
    _check_root()
    paths = [path for given in options.sources for path in expand(given)]
    if options.name and len(paths) > 1:
        raise InvalidError(f"--name {options.name}: it is for one archive, {len(paths)} are given")
    records: list[ImageRecord] = []
    for path in paths:
        records += store.load(path, options.name)
    _show(store, records, options.output)
    return 0


def _check_root() -> None:
    if os.geteuid() != 0:
        raise HostError("images are unpacked with their owners, which only root can set: run it as root (sudo)")


def expand(path: Path) -> list[Path]:
    """The archives and layouts of a folder; any other path is one itself. Raises: InvalidError for an empty folder."""
    if not path.is_dir() or (path / "oci-layout").exists() or (path / "manifest.json").exists():
        return [path]
    if is_store(path):
        raise InvalidError(f"{path} is an image store, not an archive: give it to `tonnage up --images`")
    found = sorted(
        entry
        for entry in path.iterdir()
        if entry.suffix == ".tar" or (entry.is_dir() and (entry / "oci-layout").exists())
    )
    if not found:
        raise InvalidError(f"{path} has no image: want files *.tar, or folders with an OCI layout")
    return found


def _show(store: ImageStore, records: list[ImageRecord], form: str) -> None:
    uses = store.uses()
    rows = [
        (
            record.name,
            record.digest[:_SHORT],
            record.platform,
            str(len(record.layers)),
            from_bytes(_rounded(record.size)),
            str(uses.get(record.layers[-1], 0) if record.layers else 0),
        )
        for record in records
    ]
    listing.show(form, _COLUMNS, rows, {"images": [msgspec.to_builtins(record) for record in records]})


def _rounded(size: int) -> int:
    """A size that is short to read: whole Mi above 10Mi, else whole Ki."""
    step = 1 << 20 if size > 10 << 20 else 1 << 10
    return -(-size // step) * step


_ACTIONS: Mapping[str, Callable[[ImageStore, argparse.Namespace], int]] = {
    "load": _load, "pull": _pull, "list": _list, "pin": _pin, "prune": _prune, "rm": _remove,
}  # fmt: skip

"""Configuration of a driver: YAML file, command line, and pools.

A value of the command line replaces that of the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from tonnage.base import option
from tonnage.base.errors import InvalidError
from tonnage.base.observe.exporter import Address, parse_address
from tonnage.base.option import Option, Values
from tonnage.csi.server.sockets import ENDPOINT
from tonnage.host.iolimits import ROOT as CGROUPS
from tonnage.kubernetes.api import names
from tonnage.storage.content.hosts import AllowedHost, parse_host
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools import kinds
from tonnage.storage.pools.directory.kind import DirectoryConfig
from tonnage.storage.pools.kind import PoolConfig

_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def absolute(what: str, text: str) -> Path:
    """Return an absolute path without `..`. Raises: InvalidError naming `what`."""
    if not text.startswith("/") or "\0" in text:
        raise InvalidError(f"{what} {text[:120]!r}: want an absolute path")
    return Path(os.path.normpath(text))


def _paths(what: str, texts: Sequence[str]) -> tuple[Path, ...]:
    return tuple(absolute(what, text) for text in texts)


def _hosts(texts: Sequence[str]) -> tuple[AllowedHost, ...]:
    return tuple(map(parse_host, texts))


def _roots(text: str) -> tuple[Path, ...]:
    return _paths("kubelet root", [text])


def _group(text: str) -> str:
    if ".." in text.split("/") or "\0" in text:
        raise InvalidError(f"ioCgroup {text[:120]!r}: want the name of a group below the root, as nomad.slice")
    return text.strip("/")


def _topology_key(text: str) -> str:
    prefix, slash, name = text.rpartition("/")
    if (slash and not names.is_dns_subdomain(prefix)) or not _NAME_PART.fullmatch(name):
        raise InvalidError(f"topology key {text[:120]!r}: want a label key, as {names.TOPOLOGY_NODE}")
    return text


def default_state(driver: str) -> Path:
    """Return a driver's default state directory.

    Below /var/lib for root, else below the user's state directory.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/tonnage-driver") / driver
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "tonnage-driver" / driver


@dataclass(frozen=True)
class DriverConfig:
    """A driver's configuration: the one declaration of its options.

    The first pool is the default pool. roots: directories that all paths of callers must be in; empty: no limit.
    sources: directories whose content new volumes may be populated from. fetch, image_stores: hosts and image stores
    likewise. cgroups: mount point of cgroups. io_cgroup:
    the cgroup whose IO is limited for paths without a pod, "" for none.
    """

    endpoint: Annotated[Path, ENDPOINT]
    pools: Sequence[PoolConfig]
    node_name: Annotated[str, Option("default: $NODE_NAME, else the host's name", "NAME", environ="NODE_NAME")]
    state: Annotated[
        Path,
        Option(
            f"folder for mounts of inline volumes (default: {default_state(names.DRIVER)})",
            "DIR",
            parse=partial(absolute, "state"),
        ),
    ]
    driver_name: Annotated[str, Option(f"default: {names.DRIVER}", "NAME")] = names.DRIVER
    topology_key: Annotated[str, Option(f"default: {names.TOPOLOGY_NODE}", "KEY", parse=_topology_key)] = (
        names.TOPOLOGY_NODE
    )
    max_volumes: Annotated[
        int,
        Option("maximum number of volumes of the node, 0: no limit", "N", written=int, wanted="0 (no limit) or more"),
    ] = 0
    registry: Annotated[
        Path | None,
        Option("register with a kubelet, in its folder plugins_registry", "DIR", parse=partial(absolute, "registry")),
    ] = None
    metrics: Annotated[
        Address | None,
        Option("serve Prometheus metrics (default address: loopback)", "[ADDRESS:]PORT", parse=parse_address),
    ] = None
    roots: Annotated[
        tuple[Path, ...],
        Option(
            "reject staging and target paths that are not beneath DIR, as /var/lib/kubelet; it may be a symlink",
            "DIR",
            name="kubelet_root",
            parse=_roots,
        ),
    ] = ()
    sources: Annotated[
        tuple[Path, ...],
        Option(
            "a folder of the node from which the class parameter source may populate volumes; repeatable",
            "DIR",
            written=list[str],
            parse=partial(_paths, "source"),
        ),
    ] = ()
    fetch: Annotated[
        tuple[AllowedHost, ...],
        Option(
            "a host from which volumes may be filled (Content: url, s3); without a port 80 and 443; repeatable"
            " (default: none)",
            "HOST[:PORT]",
            written=list[str],
            parse=_hosts,
        ),
    ] = ()
    image_stores: Annotated[
        tuple[Path, ...],
        Option(
            "an image store from which volumes may be filled (Content: image); repeatable",
            "DIR",
            written=list[str],
            parse=partial(_paths, "image store"),
        ),
    ] = ()
    cgroups: Annotated[
        Path, Option("where cgroups are mounted (/sys/fs/cgroup)", "DIR", parse=partial(absolute, "cgroups"))
    ] = CGROUPS
    io_cgroup: Annotated[
        str,
        Option(
            "the cgroup whose IO is limited where a path names no pod, as nomad.slice (default: rejected)",
            "GROUP",
            parse=_group,
        ),
    ] = ""


POOLS = {"pools": list[dict[str, Any]]}
"""Key of a file that no option has: its pools, each with `name`, `kind`, `path` and the options of the kind."""
DRIVER_FILE = option.file_type("DriverFile", [DriverConfig], **POOLS)


def load(path: Path, form: type[msgspec.Struct] = DRIVER_FILE) -> Values:
    """Read a file of that type. Raises: InvalidError with the file and the position."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as failure:
        raise InvalidError(f"{path}: cannot be read: {getattr(failure, 'strerror', None) or failure}") from failure
    try:
        return option.convert(yaml.load(text, _StrictLoader), form)
    except yaml.YAMLError as failure:
        raise InvalidError(f"{path}: {_flat(failure)}") from None
    except msgspec.ValidationError as failure:
        raise InvalidError(f"{path}: {_readable(str(failure), form)}") from None


def pools_of(file: Values, origin: str) -> list[PoolConfig]:
    """Return the pools of a file.

    A pool on the node's own disk must say `rootfs`.

    Raises: InvalidError with the entry and its key.
    """
    found = [_pool(entry, f"{origin}: pools[{number}]") for number, entry in enumerate(file.get("pools", ()))]
    return [replace(pool, rootfs=bool(pool.rootfs)) if isinstance(pool, DirectoryConfig) else pool for pool in found]


def merge(file: Values, given: Values, pools: Sequence[PoolConfig], *, node: str) -> DriverConfig:
    """Merge the command line over the file.

    pools: of both. node: the node's name where none is given.

    Raises: InvalidError.
    """
    found = {"node_name": node, **option.read(DriverConfig, given, file)}
    if "endpoint" not in found:
        raise InvalidError("no endpoint: say where to listen, as --endpoint unix:///run/tonnage/csi.sock")
    if not pools:
        raise InvalidError("no pools: name at least one, as --pool image:/var/lib/tonnage-pool,size=100Gi")
    if doubles := sorted({p.name for p in pools if [q.name for q in pools].count(p.name) > 1}):
        raise InvalidError(f"two pools are named {doubles[0]!r}: give each a name=")
    found.setdefault("state", default_state(found.get("driver_name", names.DRIVER)))
    return DriverConfig(pools=list(pools), **found)


def _pool(entry: Mapping[str, Any], place: str) -> PoolConfig:
    """Parse an entry as --pool does, so that there is one list of kinds and options."""
    values = {key: _text(value, f"{place}.{key}") for key, value in entry.items()}
    kind, path = values.pop("kind", ""), values.pop("path", "")
    if not kind:
        raise InvalidError(f"{place}: kind is missing, want one of {', '.join(kinds.MODULES)}")
    head = f"{kind}:{path}" if path else kind
    for key, value in {"kind": kind, "path": path, **values}.items():
        if "," in value:
            raise InvalidError(f"{place}.{key}: {value[:80]!r} has a comma, which no pool can have")
    if kinds.find(kind) is None:
        _at(f"{place}.kind", kind)
    _at(f"{place}.path", head)
    for key, value in values.items():
        _at(f"{place}.{key}", f"{head},{key}={value}")
    return _at(place, ",".join([head, *(f"{key}={value}" for key, value in values.items())]))


def _at(place: str, text: str) -> PoolConfig:
    try:
        return pool_config.parse(text)
    except InvalidError as reason:
        # The user did not write this description: we made it from the entry.
        raise InvalidError(f"{place}: {str(reason).removeprefix(f'pool {text[:80]!r}: ')}") from None


def _text(value: object, place: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str | int | float):
        raise InvalidError(
            f"{place}: want a text or a number, found {'nothing' if value is None else 'a list or mapping'}"
        )
    return str(value)


def _readable(message: str, form: type[msgspec.Struct]) -> str:
    """Rewrite msgspec's message with its path first.

    "Expected `int` - at `$.pools[0]`" becomes "pools[0]: expected `int`".
    """
    text, _, path = message.removeprefix("Object contains ").partition(" - at `$")
    path = path.removesuffix("`").removeprefix(".")
    known = f"; there is {', '.join(option.file_keys(form))}" if "unknown field" in text and not path else ""
    return f"{path + ': ' if path else ''}{text[:1].lower()}{text[1:]}{known}"


def _flat(failure: yaml.YAMLError) -> str:
    mark = getattr(failure, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{where}{getattr(failure, 'problem', None) or failure}"


class _StrictLoader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys.

    YAML itself would silently take the last one.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As in yaml."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

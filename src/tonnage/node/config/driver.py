"""Configuration of a driver: YAML file, command line, and pools.

A value of the command line replaces that of the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from tonnage.api import names
from tonnage.csi.server import sockets
from tonnage.errors import Invalid
from tonnage.host.iolimits import ROOT as CGROUPS
from tonnage.observe.exporter import Address, parse_address
from tonnage.pools import config as pool_config
from tonnage.pools.config import PoolConfig

_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


F = TypeVar("F", bound="DriverFile")


class DriverFile(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Fields of a driver's file; an empty value was not given.

    pools: `name`, `kind`, `path` and the options of the kind.
    """

    endpoint: str = ""
    node_name: str = ""
    driver_name: str = ""
    topology_key: str = ""
    max_volumes: int = 0
    registry: str = ""
    state: str = ""
    kubelet_root: str = ""
    metrics: str = ""
    sources: list[str] = []
    cgroups: str = ""
    io_cgroup: str = ""
    pools: list[dict[str, Any]] = []


@dataclass(frozen=True)
class DriverConfig:
    """A driver's configuration.

    The first pool is the default pool. roots: directories that all paths of callers must be in; empty: no limit.
    sources: directories whose content new volumes may be populated from. cgroups: mount point of cgroups. io_cgroup:
    the cgroup whose IO is limited for paths without a pod, "" for none.
    """

    endpoint: Path
    pools: Sequence[PoolConfig]
    node_name: str
    state: Path
    driver_name: str = names.DRIVER
    topology_key: str = names.TOPOLOGY_NODE
    max_volumes: int = 0
    registry: Path | None = None
    metrics: Address | None = None
    roots: tuple[Path, ...] = ()
    sources: tuple[Path, ...] = ()
    cgroups: Path = CGROUPS
    io_cgroup: str = ""


def read(path: Path) -> DriverFile:
    """Read a driver's file. Raises Invalid with the file and the position."""
    return load(path, DriverFile)


def load(path: Path, form: type[F]) -> F:
    """Read a file of that type. Raises Invalid with the file and the position."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as failure:
        raise Invalid(f"{path}: cannot be read: {getattr(failure, 'strerror', None) or failure}") from failure
    try:
        content = yaml.load(text, _StrictLoader)
    except yaml.YAMLError as failure:
        raise Invalid(f"{path}: {_flat(failure)}") from None
    try:
        return msgspec.convert({} if content is None else content, form)
    except msgspec.ValidationError as failure:
        raise Invalid(f"{path}: {_readable(str(failure), form)}") from None


def pools_of(file: DriverFile, origin: str) -> list[PoolConfig]:
    """Return the pools of a file.

    A pool on the node's own disk must say `rootfs`.

    Raises: Invalid with the entry and its key.
    """
    found = [_pool(entry, f"{origin}: pools[{number}]") for number, entry in enumerate(file.pools)]
    return [replace(pool, rootfs=bool(pool.rootfs)) if pool.takes_disk else pool for pool in found]


def merge(file: DriverFile, given: DriverFile, pools: Sequence[PoolConfig], *, node: str) -> DriverConfig:
    """Merge the command line over the file.

    pools: of both. node: the node's name where none is given.

    Raises: Invalid.
    """
    found = {name: getattr(given, name) or getattr(file, name) for name in DriverFile.__struct_fields__}
    if not found["endpoint"]:
        raise Invalid("no endpoint: say where to listen, as --endpoint unix:///run/tonnage/csi.sock")
    if not pools:
        raise Invalid("no pools: name at least one, as --pool image:/var/lib/tonnage-pool,size=100Gi")
    if doubles := sorted({p.name for p in pools if [q.name for q in pools].count(p.name) > 1}):
        raise Invalid(f"two pools are named {doubles[0]!r}: give each a name=")
    if found["max_volumes"] < 0:
        raise Invalid(f"maxVolumes {found['max_volumes']}: want 0 (no limit) or more")
    name = found["driver_name"] or names.DRIVER
    return DriverConfig(
        endpoint=socket_path(found["endpoint"]),
        pools=list(pools),
        node_name=found["node_name"] or node,
        state=absolute("state", found["state"]) if found["state"] else default_state(name),
        driver_name=name,
        topology_key=_topology_key(found["topology_key"] or names.TOPOLOGY_NODE),
        max_volumes=found["max_volumes"],
        registry=absolute("registry", found["registry"]) if found["registry"] else None,
        metrics=parse_address(found["metrics"]) if found["metrics"] else None,
        roots=(absolute("kubelet root", found["kubelet_root"]),) if found["kubelet_root"] else (),
        sources=tuple(absolute("source", text) for text in found["sources"]),
        cgroups=absolute("cgroups", found["cgroups"]) if found["cgroups"] else CGROUPS,
        io_cgroup=_group(found["io_cgroup"]),
    )


def socket_path(text: str) -> Path:
    """Return the path of a CSI endpoint such as `unix:///run/csi.sock`.

    `unix:/run/csi.sock` and a plain absolute path are accepted too.

    Raises: Invalid.
    """
    path = text.removeprefix("unix:")
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/") or "\0" in path or path.endswith("/"):
        raise Invalid(f"endpoint {text[:120]!r}: want a unix socket with an absolute path, as unix:///run/csi.sock")
    sockets.check_length(Path(path))
    return Path(path)


def default_state(driver: str) -> Path:
    """Return a driver's default state directory.

    Below /var/lib for root, else below the user's state directory.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/tonnage-driver") / driver
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "tonnage-driver" / driver


def absolute(what: str, text: str) -> Path:
    """Return an absolute path without `..`. Raises Invalid naming `what`."""
    if not text.startswith("/") or "\0" in text:
        raise Invalid(f"{what} {text[:120]!r}: want an absolute path")
    return Path(os.path.normpath(text))


def _group(text: str) -> str:
    if ".." in text.split("/") or "\0" in text:
        raise Invalid(f"ioCgroup {text[:120]!r}: want the name of a group below the root, as nomad.slice")
    return text.strip("/")


def _topology_key(text: str) -> str:
    prefix, slash, name = text.rpartition("/")
    if (slash and not names.is_dns_subdomain(prefix)) or not _NAME_PART.fullmatch(name):
        raise Invalid(f"topology key {text[:120]!r}: want a label key, as {names.TOPOLOGY_NODE}")
    return text


def _pool(entry: Mapping[str, Any], place: str) -> PoolConfig:
    """Parse an entry as --pool does, so that there is one list of kinds and options."""
    values = {key: _text(value, f"{place}.{key}") for key, value in entry.items()}
    kind, path = values.pop("kind", ""), values.pop("path", "")
    if not kind:
        raise Invalid(f"{place}: kind is missing, want one of {', '.join(pool_config.KINDS)}")
    head = f"{kind}:{path}" if path else kind
    for key, value in {"kind": kind, "path": path, **values}.items():
        if "," in value:
            raise Invalid(f"{place}.{key}: {value[:80]!r} has a comma, which no pool can have")
    if kind not in (*pool_config.KINDS, *names.RENAMED_KINDS):
        _at(f"{place}.kind", kind)
    _at(f"{place}.path", head)
    for key, value in values.items():
        _at(f"{place}.{key}", f"{head},{key}={value}")
    return _at(place, ",".join([head, *(f"{key}={value}" for key, value in values.items())]))


def _at(place: str, text: str) -> PoolConfig:
    try:
        return pool_config.parse(text)
    except Invalid as reason:
        # The user did not write this description: we made it from the entry.
        raise Invalid(f"{place}: {str(reason).removeprefix(f'pool {text[:80]!r}: ')}") from None


def _text(value: object, place: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str | int | float):
        raise Invalid(f"{place}: want a text or a number, found {'nothing' if value is None else 'a list or mapping'}")
    return str(value)


def _readable(message: str, form: type[DriverFile]) -> str:
    """Rewrite msgspec's message with its path first.

    "Expected `int` - at `$.pools[0]`" becomes "pools[0]: expected `int`".
    """
    text, _, path = message.removeprefix("Object contains ").partition(" - at `$")
    path = path.removesuffix("`").removeprefix(".")
    known = f"; there is {', '.join(sorted(_fields(form)))}" if "unknown field" in text and not path else ""
    return f"{path + ': ' if path else ''}{text[:1].lower()}{text[1:]}{known}"


def _fields(form: type[DriverFile]) -> list[str]:
    return [found.encode_name for found in msgspec.structs.fields(form)]


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

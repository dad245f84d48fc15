"""The configuration of the driver, and the driver itself: its services at a socket."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import yaml

from tonnage.base.errors import InvalidError
from tonnage.base.option import Option
from tonnage.cinder import library
from tonnage.cinder.child import Child
from tonnage.cinder.controller import CinderController
from tonnage.cinder.node import CinderNode
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import lock_key
from tonnage.csi.driver.paths import Places
from tonnage.csi.driver.services.identity import Identity, PluginService
from tonnage.csi.server.server import CsiServer
from tonnage.csi.server.service import offered
from tonnage.csi.server.sockets import ENDPOINT

NAME = "cinder.tonnage.dev"
STATE = Path("/var/lib/tonnage-cinder")
_ROOT = Path("/var/lib/kubelet")


def _absolute(what: str, text: str) -> Path:
    if not text.startswith("/") or ".." in text.split("/"):
        raise InvalidError(f"{what} {text[:120]!r}: want an absolute path")
    return Path(text)


def _seconds(given: int) -> int:
    if given < 1:
        raise InvalidError(f"time limit {given}: want 1 or more")
    return given


@dataclass(frozen=True)
class CinderConfig:
    """The one declaration of the options. interpreter: has cinderlib, on nodes os-brick at least."""

    endpoint: Annotated[Path, ENDPOINT]
    backends: Annotated[
        Path | None,
        Option("back ends; without it only the node service is served", "FILE.yaml", name="config", parse=Path),
    ] = None
    driver_name: Annotated[str, Option(f"default: {NAME}", "NAME")] = NAME
    state: Annotated[
        Path,
        Option(
            f"folder of the database and of a node's connections (default: {STATE})",
            "DIR",
            parse=partial(_absolute, "state"),
        ),
    ] = STATE
    kubelet_root: Annotated[
        Path,
        Option(
            f"reject paths that are not beneath DIR (default: {_ROOT})", "DIR", parse=partial(_absolute, "kubelet root")
        ),
    ] = _ROOT
    interpreter: Annotated[
        str, Option("a Python that has cinderlib and os-brick (default: the one that runs this)", "PYTHON")
    ] = sys.executable
    node_keys: Annotated[
        Sequence[str],
        Option(
            "what of os-brick's connector makes the node's id; repeatable (default: host, ip, initiator)",
            "KEY",
            written=list[str],
        ),
    ] = ("host", "ip", "initiator")
    time_limit: Annotated[
        int, Option("seconds for a request to the storage (default: 600)", "SECONDS", written=int, parse=_seconds)
    ] = 600

    @property
    def command(self) -> tuple[str, ...]:
        """The command of a child. By its path: its interpreter need not have tonnage, and imports nothing from here."""
        return (self.interpreter, "-I", library.__file__)


def load(path: Path) -> list[dict[str, Any]]:
    """Back ends of a file, each with `name` and the options of Cinder.

    A value `{file: PATH}` is replaced by the file's content. Raises: InvalidError, which never shows a value. Blocking.
    """
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as failure:
        where = getattr(failure, "problem_mark", None)
        why = f"line {where.line + 1} is not YAML" if where else getattr(failure, "strerror", None) or "it is not YAML"
        raise InvalidError(f"{path}: cannot be read: {why}") from None
    backends = found.get("backends") if isinstance(found, dict) and set(found) == {"backends"} else None
    if not isinstance(backends, list) or not backends:
        raise InvalidError(f"{path}: want one key, backends, with a list of back ends")
    read = [_backend(one, f"{path}: backends[{number}]") for number, one in enumerate(backends)]
    if len({one["name"] for one in read}) < len(read):
        raise InvalidError(f"{path}: two back ends have the same name")
    return read


def _backend(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
        raise InvalidError(f"{where}: want options of Cinder by name")
    for key in ("name", "volume_driver"):
        if not isinstance(given.get(key), str) or not given[key]:
            raise InvalidError(f"{where}: {key} is missing")
    if not given["name"].isidentifier():  # Cinder puts it into a section's name and `HOST@NAME#POOL`
        raise InvalidError(f"{where}: name: want letters, digits and '_'")
    return {key: _value(value, f"{where}: {key}") for key, value in given.items()}


def _value(given: object, where: str) -> object:
    if not isinstance(given, Mapping) or set(given) != {"file"}:
        return given
    try:
        return Path(str(given["file"])).read_text().rstrip("\n")
    except (OSError, UnicodeDecodeError) as failure:
        raise InvalidError(f"{where}: {given['file']}: {getattr(failure, 'strerror', None) or 'not text'}") from None


class CinderDriver:
    """The driver at its socket. start() and stop() are idempotent; a killed one continues when it is started again."""

    def __init__(self, config: CinderConfig, *, command: Sequence[str] = ()) -> None:
        """command: of the child, in place of the configuration's. Raises: InvalidError for a wrong file."""
        backends = load(config.backends) if config.backends else []
        command = command or config.command
        self._node = Child("node", command, {"state": str(config.state / "node")}, limit=config.time_limit)
        places = Places((config.kubelet_root,))
        node = CinderNode(self._node, config.state / "connections", config.node_keys, places)
        controls = bool(backends)
        identity = Identity(
            config.driver_name,
            services=lambda: [PluginService.CONTROLLER_SERVICE] if controls else [],
            expands=lambda: controls,
        )
        ours: dict[str, object] = {"Identity": identity, "Node": node}
        self.children = [self._node]
        if backends:
            setup = {"state": str(config.state / "controller"), "backends": backends}
            storage = Child("storage", command, setup, limit=config.time_limit)
            self.children.append(storage)
            ours["Controller"] = CinderController(storage, [one["name"] for one in backends])
        services = offered(csi_pb2.DESCRIPTOR, ours, key=lock_key)
        self.server = CsiServer(config.endpoint, services, driver=config.driver_name)

    async def start(self) -> None:
        """Serve. The storage is asked with the first call only. Raises: as CsiServer.start."""
        await self.server.start()

    async def stop(self) -> None:
        """Stop serving and kill the children; volumes and mounts stay."""
        await self.server.stop()
        for child in self.children:
            await child.close()

"""The child: runs Cinder's library and os-brick for tonnage, a JSON object a line (see Child).

It is run by its path, by an interpreter that need not have tonnage: standard library here, cinderlib and os_brick where
a request needs them. Requests are idempotent, also after a kill between any two lines: a volume's id follows from its
name, its record is written before the storage is asked, and what is not finished is made again.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

_DEATH_SIGNAL = 1  # prctl(2)
_KINDS = (
    ("not-found", "NotFound"),
    ("in-use", "VolumeIsBusy"),
    ("in-use", "SnapshotIsBusy"),
    ("in-use", "InvalidVolume"),
    ("invalid", "InvalidInput"),
)
"""Kinds of errors and the classes that have them, by their names: nothing is imported for that."""
_FULL = re.compile(r"insufficient|no space left|not enough|out of space|exceeds", re.IGNORECASE)
"""What drivers say when a pool is full: they have no class of errors for it."""
_READY = ("available", "in-use")
_EXTENDING = "extending"


class RequestError(Exception):
    """A request that fails for a reason of its own kind."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def kind_of(failure: Exception) -> str:
    """The kind of an error, "failed" for any other."""
    if isinstance(failure, RequestError):
        return failure.kind
    classes = {cls.__name__ for cls in type(failure).__mro__}
    found = next((kind for kind, name in _KINDS if name in classes), "")
    return found or ("full" if _FULL.search(str(failure)) else "failed")


def text_of(failure: Exception) -> str:
    """What failed and why, on one line: of a program its command and what it said."""
    said = getattr(failure, "stderr", None)
    if isinstance(said, str) and said.strip():  # oslo's ProcessExecutionError, which hides that in what it prints
        lines = "; ".join(line.strip() for line in said.splitlines() if line.strip())
        return f"{getattr(failure, 'cmd', '')}: exit code {getattr(failure, 'exit_code', '')}: {lines}"
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__


def _id(kind: str, name: str) -> str:
    """The id in Cinder: the same at each attempt, so the storage's object is found again by its name there."""
    return str(uuid5(NAMESPACE_URL, f"tonnage/{kind}/{name}"))


class Storage:
    """Requests to back ends, with cinderlib. Volumes are recorded in an SQLite database in `state`."""

    def __init__(self, state: Path, backends: list[dict[str, Any]]) -> None:
        import cinderlib
        from cinderlib import objects

        self._lib, self._objects = cinderlib, objects
        self._configured = {one["name"]: {k: v for k, v in one.items() if k != "name"} for one in backends}
        cinderlib.setup(
            file_locks_path=str(state / "locks"),
            root_helper="",
            fail_on_missing_backend=False,  # a volume's record can be read while its storage is away
            host="tonnage",  # part of each record; not the machine's, as the driver may move
            state_path=str(state),
            persistence_config={"storage": "db", "connection": f"sqlite:///{state}/cinder.sqlite"},
        )
        self._records = cinderlib.Backend.persistence
        self._record_new, self._records.set_volume = self._records.set_volume, self._record

    def _record(self, volume: Any) -> None:
        """Record what has changed of a volume: cinderlib forgets its type, and so its QoS, at the second time."""
        changed = self._records.get_changed_fields(volume)
        if "id" in changed:
            self._record_new(volume)
            return
        changed = {key: value for key, value in changed.items() if key not in ("extra_specs", "qos_specs")}
        if changed:
            self._records.db.volume_update(self._objects.CONTEXT, volume.id, changed)
            self._records.reset_change_tracker(volume)

    def get(self, name: str) -> dict[str, Any] | None:
        """A volume that is finished, None for none."""
        volume = self._find(name)
        return self._shown(volume) if volume is not None and volume.status in _READY else None

    def create(
        self, name: str, size: int, source: str, backend: str, pool: str, qos: dict[str, str], extra: dict[str, str]
    ) -> dict[str, Any]:
        """Make a volume of `size` GiB, from `snapshot/NAME` or `volume/NAME`."""
        storage = self._backend(backend)
        if pool and pool not in storage.pool_names:
            raise RequestError("invalid", f"back end {backend} has no pool {pool}: {', '.join(storage.pool_names)}")
        if (left := self._find(name)) is not None:
            if left.status in _READY:
                return self._shown(left)
            self._discard(left)
        kind, _, of = source.partition("/")
        origin = self._needed(of) if kind == "volume" else self._needed_snapshot(of) if kind else None
        copied = {"source_volid" if kind == "volume" else "snapshot_id": origin.id} if origin is not None else {}
        volume = self._lib.Volume(
            storage, pool_name=pool or None, id=_id("volume", name), name=name, description=source, size=size,
            qos_specs=qos, extra_specs=extra, **copied,
        )  # fmt: skip
        volume.save()
        try:
            if origin is None:
                update = storage.driver.create_volume(volume._ovo)
            elif kind == "volume":
                update = storage.driver.create_cloned_volume(volume._ovo, origin._ovo)
            else:
                update = storage.driver.create_volume_from_snapshot(volume._ovo, origin._ovo)
        except Exception as failure:
            try:
                self._discard(volume)
            except Exception:
                raise RequestError("unfinished", f"{text_of(failure)}; what was made could not be deleted") from failure
            raise
        volume._ovo.update(update or {})
        volume._ovo.status = "available"
        volume.save()
        return self._shown(volume)

    def delete(self, name: str) -> None:
        """Delete a volume; an unknown one is success."""
        if (volume := self._find(name)) is None:
            return
        if volume.connections:
            raise RequestError("in-use", f"volume {name} is attached to {', '.join(_nodes(volume))}")
        if volume.snapshots:
            raise RequestError("in-use", f"volume {name} has snapshots: {', '.join(s.name for s in volume.snapshots)}")
        self._discard(volume)

    def extend(self, name: str, size: int) -> dict[str, Any]:
        """Make a volume `size` GiB large."""
        volume = self._needed(name)
        if volume.size >= size:
            return self._shown(volume)
        was_cut_off = volume.previous_status == _EXTENDING
        volume._ovo.previous_status = _EXTENDING
        volume.save()
        try:
            volume.backend.driver.extend_volume(volume._ovo, size)
        except Exception:
            if not was_cut_off:
                volume._ovo.previous_status = None
                volume.save()
                raise
            size += 1  # the storage may have that size already, and drivers reject to extend by nothing
            volume.backend.driver.extend_volume(volume._ovo, size)
        volume._ovo.size, volume._ovo.previous_status = size, None
        volume.save()
        return self._shown(volume)

    def connect(self, name: str, connector: dict[str, Any]) -> dict[str, Any]:
        """Export a volume to a node; how it connects."""
        volume = self._needed(name)
        for found in volume.connections:
            if found.connector_info["node"] != connector["node"]:
                raise RequestError("in-use", f"volume {name} is attached to {found.connector_info['node']}")
            return dict(found.conn_info)
        if volume.status != "available":  # an earlier attempt was cut off
            volume._remove_export()
        volume._ovo.status = "in-use"
        volume.save()
        return dict(volume.connect(connector).conn_info)

    def disconnect(self, name: str, node: str) -> None:
        """End the export to a node, "" for all; success where there is none."""
        if (volume := self._find(name)) is None:
            return
        self._backend(volume.backend)
        volume = self._needed(name)
        for found in list(volume.connections):
            if node in ("", found.connector_info["node"]):
                volume.disconnect(found)
        if not volume.connections and volume.status == "in-use":
            volume._remove_export()
            volume._ovo.status = "available"
            volume.save()

    def list_volumes(self) -> list[dict[str, Any]]:
        """All volumes that are finished."""
        return [self._shown(one) for one in self._records.get_volumes() if one.status in _READY]

    def stats(self, backend: str) -> dict[str, Any]:
        """Free GiB of each pool as the storage says it, or its word for that it does not know."""
        pools = self._backend(backend).stats(refresh=True)["pools"]
        return {pool["pool_name"]: pool.get("free_capacity_gb", "unknown") for pool in pools}

    def get_snapshot(self, name: str) -> dict[str, Any] | None:
        """A snapshot that is finished, None for none."""
        found = self._snapshots(name)
        return _shown_snapshot(found[0]) if found and found[0].status == "available" else None

    def snapshot(self, name: str, volume: str) -> dict[str, Any]:
        """Make a snapshot of a volume."""
        of = self._needed(volume)
        for left in self._snapshots(name):
            if left.status == "available":
                return _shown_snapshot(left)
            left.delete()
        made = self._lib.Snapshot(of, id=_id("snapshot", name), name=name)
        made.save()
        made.create()
        return _shown_snapshot(made)

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot; an unknown one is success."""
        for found in self._snapshots(name):
            found.delete()

    def list_snapshots(self) -> list[dict[str, Any]]:
        """All snapshots that are finished."""
        found = self._records.get_snapshots()
        return [_shown_snapshot(one) for one in found if one.status == "available"]

    def _backend(self, name: Any) -> Any:
        """A back end, set up at its first use. One that is away fails only its own requests."""
        if not isinstance(name, str):
            return name
        return self._lib.Backend.backends.get(name) or self._lib.Backend(name, **self._configured[name])

    def _find(self, name: str) -> Any:
        found = self._lib.Volume.get_by_name(name)
        return found[0] if found else None

    def _needed(self, name: str) -> Any:
        """A volume with its back end. Raises: RequestError where there is none."""
        if (volume := self._find(name)) is None:
            raise RequestError("not-found", f"volume {name} does not exist")
        if isinstance(volume.backend, str):
            self._backend(volume.backend)
            volume = self._find(name)
        return volume

    def _snapshots(self, name: str) -> list[Any]:
        """The snapshot of that name, with its back end."""
        found = self._lib.Snapshot.get_by_name(name)
        if found and isinstance(found[0].backend, str):
            self._backend(found[0].backend)
            found = self._lib.Snapshot.get_by_name(name)
        return list(found)

    def _needed_snapshot(self, name: str) -> Any:
        if not (found := self._snapshots(name)):
            raise RequestError("not-found", f"snapshot {name} does not exist")
        return found[0]

    def _discard(self, volume: Any) -> None:
        """Delete a volume, or what an attempt has left of one."""
        volume = self._needed(volume.name)
        if volume.status == "in-use":
            volume._remove_export()
        volume._ovo.status = "deleting"  # it is not found by its name any more, also if this is cut off
        volume.save()
        volume.backend.driver.delete_volume(volume._ovo)
        self._records.delete_volume(volume)

    def _shown(self, volume: Any) -> dict[str, Any]:
        backend = volume.backend if isinstance(volume.backend, str) else volume.backend.id
        return {
            "name": volume.name,
            "size": volume.size,
            "backend": backend,
            "source": volume.description or "",
            "nodes": _nodes(volume),
        }


def _nodes(volume: Any) -> list[str]:
    return [found.connector_info["node"] for found in volume.connections]


def _shown_snapshot(found: Any) -> dict[str, Any]:
    return {
        "name": found.name,
        "volume": found.volume.name,
        "size": found.volume_size,
        "created": found.created_at.timestamp(),
    }


class BrickNode:
    """Requests of a node, with os-brick. Multipath is not used."""

    def __init__(self, state: Path) -> None:
        from os_brick import privileged, setup
        from os_brick.initiator import connector
        from oslo_concurrency import lockutils
        from oslo_config import cfg

        self._connector = connector
        lockutils.set_defaults(str(state / "locks"))
        setup(cfg.CONF)
        privileged.default.set_client_mode(False)  # we are root: no helper process

    def properties(self) -> dict[str, Any]:
        """What os-brick knows of this node: its name, address and initiators."""
        from oslo_utils import netutils

        return dict(self._connector.get_connector_properties("", netutils.get_my_ipv4(), False, False))

    def attach(self, connection: dict[str, Any]) -> dict[str, Any]:
        """Connect to a volume; its device, with `path`. Idempotent."""
        return dict(self._of(connection).connect_volume(connection["data"]))

    def detach(self, connection: dict[str, Any], device: dict[str, Any] | None) -> None:
        """Disconnect from a volume. Idempotent."""
        self._of(connection).disconnect_volume(connection["data"], device)

    def grow(self, connection: dict[str, Any]) -> None:
        """Let the kernel see a volume's new size."""
        self._of(connection).extend_volume(connection["data"])

    def _of(self, connection: dict[str, Any]) -> Any:
        return self._connector.InitiatorConnector.factory(connection["driver_volume_type"], "", conn=connection)


_CALLS = {
    **dict.fromkeys(("get", "create", "delete", "extend", "connect", "disconnect", "list-volumes", "stats"), Storage),
    **dict.fromkeys(("get-snapshot", "snapshot", "delete-snapshot", "list-snapshots"), Storage),
    **dict.fromkeys(("properties", "attach", "detach", "grow"), BrickNode),
}


class LineServer:
    """Answers requests. Both parts are set up with their first request, as each takes seconds to import."""

    def __init__(self) -> None:
        self._setup: dict[str, Any] = {}
        self._parts: dict[type, Any] = {}
        self._is_broken = False  # a library was left half set up, which does not work twice in one process

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. Never raises for a request that fails."""
        number, call = request.pop("id", None), request.pop("call", None)
        try:
            if call == "setup":
                self._set_up(**request)
                return {"id": number, "result": None}
            if call not in _CALLS:
                raise RequestError("invalid", f"there is no request {call!r}")
            return {"id": number, "result": getattr(self._part(_CALLS[call]), call.replace("-", "_"))(**request)}
        except Exception as failure:
            return {"id": number, "error": kind_of(failure), "text": text_of(failure), "broken": self._is_broken}

    def _set_up(self, state: str, backends: list[dict[str, Any]] | None = None) -> None:
        """Take the state folder, once no other process has it: one that is being killed may still write."""
        folder = Path(state)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.chdir(folder)
        self._setup = {"state": folder, "backends": backends or []}

    def _part(self, kind: type) -> Any:
        if kind not in self._parts:
            given = self._setup if kind is Storage else {"state": self._setup["state"]}
            self._is_broken = True
            self._parts[kind] = kind(**given)
            self._is_broken = False
        return self._parts[kind]


def main() -> None:
    """Answer the lines of standard input until its end. What libraries print goes to standard error."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    logging.disable(logging.CRITICAL)  # connections hold secrets
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"  # has cinder-rtstool
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = LineServer()
    for line in sys.stdin:
        print(json.dumps(server.answer(json.loads(line)), default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()

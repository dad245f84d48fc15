"""An API server that is a dict, and informers that know of every write at once: nothing waits, so a test can look at the
state between any two writes, and kill a process there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tonnage.base.errors import ApiAlreadyExistsError, ApiError, ApiNotFoundError
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.selectors import parse_fields, parse_labels
from tonnage.kubernetes.client.cache import Cache
from tonnage_box.api.patch import merge


class Killed(Exception):
    """A process was killed before it could write."""


class FakeInformer:
    """A view of one kind."""

    def __init__(self, kind: Kind[Any], namespace: str, labels: str, fields: str) -> None:
        self.kind, self.cache = kind, Cache[Any]()
        self._namespace, self._labels, self._fields = namespace, parse_labels(labels), parse_fields(fields)
        self.synced = True

    async def wait_synced(self) -> None:
        """At once."""

    def on_restored(self, listener: Callable[[], None]) -> None:
        """It is never away."""

    def take(self, obj: Any) -> None:
        """An object came or changed."""
        meta = obj.metadata
        inside = not self._namespace or meta.namespace == self._namespace
        inside = inside and self._labels.matches(meta.labels) and self._fields.matches({"metadata.name": meta.name})
        if inside:
            self.cache.put(obj)
        else:
            self.cache.remove(obj.key)


class FakeKube:
    """Client and informers in one. on_write(verb, kind) is called after each write."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.on_write: Callable[[str, Kind[Any]], None] = lambda verb, kind: None
        self.writes = 0
        self.kill_at = 0
        """Which of the next writes, counted from 1, is the one before which its writer is killed; 0: none."""
        self.rejects = False
        """Whether nothing may be made just now."""
        self._version = 0
        self._informers: dict[tuple[str, str, str, str], FakeInformer] = {}

    def of(
        self, kind: Kind[Any], *, namespace: str = "", labels: str = "", fields: str = "", optional: bool = False
    ) -> FakeInformer:
        """An informer."""
        key = (kind.plural, namespace, labels, fields)
        if key not in self._informers:
            informer = self._informers[key] = FakeInformer(kind, namespace, labels, fields)
            for (plural, _, _), data in self.objects.items():
                if plural == kind.plural:
                    informer.take(msgspec.convert(data, kind.struct))
        return self._informers[key]

    def all(self, kind: Kind[Any]) -> list[Any]:
        """All objects of a kind."""
        return [msgspec.convert(data, kind.struct) for key, data in self.objects.items() if key[0] == kind.plural]

    def put(self, kind: Kind[Any], name: str, body: dict[str, Any], namespace: str = "") -> Any:
        """Make or replace an object, by a hand that is not counted."""
        self._version += 1
        known = self.objects.get((kind.plural, namespace, name), {}).get("metadata", {})
        meta = {"uid": f"uid-{self._version}", **body.get("metadata", {})} | ({"uid": known["uid"]} if known else {})
        meta |= {"name": name, "namespace": namespace, "resourceVersion": str(self._version)}
        data = self.objects[kind.plural, namespace, name] = {**body, "metadata": meta}
        obj = msgspec.convert(data, kind.struct)
        for informer in self._of(kind):
            informer.take(obj)
        return obj

    def remove(self, kind: Kind[Any], name: str, namespace: str = "") -> None:
        """Remove an object, by a hand that is not counted."""
        data = self.objects.pop((kind.plural, namespace, name), None)
        if data is None:
            raise ApiNotFoundError(f"no {kind.kind} {name}")
        for informer in self._of(kind):
            informer.cache.remove(f"{namespace}/{name}" if namespace else name)

    def _of(self, kind: Kind[Any]) -> list[FakeInformer]:
        return [informer for key, informer in list(self._informers.items()) if key[0] == kind.plural]

    def _written(self, verb: str, kind: Kind[Any]) -> None:
        self.writes += 1
        self.on_write(verb, kind)

    def _may_write(self) -> None:
        if self.kill_at:
            self.kill_at -= 1
            if not self.kill_at:
                raise Killed

    # Client

    async def get(self, kind: Kind[Any], name: str, namespace: str = "") -> Any:
        """As Client.get."""
        if (data := self.objects.get((kind.plural, namespace, name))) is None:
            raise ApiNotFoundError(f"no {kind.kind} {name}")
        return msgspec.convert(data, kind.struct)

    async def create(self, kind: Kind[Any], body: dict[str, Any], namespace: str = "") -> Any:
        """As Client.create."""
        self._may_write()
        if self.rejects:
            raise ApiError(f"no {kind.kind} can be made now")
        name = body["metadata"]["name"]
        if (kind.plural, namespace, name) in self.objects:
            raise ApiAlreadyExistsError(f"{kind.kind} {name} is there")
        made = self.put(kind, name, body, namespace)
        self._written("create", kind)
        return made

    async def patch(self, kind: Kind[Any], name: str, body: dict[str, Any], namespace: str = "", **more: Any) -> Any:
        """As Client.patch, merge patches only."""
        self._may_write()
        data = self.objects.get((kind.plural, namespace, name))
        if data is None:
            raise ApiNotFoundError(f"no {kind.kind} {name}")
        made = self.put(kind, name, merge(data, body), namespace)
        self._written("patch", kind)
        return made

    async def delete(self, kind: Kind[Any], name: str, namespace: str = "", **more: Any) -> None:
        """As Client.delete."""
        self._may_write()
        self.remove(kind, name, namespace)
        self._written("delete", kind)

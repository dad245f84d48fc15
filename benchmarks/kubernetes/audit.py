"""What the API server was asked to write, by its own audit log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

STORAGE = ("persistentvolumeclaims", "persistentvolumes", "csistoragecapacities")
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {
            "level": "Metadata",
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            "resources": [
                {"group": "", "resources": [
                    "pods", "pods/status", "pods/binding", "persistentvolumes", "persistentvolumes/status",
                    "persistentvolumeclaims", "persistentvolumeclaims/status", "events",
                ]},
                {"group": "events.k8s.io", "resources": ["events"]},
                {"group": "storage.k8s.io", "resources": [
                    "csistoragecapacities", "volumeattachments", "volumeattachments/status",
                ]},
                {"group": "snapshot.storage.k8s.io", "resources": [
                    "volumesnapshots", "volumesnapshots/status", "volumesnapshotcontents",
                    "volumesnapshotcontents/status",
                ]},
            ],
        },
        {"level": "None"},
    ],
}  # fmt: skip


class _Reference(msgspec.Struct, frozen=True, rename="camel"):
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Status(msgspec.Struct, frozen=True):
    code: int = 0


class Write(msgspec.Struct, frozen=True, rename="camel"):
    """One request that would change something."""

    verb: str
    user_agent: str = ""
    stage_timestamp: str = ""
    object_ref: _Reference = _Reference()
    response_status: _Status = _Status()
    user: _User = _User()

    @property
    def done(self) -> bool:
        """Whether the API server did it."""
        return self.response_status.code < 300

    @property
    def what(self) -> str:
        """Verb and resource, as `patch persistentvolumes/status`."""
        ref = self.object_ref
        return f"{self.verb} {ref.resource}{'/' if ref.subresource else ''}{ref.subresource}"

    @property
    def who(self) -> str:
        """The program, and the controller within it."""
        program, _, rest = self.user_agent.partition("/")
        return f"{program} {rest.rpartition('/')[2]}" if "system:serviceaccount" in rest else program


@dataclass
class Audit:
    """Reads the log on from where it last was."""

    file: Path
    settled: float = 1.5
    """Seconds without a new line after which the log is quiet."""
    _at: int = 0

    async def writes(self) -> list[Write]:
        """All that came since the last look, once the log is quiet (it is written in batches)."""
        size, known = self._size(), -1
        while size != known:
            known = size
            await asyncio.sleep(self.settled)
            size = self._size()
        if size == 0:
            return []
        with self.file.open("rb") as log:
            log.seek(self._at)
            data = log.read()
        complete = data.rpartition(b"\n")[0]
        self._at += len(complete) + (1 if complete else 0)
        decoder = msgspec.json.Decoder(Write)
        return [decoder.decode(line) for line in complete.splitlines()]

    def _size(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0


def storage(writes: Iterable[Write]) -> Sequence[Write]:
    """Writes of claims, volumes and capacity that were done."""
    return [write for write in writes if write.object_ref.resource in STORAGE and write.done]


def lost_races(writes: Iterable[Write]) -> int:
    """Status of pods written by the scheduler: it found no node yet, as while the claim was not there."""
    found = [w for w in writes if w.what == "patch pods/status" and w.user_agent.startswith("kube-scheduler")]
    return len(found)


def events(writes: Iterable[Write]) -> int:
    """Events about storage: all but the scheduler's, which tells of pods."""
    found = [w for w in writes if w.object_ref.resource == "events" and not w.user_agent.startswith("kube-scheduler")]
    return len(found)


def rejected(writes: Iterable[Write]) -> Sequence[Write]:
    """Storage writes that somebody else was quicker with, or that were wrong."""
    return [write for write in writes if write.object_ref.resource in STORAGE and not write.done]


def table(writes: Iterable[Write]) -> str:
    """How many of each, by whom."""
    counts = Counter((write.what, write.who, "" if write.done else str(write.response_status.code)) for write in writes)
    return "\n".join(f"    {count:>6}  {' '.join(key)}" for key, count in sorted(counts.items()))

"""How the loops of snapshots and of groups make, bind, mark and delete contents: the same for both but for names."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tonnage.api.group_snapshot import GROUP_BEING_DELETED, VolumeGroupSnapshot, VolumeGroupSnapshotContent
from tonnage.api.kinds import GROUP_CONTENTS, SNAPSHOT_CONTENTS, Kind
from tonnage.api.snapshot import BEING_DELETED, VolumeSnapshot, VolumeSnapshotContent
from tonnage.controller.snapshots.reports import Reports
from tonnage.errors import ApiAlreadyExistsError, ApiConflictError, ApiError, TonnageError, UnavailableError
from tonnage.kube.client import Client
from tonnage.kube.object_write import delete_object, patch_object

log = logging.getLogger(__name__)
S = TypeVar("S", VolumeSnapshot, VolumeGroupSnapshot)
C = TypeVar("C", VolumeSnapshotContent, VolumeGroupSnapshotContent)


@dataclass(frozen=True)
class ContentNames(Generic[C]):
    """A kind of content, the annotation that marks its end, and the word for what it is of."""

    kind: Kind[C]
    being_deleted: str
    word: str


OF_SNAPSHOTS = ContentNames(SNAPSHOT_CONTENTS, BEING_DELETED, "snapshot")
OF_GROUPS = ContentNames(GROUP_CONTENTS, GROUP_BEING_DELETED, "group snapshot")


class ContentWriter(Generic[S, C]):
    """Writes the contents of one kind. All is idempotent.

    What the server refuses is reported with the reason that is given, and raised for the back-off.
    """

    def __init__(self, client: Client, names: ContentNames[C], reports: Reports[S]) -> None:
        self._client = client
        self._reports: Reports[S] = reports
        self._names: ContentNames[C] = names

    async def make(self, snapshot: S, body: Any, announced: str, refused: str) -> None:
        """Create the content of a snapshot. Raises ApiError, UnavailableError."""
        try:
            await self._client.create(self._names.kind, body)
        except ApiAlreadyExistsError:  # by another controller, just now
            return
        except (ApiConflictError, UnavailableError):
            raise
        except ApiError as error:
            text = f"Failed to create {self._names.word} content with error {error}"
            await self._reports.refuse(snapshot, refused, text)
            raise
        text = f"Waiting for a {self._names.word} {snapshot.key} to be created by the CSI driver."
        self._reports.announce(snapshot, announced, text)

    async def bind(self, snapshot: S, content: C | None, body: Any, refused: str) -> None:
        """Patch an existing content so that it points to a snapshot. Raises ApiError, UnavailableError."""
        assert content is not None
        try:
            await patch_object(self._client, self._names.kind, content, body)
        except (ApiConflictError, UnavailableError):
            raise
        except TonnageError as error:
            text = f"{self._names.word.capitalize()} failed to bind {self._names.kind.kind}, {error}"
            await self._reports.refuse(snapshot, refused, text)
            raise

    async def end(self, snapshot: S, content: C | None, refused: str, *, marked: bool) -> None:
        """Delete a content; its end, which the agent brings, wakes the snapshot. marked: whether it is marked first.

        Raises ApiError, UnavailableError.
        """
        assert content is not None
        if marked:
            content = await self.mark(content)
        try:
            if not content.metadata.deleting:
                await delete_object(self._client, self._names.kind, content, guarded=True)
        except (ApiConflictError, UnavailableError):
            raise
        except TonnageError as error:
            text = f"Failed to delete {self._names.word} content API object: {error}"
            self._reports.warn(snapshot, refused, text)
            raise
        log.info("content deleted content=%s of=%s", content.key, snapshot.key)

    async def mark(self, content: C) -> C:
        """Mark a content whose snapshot is being deleted. Raises ApiError, UnavailableError.

        Upstream's snapshotter deletes nothing without this annotation; our agents look at the snapshot.
        """
        notes = {"metadata": {"annotations": {self._names.being_deleted: "yes"}}}
        return await patch_object(self._client, self._names.kind, content, notes)

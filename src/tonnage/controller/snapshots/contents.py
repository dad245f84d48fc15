"""How a loop makes, binds, marks and deletes the contents of its shape."""

from __future__ import annotations

import logging
from typing import Any, Generic

from tonnage.base.errors import ApiAlreadyExistsError, ApiConflictError, ApiError, TonnageError, UnavailableError
from tonnage.controller.snapshots.reports import Reports
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.object_write import delete_object, patch_object
from tonnage.provisioning.claims.snapshot_shape import C, K, S, SnapshotShape

log = logging.getLogger(__name__)


class ContentWriter(Generic[S, C, K]):
    """Writes the contents of one kind. All is idempotent.

    What the server rejects is reported with the reason that is given, and raised for the back-off.
    """

    def __init__(self, client: Client, shape: SnapshotShape[S, C, K], reports: Reports[S]) -> None:
        self._client = client
        self._reports: Reports[S] = reports
        self._shape: SnapshotShape[S, C, K] = shape

    async def make(self, snapshot: S, body: Any, announced: str, rejected: str) -> None:
        """Create the content of a snapshot. Raises: ApiError, UnavailableError."""
        try:
            await self._client.create(self._shape.contents, body)
        except ApiAlreadyExistsError:  # by another controller, just now
            return
        except (ApiConflictError, UnavailableError):
            raise
        except ApiError as error:
            text = f"Failed to create {self._shape.word} content with error {error}"
            await self._reports.reject(snapshot, rejected, text)
            raise
        text = f"Waiting for a {self._shape.word} {snapshot.key} to be created by the CSI driver."
        self._reports.announce(snapshot, announced, text)

    async def bind(self, snapshot: S, content: C | None, body: Any, rejected: str) -> None:
        """Patch an existing content so that it points to a snapshot. Raises: ApiError, UnavailableError."""
        assert content is not None
        try:
            await patch_object(self._client, self._shape.contents, content, body)
        except (ApiConflictError, UnavailableError):
            raise
        except TonnageError as error:
            text = f"{self._shape.word.capitalize()} failed to bind {self._shape.contents.kind}, {error}"
            await self._reports.reject(snapshot, rejected, text)
            raise

    async def end(self, snapshot: S, content: C | None, rejected: str, *, marked: bool) -> None:
        """Delete a content; its end, which the agent brings, wakes the snapshot. marked: whether it is marked first.

        Raises: ApiError, UnavailableError.
        """
        assert content is not None
        if marked:
            content = await self.mark(content)
        try:
            if not content.metadata.deleting:
                await delete_object(self._client, self._shape.contents, content, guarded=True)
        except (ApiConflictError, UnavailableError):
            raise
        except TonnageError as error:
            text = f"Failed to delete {self._shape.word} content API object: {error}"
            self._reports.warn(snapshot, rejected, text)
            raise
        log.info("content deleted content=%s of=%s", content.key, snapshot.key)

    async def mark(self, content: C) -> C:
        """Mark a content whose snapshot is being deleted. Raises: ApiError, UnavailableError.

        Upstream's snapshotter deletes nothing without this annotation; our agents look at the snapshot.
        """
        notes = {"metadata": {"annotations": {self._shape.being_deleted: "yes"}}}
        return await patch_object(self._client, self._shape.contents, content, notes)

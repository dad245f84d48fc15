"""ControllerRevisions: template history of StatefulSets and DaemonSets (pkg/controller/history).

A revision's data is a strategic merge patch of its owner that replaces the template, so that `kubectl rollout undo`
needs nothing else. The same template again is the same revision with a higher number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tonnage.base.errors import ApiAlreadyExistsError, InvalidError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CONTROLLER_REVISIONS, Kind
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import ControllerRevision, DaemonSet, StatefulSet, Template
from tonnage.kubernetes.client.object_write import delete_object, patch_object
from tonnage_box.controllers.podcontrol.context import ControllerContext
from tonnage_box.controllers.podcontrol.expectations import Dependents
from tonnage_box.controllers.podcontrol.pod_template import digest, hashed_name, owner_reference

RevisionOwner = StatefulSet | DaemonSet


def data_of(template: Template) -> dict[str, Any]:
    """Data of a revision with that template."""
    return {"spec": {"template": {**template, "$patch": "replace"}}}


def template_of(revision: ControllerRevision) -> Template:
    """The template that a revision holds.

    Raises: InvalidError for data that is none: any object may be written there.
    """
    try:
        template = revision.data["spec"]["template"]
        return {key: value for key, value in template.items() if key != "$patch"}
    except (KeyError, TypeError, AttributeError):
        text = "data.spec.template: it holds no pod template; delete it"
        raise InvalidError(f"controllerrevisions {revision.key}: {text}") from None


def revision_of(pod: Pod) -> str:
    """The revision that a pod was made from: its name, or for a DaemonSet's its hash."""
    return pod.metadata.labels.get(names.CONTROLLER_REVISION_HASH, "")


def next_number(revisions: Iterable[ControllerRevision]) -> int:
    """The number for the newest revision."""
    return max((revision.revision for revision in revisions), default=0) + 1


def beyond(revisions: Sequence[ControllerRevision], used: Iterable[str], limit: int | None) -> list[ControllerRevision]:
    """Revisions (by rising number) that are more than the history allows; those in use do not count."""
    if limit is None:
        return []
    remaining = set(used)
    old = [revision for revision in revisions if revision.metadata.name not in remaining]
    return old[: max(0, len(old) - limit)]


class RevisionHistory:
    """Writes the revisions of owners of one kind."""

    def __init__(self, context: ControllerContext, kind: Kind[Any]) -> None:
        self._client, self._kind = context.client, kind
        self._objects = Dependents(context.informers.of(CONTROLLER_REVISIONS))

    def of(self, owner: RevisionOwner) -> list[ControllerRevision]:
        """The owner's revisions by rising number."""
        found = self._objects.owned(owner.metadata.uid)
        return sorted((r for r in found if not r.metadata.deleting), key=lambda r: r.revision)

    async def ensure(self, owner: RevisionOwner) -> tuple[ControllerRevision, int | None]:
        """The revision of the owner's template, made or brought to the front, and how many collisions it has had.

        Raises: ApiError.
        """
        data, known, collisions = data_of(owner.spec.template), self.of(owner), owner.status.collision_count
        number = next_number(known)
        same = [revision for revision in known if revision.data == data]
        if not same:
            return await self._create(owner, data, number)
        if same[-1] is known[-1]:
            return same[-1], collisions
        body = {"revision": number}
        newest = await patch_object(self._client, CONTROLLER_REVISIONS, same[-1], body, guarded=False)
        return self._objects.wrote(newest), collisions

    async def _create(
        self, owner: RevisionOwner, data: dict[str, Any], number: int
    ) -> tuple[ControllerRevision, int | None]:
        namespace, collisions = owner.metadata.namespace, owner.status.collision_count
        while True:
            hashed = digest(data, collisions)
            meta = {
                "name": hashed_name(owner.metadata.name, hashed),
                "labels": {**owner.spec.selector.match_labels, names.REVISION_HASH: hashed},
                "ownerReferences": [owner_reference(self._kind, owner)],
            }
            body = {"metadata": meta, "revision": number, "data": data}
            try:
                return self._objects.wrote(await self._client.create(CONTROLLER_REVISIONS, body, namespace)), collisions
            except ApiAlreadyExistsError:
                found = await self._client.get(CONTROLLER_REVISIONS, str(meta["name"]), namespace)
                if found.data == data and found.metadata.controller_uid() == owner.metadata.uid:
                    return self._objects.wrote(found), collisions
                collisions = (collisions or 0) + 1

    async def trim(self, owner: RevisionOwner, used: Iterable[str]) -> None:
        """Delete revisions beyond the owner's history limit; those in use (names) stay. Idempotent."""
        for revision in beyond(self.of(owner), used, owner.spec.revision_history_limit):
            await delete_object(self._client, CONTROLLER_REVISIONS, revision)
            self._objects.deleted(revision)

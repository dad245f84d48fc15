"""Scale subresource: replicas of any workload kind (autoscaling/v1 Scale)."""

from __future__ import annotations

from dataclasses import replace

from tonnage.api import patch as patches
from tonnage.box.apiserver.printers.workloads import shown_selector
from tonnage.box.apiserver.request.errors import bad_request, invalid, wrong_precondition
from tonnage.box.apiserver.request.options import WriteOptions
from tonnage.box.apiserver.request.routes import RequestPath
from tonnage.box.apiserver.rest.writes import Change, Patch, Writes, Written
from tonnage.box.apiserver.schema import decode
from tonnage.box.apiserver.storage.store import Obj
from tonnage.errors import FieldCause
from tonnage.kube.transport import JSON_PATCH

_KEPT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(obj: Obj) -> Obj:
    """The Scale of an object."""
    meta = {word: obj["metadata"][word] for word in _KEPT if word in obj["metadata"]}
    status: Obj = {"replicas": (obj.get("status") or {}).get("replicas", 0)}
    if (selector := shown_selector(obj)) != "<none>":
        status["selector"] = selector
    spec = {"replicas": obj["spec"].get("replicas", 1)}
    return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta, "spec": spec, "status": status}


async def update(writes: Writes, place: RequestPath, change: Change, options: WriteOptions) -> Written:
    """PUT and PATCH scale. Raises 400, 404, 409 (resourceVersion), 422 (fewer than none)."""

    def apply(obj: Obj) -> Obj:
        before = scale_of(obj)
        after = change(before)
        decode.normalize("autoscaling.v1.Scale", after)
        meta, uid = after.get("metadata") or {}, before["metadata"]["uid"]
        if meta.get("name", place.name) != place.name:
            raise bad_request("the name in the Scale does not match the name on the URL")
        if meta.get("uid", uid) != uid:
            raise wrong_precondition(place.resource.kind, place.name, "UID", meta["uid"], uid, subresource="scale")
        replicas = (after.get("spec") or {}).get("replicas", 0)
        if replicas < 0:
            message = f"Invalid value: {replicas}: must be greater than or equal to 0"
            cause = FieldCause("spec.replicas", message, "FieldValueInvalid")
            raise invalid("autoscaling", "Scale", place.name, [cause])
        if meta.get("resourceVersion"):
            obj["metadata"]["resourceVersion"] = meta["resourceVersion"]
        obj["spec"]["replicas"] = replicas
        return obj

    return await writes.modify(replace(place, subresource=""), apply, options)


def patched(patch: Patch) -> Change:
    """The change of a patch; a Scale has no lists, so that strategic and merge patches are the same."""
    content_type, value = patch

    def apply(scale: Obj) -> Obj:
        new = patches.apply_json_patch(scale, value) if content_type == JSON_PATCH else patches.merge(scale, value)
        if not isinstance(new, dict):
            raise bad_request("the patch does not leave an object")
        return new

    return apply

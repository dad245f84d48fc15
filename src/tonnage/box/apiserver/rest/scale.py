"""Scale subresource: replicas of any workload kind (autoscaling/v1 Scale)."""

from __future__ import annotations

from typing import Any

from tonnage.api import patch as patches
from tonnage.box.apiserver.printers.workloads import shown_selector
from tonnage.box.apiserver.request import errors
from tonnage.box.apiserver.request.errors import bad_request
from tonnage.box.apiserver.request.options import WriteOptions
from tonnage.box.apiserver.request.resource import Obj, Resource
from tonnage.box.apiserver.rest.writes import Writes, Written
from tonnage.box.apiserver.schema import decode
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


async def update(
    writes: Writes, resource: Resource, namespace: str, name: str, scale: Obj, options: WriteOptions
) -> Written:
    """PUT scale. Raises 400, 404, 409 (resourceVersion), 422 (fewer than none)."""
    return await _set(writes, resource, namespace, name, lambda _: scale, options)


async def patch(
    writes: Writes, resource: Resource, namespace: str, name: str, change: tuple[str, Any], options: WriteOptions
) -> Written:
    """PATCH scale; a Scale has no lists, so that strategic and merge patches are the same. Raises as update."""
    content_type, value = change

    def apply(scale: Obj) -> Obj:
        new = patches.apply_json_patch(scale, value) if content_type == JSON_PATCH else patches.merge(scale, value)
        if not isinstance(new, dict):
            raise bad_request("the patch does not leave an object")
        return new

    return await _set(writes, resource, namespace, name, apply, options)


async def _set(
    writes: Writes, resource: Resource, namespace: str, name: str, change: Any, options: WriteOptions
) -> Written:
    def apply(obj: Obj) -> Obj:
        before = scale_of(obj)
        after = change(before)
        decode.normalise("autoscaling.v1.Scale", after)
        meta = after.get("metadata") or {}
        if meta.get("name", name) != name:
            raise bad_request("the name in the Scale does not match the name on the URL")
        if meta.get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
            why = (
                f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {obj['metadata']['uid']}"
            )
            raise errors.conflict(f"{resource.qualified}/scale", resource.kind.group, resource.kind.plural, name, why)
        replicas = (after.get("spec") or {}).get("replicas", 0)
        if replicas < 0:
            message = f"Invalid value: {replicas}: must be greater than or equal to 0"
            raise errors.invalid(
                "autoscaling", "Scale", name, [FieldCause("spec.replicas", message, "FieldValueInvalid")]
            )
        if meta.get("resourceVersion"):
            obj["metadata"]["resourceVersion"] = meta["resourceVersion"]
        obj["spec"]["replicas"] = replicas
        return obj

    return await writes.modify(resource, namespace, name, apply, options, subresource="")

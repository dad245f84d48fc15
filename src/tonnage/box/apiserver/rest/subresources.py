"""Subresources of pods and namespaces: binding, finalize."""

from __future__ import annotations

from typing import Any

from tonnage.api.kinds import PODS
from tonnage.box.apiserver.request.errors import conflict, invalid, wrong_precondition
from tonnage.box.apiserver.request.options import WriteOptions
from tonnage.box.apiserver.request.routes import RequestPath
from tonnage.box.apiserver.rest import object_meta
from tonnage.box.apiserver.rest.object_meta import Stamps
from tonnage.box.apiserver.rest.writes import Writes, Written, check_fields
from tonnage.box.apiserver.storage.store import Obj
from tonnage.errors import FieldCause


async def bind(writes: Writes, stamps: Stamps, place: RequestPath, binding: Obj, options: WriteOptions) -> Written:
    """POST pods/binding: give the pod its node, once. Raises 404, 409 (already bound, deleting), 422."""
    target = binding.get("target")
    target = target if isinstance(target, dict) else {}
    node = target.get("name")
    if not isinstance(node, str) or not node:
        cause = FieldCause("target.name", "Required value", "FieldValueRequired")
        raise invalid("", "Binding", place.name, [cause])
    if target.get("kind", "Node") not in ("", "Node"):
        message = f'Unsupported value: "{target["kind"]}": supported values: "Node"'
        raise invalid("", "Binding", place.name, [FieldCause("target.kind", message, "FieldValueNotSupported")])
    meta = object_meta.subresource_metadata(binding, place, "Binding")

    def change(obj: Obj) -> Obj:
        _check_bindable(obj, meta)
        obj["spec"]["nodeName"] = node
        for word in ("annotations", "labels"):
            if meta.get(word):
                obj["metadata"][word] = obj["metadata"].get(word, {}) | meta[word]
        status = obj.setdefault("status", {})
        kept = [c for c in status.get("conditions", []) if c.get("type") != "PodScheduled"]
        now = stamps.now()
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
        status["conditions"] = [*kept, condition]
        status.pop("nominatedNodeName", None)
        return obj

    return await writes.modify(place, change, options)


def _check_bindable(obj: Obj, wanted: dict[str, Any]) -> None:
    meta, name, spec = obj["metadata"], obj["metadata"]["name"], obj["spec"]
    if wanted.get("uid") and wanted["uid"] != meta["uid"]:
        raise wrong_precondition(PODS, name, "UID", wanted["uid"], meta["uid"], subresource="binding")
    for is_so, why in (
        ("deletionTimestamp" in meta, f"pod {name} is being deleted, cannot be assigned to a host"),
        (spec.get("nodeName"), f'pod {name} is already assigned to node "{spec.get("nodeName")}"'),
        (spec.get("schedulingGates"), f"pod {name} has non-empty .spec.schedulingGates"),
    ):
        if is_so:
            raise conflict(PODS, name, why, subresource="binding")


async def finalize(writes: Writes, place: RequestPath, body: Obj, options: WriteOptions) -> Written:
    """PUT namespaces/finalize: changes only spec.finalizers; a deleted namespace without finalizers is removed."""
    object_meta.check_name(body, place)
    check_fields(place.resource, body, options, b"")
    wanted = (body.get("spec") or {}).get("finalizers") or []
    version = body["metadata"].get("resourceVersion", "")

    def change(obj: Obj) -> Obj:
        obj.setdefault("spec", {})["finalizers"] = wanted
        if not wanted:
            del obj["spec"]["finalizers"]
        if version:
            obj["metadata"]["resourceVersion"] = version
        return obj

    return await writes.modify(place, change, options)

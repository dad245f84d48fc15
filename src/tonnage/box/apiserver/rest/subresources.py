"""Subresources of pods and namespaces: binding, finalize."""

from __future__ import annotations

from typing import Any

from tonnage.api.kinds import PODS
from tonnage.box.apiserver.request import errors
from tonnage.box.apiserver.request.options import WriteOptions
from tonnage.box.apiserver.request.resource import Obj, Resource
from tonnage.box.apiserver.rest import object_meta
from tonnage.box.apiserver.rest.object_meta import Stamps
from tonnage.box.apiserver.rest.writes import Writes, Written, check_fields
from tonnage.errors import FieldCause


def created(message: str = "") -> Obj:
    """The Status that binding and eviction answer."""
    status: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    return status | ({"message": message} if message else {})


async def bind(
    writes: Writes, stamps: Stamps, pod: Resource, namespace: str, name: str, binding: Obj, options: WriteOptions
) -> Written:
    """POST pods/binding: give the pod its node, once. Raises 404, 409 (already bound, deleting), 422."""
    target = binding.get("target")
    target = target if isinstance(target, dict) else {}
    node = target.get("name")
    if not isinstance(node, str) or not node:
        raise errors.invalid("", "Binding", name, [FieldCause("target.name", "Required value", "FieldValueRequired")])
    if target.get("kind", "Node") not in ("", "Node"):
        message = f'Unsupported value: "{target["kind"]}": supported values: "Node"'
        raise errors.invalid("", "Binding", name, [FieldCause("target.kind", message, "FieldValueNotSupported")])
    meta = object_meta.metadata(binding)
    if meta.setdefault("name", name) != name:
        raise errors.bad_request("the name in the Binding does not match the name on the URL")

    def change(obj: Obj) -> Obj:
        _check_bindable(obj, meta, node)
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

    return await writes.modify(pod, namespace, name, change, options, subresource="binding")


def _check_bindable(obj: Obj, wanted: dict[str, Any], node: str) -> None:
    meta, name = obj["metadata"], obj["metadata"]["name"]
    if wanted.get("uid") and wanted["uid"] != meta["uid"]:
        why = f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: {meta['uid']}"
        raise errors.conflict("pods/binding", "", PODS.plural, name, why)
    if "deletionTimestamp" in meta:
        why = f"pod {name} is being deleted, cannot be assigned to a host"
        raise errors.conflict("pods/binding", "", PODS.plural, name, why)
    current = obj["spec"].get("nodeName")
    if current:
        raise errors.conflict(
            "pods/binding", "", PODS.plural, name, f'pod {name} is already assigned to node "{current}"'
        )
    if obj["spec"].get("schedulingGates"):
        raise errors.conflict("pods/binding", "", PODS.plural, name, f"pod {name} has non-empty .spec.schedulingGates")


async def finalize(writes: Writes, resource: Resource, name: str, body: Obj, options: WriteOptions) -> Written:
    """PUT namespaces/finalize: changes only spec.finalizers; a deleted namespace without finalizers is removed."""
    object_meta.check_name(name, body, resource, "")
    check_fields(resource, body, options, b"")
    wanted = (body.get("spec") or {}).get("finalizers") or []
    version = body["metadata"].get("resourceVersion", "")

    def change(obj: Obj) -> Obj:
        obj.setdefault("spec", {})["finalizers"] = wanted
        if not wanted:
            del obj["spec"]["finalizers"]
        if version:
            obj["metadata"]["resourceVersion"] = version
        return obj

    return await writes.modify(resource, "", name, change, options, subresource="finalize")

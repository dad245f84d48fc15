"""Subresources of pods, namespaces and workloads: binding, eviction, finalize, scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from tonnage.base.errors import ApiError, FieldCause
from tonnage.kubernetes.api.kinds import DISRUPTION_BUDGETS, PODS
from tonnage.kubernetes.api.meta import LabelSelector
from tonnage.kubernetes.api.selectors import from_label_selector
from tonnage.kubernetes.client.transport import JSON_PATCH
from tonnage_box.api import patch as patches
from tonnage_box.apiserver.printers.cells import shown_selector
from tonnage_box.apiserver.request import negotiate
from tonnage_box.apiserver.request.errors import bad_request, conflict, forbidden, invalid, wrong_precondition
from tonnage_box.apiserver.request.options import DeleteOptions, WriteOptions
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.request.routes import RequestPath
from tonnage_box.apiserver.rest import object_meta
from tonnage_box.apiserver.rest.writes import Change, Patch, Writes, Written, check_fields, existing
from tonnage_box.apiserver.schema import decode
from tonnage_box.apiserver.storage.store import Obj

_VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
_PROCESSING_SECONDS = 10
_MOST_DISRUPTED = 2000
_SCALE_META = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


async def bind(writes: Writes, place: RequestPath, binding: Obj, options: WriteOptions) -> Written:
    """POST pods/binding: give the pod its node, once. Raises: 404, 409 (already bound, deleting), 422."""
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
        _set_condition(obj, {"type": "PodScheduled", "status": "True", "lastTransitionTime": writes.stamps.now()})
        obj["status"].pop("nominatedNodeName", None)
        return obj

    return await writes.modify(place, change, options)


def _set_condition(obj: Obj, condition: Obj) -> None:
    status = obj.setdefault("status", {})
    others = [c for c in status.get("conditions", []) if c.get("type") != condition["type"]]
    status["conditions"] = [*others, condition]


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


async def finalize(writes: Writes, place: RequestPath, body: Obj, options: WriteOptions, size: int) -> Written:
    """PUT namespaces/finalize: changes only spec.finalizers; a deleted namespace without finalizers is removed.

    size: of the body, in bytes.
    """
    object_meta.check_name(body, place)
    await negotiate.run_in_thread_if_large(size, check_fields, place.resource, body, options, b"")
    wanted = (body.get("spec") or {}).get("finalizers") or []
    version = body["metadata"].get("resourceVersion", "")

    def change(obj: Obj) -> Obj:
        obj.setdefault("spec", {})["finalizers"] = wanted
        if not wanted:
            del obj["spec"]["finalizers"]
        if version:
            obj["metadata"]["resourceVersion"] = version
        return obj

    return await writes.modify(place, change, options, size)


async def evict(writes: Writes, budgets: Resource, place: RequestPath, eviction: Obj, options: WriteOptions) -> None:
    """POST pods/eviction: decrement the budget, set the pod's condition, delete it with the given options.

    budgets: the row of PodDisruptionBudgets.
    """
    object_meta.subresource_metadata(eviction, place, "Eviction")
    given = eviction.get("deleteOptions") or {}
    if not isinstance(given, dict):
        raise bad_request("deleteOptions is not an object")
    query = {"dryRun": "All"} if options.dry_run else {}
    deletion = DeleteOptions.read(query, given, options.user)
    pod = existing(writes.store, place).decode()
    if not _counts_for_nothing(pod):
        options = WriteOptions(dry_run=deletion.dry_run, user=deletion.user)
        await _ask_budget(writes, budgets, pod, options)
        status = replace(place, subresource="status")
        await writes.modify(status, lambda obj: _disrupt(obj, writes.stamps.now()), options)
    await writes.delete(replace(place, subresource=""), deletion)


async def _ask_budget(writes: Writes, row: Resource, pod: Obj, options: WriteOptions) -> None:
    """Take one off the pod's budget, if it has one. Raises: ApiError 429, 500."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    budgets = [record.decode() for record in writes.store.records(row.collection, namespace)]
    budgets = [budget for budget in budgets if _selects(budget, pod)]
    if len(budgets) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise ApiError(message, code=500, reason="InternalError")
    if budgets and not _may_go_unready(budgets[0], pod):
        place = RequestPath(row, namespace, budgets[0]["metadata"]["name"], "status")
        await writes.modify(place, lambda budget: _take(budget, name, writes.stamps.now()), options)


def _disrupt(obj: Obj, now: str) -> Obj:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": now,
    }
    _set_condition(obj, condition)
    return obj


def _counts_for_nothing(pod: Obj) -> bool:
    """Whether no budget counts the pod: not started, ended, or going."""
    phase = (pod.get("status") or {}).get("phase")
    return phase in ("Succeeded", "Failed", "Pending") or "deletionTimestamp" in pod["metadata"]


def _selects(budget: Obj, pod: Obj) -> bool:
    selector = (budget.get("spec") or {}).get("selector")
    if selector is None:
        return False
    compiled = from_label_selector(msgspec.convert(selector, LabelSelector))
    return compiled.matches(pod["metadata"].get("labels") or {})


def _may_go_unready(budget: Obj, pod: Obj) -> bool:
    """Whether a pod that is not ready may be evicted without counting."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions):
        return False
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    desired, healthy = int(status.get("desiredHealthy", 0)), int(status.get("currentHealthy", 0))
    return 0 < desired <= healthy


def _take(budget: Obj, pod: str, now: str) -> Obj:
    """Take one off a budget, and write the pod down. Raises: ApiError 403, 429."""
    name, status = budget["metadata"]["name"], budget.setdefault("status", {})
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _spent(f"The disruption budget {name} is still being processed by the server.", _PROCESSING_SECONDS)
    if len(status.get("disruptedPods") or {}) > _MOST_DISRUPTED:
        raise forbidden(
            DISRUPTION_BUDGETS, name, "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        )
    if status.get("disruptionsAllowed", 0) <= 0:
        needs, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        raise _spent(f"The disruption budget {name} needs {needs} healthy pods and has {has} currently")
    status["disruptionsAllowed"] -= 1
    status["disruptedPods"] = (status.get("disruptedPods") or {}) | {pod: now}
    if not status["disruptionsAllowed"]:
        for condition in status.get("conditions") or ():
            if condition.get("type") == "DisruptionAllowed" and condition.get("status") == "True":
                condition |= {"status": "False", "reason": "InsufficientPods", "lastTransitionTime": now}
    return budget


def _spent(why: str, seconds: int | None = None) -> ApiError:
    causes = [FieldCause("", why, "DisruptionBudget")]
    return ApiError(_VIOLATES, code=429, reason="TooManyRequests", causes=causes, retry_after=seconds)


def scale_of(obj: Obj) -> Obj:
    """The Scale of an object."""
    meta = {word: obj["metadata"][word] for word in _SCALE_META if word in obj["metadata"]}
    status: Obj = {"replicas": (obj.get("status") or {}).get("replicas", 0)}
    if (selector := shown_selector(obj)) != "<none>":
        status["selector"] = selector
    spec = {"replicas": obj["spec"].get("replicas", 1)}
    return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta, "spec": spec, "status": status}


async def update_scale(writes: Writes, place: RequestPath, change: Change, options: WriteOptions, size: int) -> Written:
    """PUT and PATCH scale. Raises: 400, 404, 409 (resourceVersion), 422 (fewer than none).

    size: of the body, in bytes.
    """

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

    return await writes.modify(replace(place, subresource=""), apply, options, size)


def patched_scale(patch: Patch) -> Change:
    """The change of a patch; a Scale has no lists, so that strategic and merge patches are the same."""
    content_type, value = patch

    def apply(scale: Obj) -> Obj:
        new = patches.apply_json_patch(scale, value) if content_type == JSON_PATCH else patches.merge(scale, value)
        if not isinstance(new, dict):
            raise bad_request("the patch does not leave an object")
        return new

    return apply

"""pods/eviction: delete a pod if its disruption budget allows (pkg/registry/core/pod/storage/eviction.go)."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tonnage.api.kinds import DISRUPTION_BUDGETS
from tonnage.api.meta import LabelSelector
from tonnage.api.selectors import from_label_selector
from tonnage.box.apiserver.request import errors
from tonnage.box.apiserver.request.options import DeleteOptions, WriteOptions
from tonnage.box.apiserver.request.resource import Resource
from tonnage.box.apiserver.request.routes import RequestPath
from tonnage.box.apiserver.rest import object_meta
from tonnage.box.apiserver.rest.object_meta import Stamps
from tonnage.box.apiserver.rest.writes import Writes, existing
from tonnage.box.apiserver.storage.store import Obj, Store
from tonnage.errors import ApiError, FieldCause

_VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
_PROCESSING_SECONDS = 10
_MOST_DISRUPTED = 2000


class EvictionHandler:
    """Evicts pods. budgets: the row of PodDisruptionBudgets."""

    def __init__(self, writes: Writes, store: Store, budgets: Resource, stamps: Stamps) -> None:
        self._writes, self._store, self._budgets, self._stamps = writes, store, budgets, stamps

    async def evict(self, place: RequestPath, eviction: Obj, options: WriteOptions) -> None:
        """POST pods/eviction: decrement the budget, set the pod's condition, delete it with the given options."""
        object_meta.subresource_metadata(eviction, place, "Eviction")
        given = eviction.get("deleteOptions") or {}
        if not isinstance(given, dict):
            raise errors.bad_request("deleteOptions is not an object")
        query = {"dryRun": "All"} if options.dry_run else {}
        deletion = DeleteOptions.read(query, given, options.user)
        pod = existing(self._store, place).decode()
        if not _counts_for_nothing(pod):
            await self._ask_budget(pod, deletion)
            await self._tell(place, deletion)
        await self._writes.delete(replace(place, subresource=""), deletion)

    async def _ask_budget(self, pod: Obj, deletion: DeleteOptions) -> None:
        """Take one off the pod's budget, if it has one. Raises ApiError 429, 500."""
        namespace = pod["metadata"]["namespace"]
        budgets = [r.decode() for r in self._store.records(self._budgets.collection, namespace)]
        budgets = [budget for budget in budgets if _selects(budget, pod)]
        if len(budgets) > 1:
            message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise ApiError(message, code=500, reason="InternalError")
        if not budgets or _may_go_unready(budgets[0], pod):
            return
        place = RequestPath(self._budgets, namespace, budgets[0]["metadata"]["name"], "status")

        def take(budget: Obj) -> Obj:
            _take(budget, pod["metadata"]["name"], self._stamps.now())
            return budget

        options = WriteOptions(dry_run=deletion.dry_run, user=deletion.user)
        await self._writes.modify(place, take, options)

    async def _tell(self, place: RequestPath, deletion: DeleteOptions) -> None:
        now = self._stamps.now()

        def tell(obj: Obj) -> Obj:
            status = obj.setdefault("status", {})
            kept = [c for c in status.get("conditions", []) if c.get("type") != "DisruptionTarget"]
            told = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
                "lastTransitionTime": now,
            }
            status["conditions"] = [*kept, told]
            return obj

        options = WriteOptions(dry_run=deletion.dry_run, user=deletion.user)
        await self._writes.modify(replace(place, subresource="status"), tell, options)


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


def _take(budget: Obj, pod: str, now: str) -> None:
    """Take one off a budget, and write the pod down. Raises ApiError 403, 429."""
    name, status = budget["metadata"]["name"], budget.setdefault("status", {})
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _spent(f"The disruption budget {name} is still being processed by the server.", _PROCESSING_SECONDS)
    if len(status.get("disruptedPods") or {}) > _MOST_DISRUPTED:
        raise errors.forbidden(
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


def _spent(why: str, seconds: int | None = None) -> ApiError:
    causes = [FieldCause("", why, "DisruptionBudget")]
    return ApiError(_VIOLATES, code=429, reason="TooManyRequests", causes=causes, retry_after=seconds)

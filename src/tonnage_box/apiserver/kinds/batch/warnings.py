"""Warnings that answer a write of a CronJob, in the words of Kubernetes (pkg/api). Pure."""

from __future__ import annotations

from tonnage_box.apiserver.kinds.core.warnings import is_changed, of_pod
from tonnage_box.apiserver.printers.table import dig
from tonnage_box.apiserver.storage.store import Obj


def cron_job(new: Obj, old: Obj | None) -> list[str]:
    """Of a CronJob, when its spec changes."""
    where = ("spec", "jobTemplate", "spec", "template")
    return of_pod(dig(new, *where) or {}, f"{'.'.join(where)}.") if is_changed(new, old) else []

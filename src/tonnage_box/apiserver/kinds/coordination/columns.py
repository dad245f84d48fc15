"""Columns of `kubectl get leases` (pkg/printers/internalversion)."""

from __future__ import annotations

from tonnage_box.apiserver.printers.table import AGE, NAME, at

LEASE = (NAME, at("Holder", "spec", "holderIdentity"), AGE)

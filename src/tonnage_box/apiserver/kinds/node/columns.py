"""Columns of `kubectl get runtimeclasses` (pkg/printers/internalversion)."""

from __future__ import annotations

from tonnage_box.apiserver.printers.table import AGE, NAME, at

RUNTIME_CLASS = (NAME, at("Handler", "handler"), AGE)

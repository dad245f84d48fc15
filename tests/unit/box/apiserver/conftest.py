"""An API server in memory, and a small client that speaks to it through the in-process transport."""

from __future__ import annotations

from tests.unit.box.apiserver.api import api  # noqa: F401

"""The child that has an in-memory storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

CHILD = Path(__file__).with_name("storage_child.py")
PATIENCE = 60
"""Seconds in which a child starts on any machine."""
Fault = Callable[[str, str, str], None]

"""Contexts of controllers under test."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tonnage.controller.config import ControllerConfig, LoopContext
from tonnage.kubernetes.client.informer import Informers

_CONFIG = {field.name for field in fields(ControllerConfig)}


def context(client: Any, informers: Informers, events: Any = None, **more: Any) -> LoopContext:
    """A context; fields of the configuration are given by their names too."""
    config = ControllerConfig("test", **{name: more.pop(name) for name in _CONFIG & more.keys()})
    return LoopContext(client, informers, events, config, **more)

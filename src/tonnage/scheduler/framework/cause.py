"""Causes of a rejection, as flags, for queueing hints."""

from __future__ import annotations

from enum import Flag, auto


class RejectionCause(Flag):
    """Cause of a pod's rejection; it selects the queueing hints."""

    NO = 0
    NODE = auto()
    """Taints, affinity, cordon: a change of a Node may help."""
    RESOURCES = auto()
    PORTS = auto()
    LIMITS = auto()
    STORAGE = auto()
    """Insufficient published capacity."""
    BINDING = auto()
    """Existing PVs do not fit, or topology forbids new ones."""
    CLAIM = auto()
    """A claim is missing, foreign, being deleted or binds elsewhere."""
    EXCLUSIVE = auto()
    """A ReadWriteOncePod claim is in use by another pod."""
    UNSUPPORTED = auto()
    NEIGHBOURS = auto()
    """Inter-pod affinity, anti-affinity or topology spread."""

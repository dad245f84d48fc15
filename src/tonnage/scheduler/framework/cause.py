"""Why a pod fits nowhere, as flags: which changes of the cluster may help it."""

from __future__ import annotations

from enum import Flag, auto


class Cause(Flag):
    """What refused a pod; says which changes may help it (queueing hints)."""

    NO = 0
    NODE = auto()
    """Taints, affinity, cordon: a change of a node's object."""
    RESOURCES = auto()
    PORTS = auto()
    LIMITS = auto()
    STORAGE = auto()
    """Not enough published storage."""
    BINDING = auto()
    """Volumes that are there do not fit, or topology forbids making one."""
    CLAIM = auto()
    """A claim is missing, foreign, being deleted or binds elsewhere."""
    EXCLUSIVE = auto()
    """A claim is used by another pod and may be used by one only."""
    UNSUPPORTED = auto()
    NEIGHBOURS = auto()
    """Other pods are there that it must not be with, or are not there that it must be with."""

"""The stages of a snapshot or group, as its objects show them, and what the controller does in each.

Nothing of this is remembered: a stage is read from the objects each time, so a kill changes none. What others do, such
as the deletion of an object, leads from any stage to any other one.
"""

from __future__ import annotations

from enum import Enum

from tonnage.base.transitions import Transition, TransitionTable


class SnapshotStage(Enum):
    """Stage of a snapshot or group."""

    BARE = "bare"
    """It has no content."""
    UNBOUND = "unbound"
    """Its content does not point to it yet, points to another one, or lacks its finalizer."""
    TAKING = "taking"
    """The content is bound; the driver has not answered, has failed, or members are missing."""
    READY = "ready"
    """It can be restored, and its status says so."""
    ENDING = "ending"
    """It is being deleted, and has our finalizers."""
    GONE = "gone"
    """It is being deleted, and waits for the finalizers of others only."""


class SnapshotEvent(Enum):
    """What the controller does."""

    WAIT = "wait"
    REJECT = "reject"
    WARN = "warn"
    PREPARE = "prepare"
    MAKE_CONTENT = "make content"
    BIND_CONTENT = "bind content"
    MAKE_MEMBERS = "make members"
    SHOW = "show"
    SHOW_READY = "show ready"
    END_MEMBERS = "end members"
    END_CONTENT = "end content"
    RELEASE = "release"


_S, _E = SnapshotStage, SnapshotEvent
_Row = Transition[SnapshotStage, SnapshotEvent]
_WITH_CONTENT = (_S.UNBOUND, _S.TAKING, _S.READY)
STAGES = TransitionTable(
    "snapshot",
    _S.BARE,
    (
        _Row((_S.BARE,), _E.REJECT, None, "no source or class fits; or a content was there, and is never made again"),
        _Row((_S.BARE,), _E.WAIT, None, "it is a member: its content comes with its group"),
        _Row((_S.BARE,), _E.PREPARE, None, "its finalizers and class come before what a deletion must remove"),
        _Row((_S.BARE,), _E.MAKE_CONTENT, _S.TAKING, "the content is whole in one write, and bound"),
        _Row(
            _WITH_CONTENT,
            _E.PREPARE,
            None,
            "the content was there first, or somebody removed its finalizers",
        ),
        _Row((_S.UNBOUND,), _E.REJECT, None, "the content is of another snapshot, or of the other kind of source"),
        _Row((_S.UNBOUND,), _E.BIND_CONTENT, _S.TAKING, "the content was there first"),
        _Row(
            (_S.TAKING, _S.READY),
            _E.REJECT,
            _S.TAKING,
            "the source is of the other kind, or a member is not its own",
        ),
        _Row((_S.TAKING, _S.READY), _E.WAIT, None, "the driver or members are not ready, or all is shown"),
        _Row((_S.TAKING,), _E.MAKE_MEMBERS, None, "the driver took a group: each volume gets its snapshot and content"),
        _Row((_S.TAKING, _S.READY), _E.SHOW, _S.TAKING, "the driver failed, or it is taken and not usable yet"),
        _Row((_S.TAKING, _S.READY), _E.SHOW_READY, _S.READY, "the driver and all members are ready"),
        _Row((_S.ENDING,), _E.WARN, None, "a claim is made from it, or its group is still there"),
        _Row((_S.ENDING,), _E.END_MEMBERS, None, "members go before the data that they share"),
        _Row((_S.ENDING,), _E.END_CONTENT, None, "the agent deletes the data, then the content goes"),
        _Row((_S.ENDING,), _E.WAIT, None, "members or the content are on their way"),
        _Row((_S.ENDING,), _E.RELEASE, _S.GONE, "nothing is left, or the policy keeps it"),
        _Row((_S.GONE,), _E.WAIT, None, "the rest is up to others"),
    ),
)

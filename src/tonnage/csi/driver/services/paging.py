"""Pages of ListVolumes and ListSnapshots.

A token is the last id returned, so it stays valid while volumes are created and deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tonnage.base.errors import InvalidError
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import Driver, split_id
from tonnage.csi.errors import Code, CsiError

Listed = TypeVar("Listed")
ListRequest = csi_pb2.ListVolumesRequest | csi_pb2.ListSnapshotsRequest


def check_token(driver: Driver, request: ListRequest) -> None:
    """Check the page that a request names. Raises: InvalidError, CsiError for a token that is not one of ours."""
    if request.max_entries < 0:
        raise InvalidError(f"max_entries is {request.max_entries}, want 0 or more")
    after = request.starting_token
    if after and (split_id(after) or ("",))[0] not in driver.pools:
        raise CsiError(Code.ABORTED, f"starting_token {after!r} is not one of ours: start again without")


def cut(found: Mapping[str, Listed], request: ListRequest) -> tuple[list[Listed], str]:
    """The page of what was found, sorted by id, and the token of the next page, "" for none."""
    ids = sorted(vid for vid in found if vid > request.starting_token)
    page = ids[: request.max_entries] if request.max_entries else ids
    return [found[vid] for vid in page], page[-1] if len(page) < len(ids) else ""

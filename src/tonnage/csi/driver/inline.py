"""Inline volumes: created by NodePublishVolume, deleted by NodeUnpublishVolume (KEP-596).

The record in the pool is written first and removed last. So after a kill at any point, the kubelet's repeated call
finds it and continues.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tonnage.base.errors import (
    AlreadyExistsError,
    ExhaustedError,
    InvalidError,
    OutOfRangeError,
    PreconditionError,
    UnavailableError,
    host_errors,
)
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import Driver, inline_name, named
from tonnage.csi.driver.parameters import Selection, Use, choose_fstype, select
from tonnage.csi.driver.paths import check_parent
from tonnage.kubernetes.api import names, quantity
from tonnage.storage.pools.base.contract import INLINE, PoolVolume, VolumeRequest, is_inline
from tonnage.storage.pools.base.parameters import SOURCE
from tonnage.storage.pools.core.pool import Pool

log = logging.getLogger(__name__)

SIZE = "size"
_POD_KEYS = (names.CSI_POD_NAME, names.CSI_POD_NAMESPACE, names.CSI_POD_UID)


class Inline:
    """Publishes and unpublishes inline volumes of a driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def publish(self, request: csi_pb2.NodePublishVolumeRequest, target: Path, use: Use) -> None:
        """Create the pod's volume, mount it, and publish it at target. Idempotent.

        Raises: as Pool's methods, InvalidError.
        """
        if use.block:
            raise InvalidError("an inline volume is a file system: raw block needs a claim")
        pool, wanted = self._request(request.volume_id, dict(request.volume_context), use)
        check_parent(target)
        self._driver.check_open(pool)
        found = None
        with suppress(UnavailableError):  # another pool's: the same pod asks for the same one each time
            found = await self._driver.find_inline(request.volume_id)
        if found is not None and found[0] is not pool:
            raise AlreadyExistsError(f"inline volume {request.volume_id} exists in pool {found[0].name}")
        try:
            volume = await pool.create(wanted)
        except (ExhaustedError, OutOfRangeError) as reason:
            self._driver.hooks.capacity_changed()  # the scheduler used older capacity
            self._driver.hooks.unfit(request.volume_context, str(reason))
            raise
        self._driver.hooks.capacity_changed()
        if not is_inline(volume.owner):
            raise AlreadyExistsError(f"volume {volume.name} exists in pool {pool.name} and is not an inline volume")
        try:
            await self._show(request, pool, volume, target, use)
        except Exception as failure:
            if found is None:
                # What another volume shows at the target is not ours to take away.
                await self._take_back(pool, volume.name, None if isinstance(failure, AlreadyExistsError) else target)
            raise

    async def _show(
        self, request: csi_pb2.NodePublishVolumeRequest, pool: Pool, volume: PoolVolume, target: Path, use: Use
    ) -> None:
        staging = self._staging(volume.name)
        _make_private(staging)
        await pool.stage(volume.name, staging, options=tuple(flag for flag in use.flags if flag != "ro"))
        readonly = request.readonly or use.readonly or "ro" in use.flags
        pod = request.volume_context.get(names.CSI_POD_UID, "")
        async with self._driver.throttle.limited(pool, volume, target, pod=pod):
            await pool.publish(volume.name, staging, target, readonly=readonly)

    async def _take_back(self, pool: Pool, name: str, target: Path | None) -> None:
        """Roll back a failed publish: after a final error the kubelet does not call NodeUnpublishVolume."""
        try:
            if target is not None:
                with suppress(PreconditionError):  # something else is there, which stays
                    await pool.unpublish(name, target)
            await self._remove(pool, name, None, "its publish failed")
        except Exception as failure:
            log.error("inline volume left after a failed publish pool=%s volume=%s error=%r", pool.name, name, failure)

    async def unpublish(self, handle: str, target: Path) -> None:
        """Unpublish the volume and delete it; an unknown one is success. Idempotent."""
        found = await self._driver.find_inline(handle)
        name = inline_name(handle)
        if found is None:
            await self._driver.first_pool.unpublish(name, target)
        else:
            await self._remove(found[0], name, target, "the kubelet unpublished it, so its pod is over")

    async def _remove(self, pool: Pool, name: str, target: Path | None, proof: str) -> None:
        staging = self._staging(name)
        if target is not None:
            async with self._driver.throttle.released(target):
                await pool.unpublish(name, target)
        await pool.unstage(name, staging)
        with suppress(FileNotFoundError):
            os.rmdir(staging)
        await pool.delete(name)
        log.info("deleted what=inline-volume name=%s/%s proof=%s", pool.name, name, proof)
        self._driver.hooks.capacity_changed()

    def _request(self, handle: str, attributes: Mapping[str, str], use: Use) -> tuple[Pool, VolumeRequest]:
        selection = self._select(attributes)
        size = _size(attributes.get(SIZE, ""))
        fstype = choose_fstype(selection.pool, use.fstype, selection.fstype, block=False)
        name = inline_name(handle)
        pod = {key: attributes[key] for key in _POD_KEYS if key in attributes}
        # What a pod's author writes under keys of claims is accepted, and recorded as nobody's.
        recorded = {key: value for key, value in selection.owner.items() if not key.startswith(names.CSI_PREFIX)}
        owner = named({**recorded, INLINE: "true", **pod}, name, handle)
        return selection.pool, VolumeRequest(name, size, fstype=fstype, parameters=selection.parameters, owner=owner)

    def _select(self, attributes: Mapping[str, str]) -> Selection:
        _check_allowed(attributes)
        try:
            return select(self._driver, {key: value for key, value in attributes.items() if key != SIZE})
        except InvalidError as reason:
            more = "" if SIZE in attributes else f"; {SIZE!r} is required"
            raise InvalidError(f"volumeAttributes: {reason}{more}") from None

    def _staging(self, name: str) -> Path:
        return Path(os.path.realpath(self._driver.state)) / "inline" / name  # mounts follow no symlink


def _check_allowed(attributes: Iterable[str]) -> None:
    """Reject what only a class may say, not everybody who may write pods. Raises: InvalidError."""
    for key in sorted(attributes):
        if key == SOURCE:
            raise InvalidError(f"volumeAttributes: {SOURCE!r}: an inline volume begins empty: use a claim to fill it")
        if key.startswith(names.PARAMETER_PREFIX):
            raise InvalidError(f"volumeAttributes: {key[:60]!r} is for StorageClasses only: an inline volume has none")


def _size(text: str) -> int:
    if not text:
        raise InvalidError(f'volumeAttributes: {SIZE!r} is missing: an inline volume needs a size, such as "4Gi"')
    try:
        size = quantity.to_bytes(text)
    except InvalidError as reason:
        raise InvalidError(f"volumeAttributes: {SIZE}: {reason}") from None
    if size <= 0:
        raise InvalidError(f"volumeAttributes: {SIZE}={text!r}: want more than 0")
    return size


def _make_private(path: Path) -> None:
    with host_errors(f"cannot make {path}"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)

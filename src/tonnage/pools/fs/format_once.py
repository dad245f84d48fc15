"""Format once: decide whether the file system of a volume in state new must be made. Blocking.

The content of the device decides, never the record alone: a record may be restored from before the volume was used.
"""

from __future__ import annotations

import logging

from tonnage.errors import PreconditionError
from tonnage.host import device, ondisk
from tonnage.pools.base.record import VolumeRecord

log = logging.getLogger(__name__)


def must_format(fd: int, path: str, record: VolumeRecord) -> bool:
    """Whether to make the file system: there is none, or an unused one that an interrupted mkfs left.

    False when the volume's own was ever mounted or holds a file: it stays, with its content. Raises PreconditionError
    when foreign content is there, OSError.
    """
    found = device.probe(fd)
    if found is None:
        return True
    if found.uuid != record.uuid or found.kind != record.fstype:
        raise PreconditionError(
            f"{path} of the new volume {record.name} holds {found.kind} that we did not make:"
            " it will not be formatted; look at it, then delete the volume"
        )
    if ondisk.is_unused(fd):
        return True
    log.warning("record says new, but the file system was used, left as it is volume=%s path=%s", record.name, path)
    return False

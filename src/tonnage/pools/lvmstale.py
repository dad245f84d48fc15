"""What an LVM command that was killed leaves in a thin pool, taken away. Blocking.

To take a snapshot of a thin volume in use, LVM has the kernel make it, and count the pool's transaction, before its own
metadata are written. A kill or a power cut in between leaves a thin device that no logical volume has, and perhaps a
pool that is one transaction ahead. LVM gives the next volume that device's number: a snapshot is then refused, but a
new volume is quietly given the device with the content it has. A pool that is ahead makes no volumes any more, and
is not activated after the next boot.
"""

from __future__ import annotations

import logging
import re
import tempfile
from pathlib import Path

from tonnage.errors import HostError
from tonnage.host import dm, lvm

log = logging.getLogger(__name__)
_RUN = "/run/tonnage"


def settle(group: str, pool: str) -> bool:
    """Make an active thin pool agree with LVM's metadata; whether it did not. May be repeated. Raises HostError.

    Only the device that LVM would give to the next volume is removed, and only if no volume has its number: LVM counts
    upwards from the highest.
    """
    kernel = f"{lvm.mapper_name(group, pool)}-tpool"
    with lvm.alone(group):
        state = dm.thin_pool(kernel)
        if state is None or not state.writable:
            return False
        known = lvm.thin_numbers(group, pool)
        ahead = state.transaction - known.transaction
        if ahead not in (0, 1):  # behind: LVM itself goes on with what it had begun
            return False
        if ahead:
            log.warning("thin pool is ahead of LVM, set back pool=%s/%s transaction=%d", group, pool, known.transaction)
            dm.set_transaction(kernel, state.transaction, known.transaction)
        stale = max(known.devices, default=0) + 1
        if is_stale := dm.delete_thin(kernel, stale):
            log.warning("thin device that no volume has was removed pool=%s/%s device=%d", group, pool, stale)
        return bool(ahead) or is_stale


_AHEAD = re.compile(r"transaction_id is (\d+), while expected (\d+)")


def catch_up(group: str, pool: str, said: str) -> bool:
    """Let LVM's metadata follow a thin pool that it refuses to activate, being one transaction ahead; settle() does the
    rest. said: with what words LVM refused. Whether that was it. Raises HostError.

    vgcfgrestore(8) is the only way: the kernel takes messages only from a pool that is active.
    """
    found = _AHEAD.search(said)
    if found is None or int(found[1]) != int(found[2]) + 1:
        return False
    log.warning("thin pool is ahead of LVM, which follows pool=%s/%s transaction=%s", group, pool, found[1])
    with tempfile.TemporaryDirectory(prefix="lvm-", dir=_RUN) as folder, lvm.alone(group):
        path = Path(folder, "metadata")
        lvm.lvm_alone("vgcfgbackup", "--file", str(path), group)
        path.write_text(following(path.read_text(), pool, before=int(found[2])))
        lvm.lvm_alone("vgcfgrestore", "--yes", "--force", "--file", str(path), group)
    return True


def following(metadata: str, pool: str, *, before: int) -> str:
    """LVM's metadata of a group, as vgcfgbackup writes them, with a thin pool at the transaction after `before`.

    Raises HostError unless they say just what is expected.
    """
    volume = re.search(rf"^\t\t{re.escape(pool)} {{$.*?^\t\t}}$", metadata, re.MULTILINE | re.DOTALL)
    text = volume[0] if volume else ""
    changed, count = re.subn(rf"(?<=\ttransaction_id = ){before}$", str(before + 1), text, flags=re.MULTILINE)
    if volume is None or count != 1 or 'type = "thin-pool"' not in text or "message" in text:
        raise HostError(f"LVM's metadata of thin pool {pool} are not as expected: mend it by hand (lvmthin(7))")
    return metadata[: volume.start()] + changed + metadata[volume.end() :]

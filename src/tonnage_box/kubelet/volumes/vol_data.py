"""vol_data.json: data of a CSI volume that tear-down needs, also after a restart (pkg/volume/csi)."""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from tonnage.base.errors import InvalidError
from tonnage.host.descriptor import closing, opened

FILE = "vol_data.json"
PERSISTENT = "Persistent"
EPHEMERAL = "Ephemeral"


class VolumeData(msgspec.Struct, frozen=True, rename="camel"):
    """Content of the file. spec_volume: the PV's name; of an inline volume its name in the pod."""

    driver_name: str
    volume_handle: str
    spec_volume: str = msgspec.field(default="", name="specVolID")
    node_name: str = ""
    attachment: str = msgspec.field(default="", name="attachmentID")
    volume_lifecycle_mode: str = PERSISTENT
    se_linux_mount_context: str = msgspec.field(default="", name="seLinuxMountContext")

    @property
    def key(self) -> tuple[str, str]:
        """Driver and handle, which identify the volume."""
        return self.driver_name, self.volume_handle


_decoder = msgspec.json.Decoder(VolumeData)


def save(folder: str, data: VolumeData, *, durable: bool = False) -> None:
    """Write the file into folder, which is there. Never half of it: a killed kubelet must find all or nothing.

    durable: also after a power cut.
    """
    path = f"{folder}/{FILE}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing(os.open(f"{path}.new", flags, 0o640)) as fd:
        os.write(fd, msgspec.json.encode(data))
        if durable:
            os.fsync(fd)
    os.rename(f"{path}.new", path)
    if durable:
        _sync(folder)


def _sync(folder: str) -> None:
    """Make the entries of a folder durable, and its own in the one above, which may be new as well."""
    for path in (folder, os.path.dirname(folder)):
        with opened(path, os.O_DIRECTORY) as fd:
            os.fsync(fd)


def load(folder: str) -> VolumeData | None:
    """Read the file, None where there is none. Raises: InvalidError when it is no vol_data.json."""
    try:
        with open(f"{folder}/{FILE}", "rb") as file:
            return _decoder.decode(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.MsgspecError as failure:
        raise InvalidError(
            f"{folder}/{FILE} is damaged ({failure}): unmount the volume by hand and remove it"
        ) from failure


def remove(folder: str) -> None:
    """Remove the file; one that is not there is fine."""
    for name in (FILE, f"{FILE}.new"):
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}/{name}")

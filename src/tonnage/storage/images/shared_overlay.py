"""Read-only overlays that volumes share: the first volume of some layers mounts one, the others bind it.

Used by the inline driver and the box's kubelet. Each volume has a mount of its own, so there is nothing to release: the
kernel ends the overlay with its last mount, whatever was killed before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tonnage.base.errors import host_errors
from tonnage.host import mount, nofollow
from tonnage.host.descriptor import closing

_FOLDER = os.O_PATH | os.O_DIRECTORY
_OPTIONS = ("nodev", "nosuid")
Layers = tuple[Path, ...]


class SharedOverlays:
    """Where the layers of several folders are shown. Blocking."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._targets: dict[Layers, set[str]] = {}
        self._layers: dict[str, Layers] = {}

    def mount(self, target: str, layers: Sequence[Path]) -> None:
        """Mount layers, the topmost first, read-only at target, an empty folder with no mount. Raises: HostError."""
        wanted = tuple(layers)
        with self._lock:
            if not self._bind(target, wanted):
                with ExitStack() as stack:
                    with host_errors(f"cannot open the layers of {target}"):
                        lowers = [stack.enter_context(closing(nofollow.open_path(one, _FOLDER))) for one in wanted]
                    mount.overlay(target, lowers, options=("ro", *_OPTIONS))
            self._note(target, wanted)

    def note(self, target: str, layers: Sequence[Path]) -> None:
        """Others may share what an earlier process has mounted at target. Idempotent."""
        with self._lock:
            self._note(target, tuple(layers))

    def unmount(self, target: str) -> None:
        """Unmount what mount() has made. Idempotent. Raises: HostError, PreconditionError (in use)."""
        with self._lock:  # one that is being bound is busy
            while mount.umount(target):
                pass
            self._forget(target)

    def _note(self, target: str, layers: Layers) -> None:
        self._forget(target)
        self._layers[target] = layers
        self._targets.setdefault(layers, set()).add(target)

    def _forget(self, target: str) -> None:
        layers = self._layers.pop(target, ())
        self._targets.get(layers, set()).discard(target)
        if not self._targets.get(layers):
            self._targets.pop(layers, None)

    def _bind(self, target: str, layers: Layers) -> bool:
        """Bind the overlay of another volume; False if there is none."""
        for other in list(self._targets.get(layers, ())):
            if mount.is_mount(other):
                mount.bind(other, target, readonly=True, options=_OPTIONS, private=True)
                return True
            self._forget(other)
        return False

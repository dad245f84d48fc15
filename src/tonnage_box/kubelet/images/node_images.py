"""Images of one node: a container's image in one of the stores, or the reason why there is none. Blocking."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from tonnage.base.errors import InvalidError, NotFoundError
from tonnage.host import mount
from tonnage.kubernetes.api.pods import Container
from tonnage.storage.images import reference
from tonnage.storage.images.shared_overlay import SharedOverlays
from tonnage.storage.images.store import ImageRecord, ImageStore

log = logging.getLogger(__name__)
UPPER, WORK = "upper", "work"
NEVER = "Never"


class ImageMissingError(NotFoundError):
    """An image that must be in a store is not there. reason: of the container's waiting state."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class NodeImages:
    """The stores of a node, searched in order. required: a container does not start without its image."""

    stores: Sequence[ImageStore] = ()
    required: bool = False
    shared: SharedOverlays = field(default_factory=SharedOverlays, compare=False)

    def find(self, container: Container) -> tuple[ImageStore, ImageRecord] | None:
        """The image of a container; None if it runs from the machine's /usr.

        Raises: ImageMissingError when images are required, InvalidError (a bad name, then too).
        """
        name = container.image
        try:
            reference.parse(name)
        except InvalidError:
            if self.required:
                raise
            return None
        found = self._search(name)
        if found is None and self.required:
            if container.image_pull_policy == NEVER:
                text = f'Container image "{name}" is not present with pull policy of Never'
                raise ImageMissingError(text, "ErrImageNeverPull")
            raise ImageMissingError(
                f'failed to pull image "{name}": it is in no image store, and the box pulls from no registry; '
                "load it with `tonnage images load`",
                "ErrImagePull",
            )
        return found

    def _search(self, name: str) -> tuple[ImageStore, ImageRecord] | None:
        for store in self.stores:
            if (record := store.find(name)) is not None:
                return store, record
        return None

    def mount(self, name: str, target: str) -> ImageRecord:
        """Mount the tree of an image read-only at target, an empty folder. Idempotent.

        Raises: NotFoundError, InvalidError, HostError.
        """
        found = self._search(name)
        if found is None:
            raise NotFoundError(
                f'failed to pull image "{name}": it is in no image store; load it with `tonnage images load`'
            )
        store, record = found
        if mount.is_mount(target):
            return record
        record = store.use(name, target) or record
        layers = [store.layer(chain) for chain in reversed(record.layers)]
        if len(layers) == 1:  # overlayfs wants two without an upper
            mount.bind(layers[0], target, readonly=True, options=("nosuid", "nodev"))
        elif layers:
            self.shared.mount(target, [layer.parent.resolve() / layer.name for layer in layers])
        return record

    def unmount(self, target: str) -> None:
        """Unmount what mount() has mounted. Idempotent. Raises: HostError, PreconditionError (in use)."""
        self.shared.unmount(target)


NO_IMAGES = NodeImages()

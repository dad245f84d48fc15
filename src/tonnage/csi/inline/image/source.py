"""Content of image volumes: an image of the node's stores, pulled where that is allowed, as layers of an overlay.

An image is resolved once for each volume. The choice is stored in the volume's folder, so a tag that moves does not
change what a running pod sees, also after a restart of the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from tonnage.base.errors import InvalidError, NotFoundError, UnavailableError, host_errors
from tonnage.csi.inline.base import AttributeRule, Filled, FillRequest, InlinePod, PodEvents, SourceNeeds, Tree
from tonnage.csi.inline.image import attributes
from tonnage.csi.inline.image.attributes import ImageVolume
from tonnage.csi.inline.image.folder import ImageFolder
from tonnage.host import files
from tonnage.storage.images.manifest import Platform
from tonnage.storage.images.reference import ImageReference
from tonnage.storage.images.store import ImageRecord, ImageStore
from tonnage.storage.pools.base.threads import Threads
from tonnage.storage.registry.client import OPTION, RegistryAccess
from tonnage.storage.registry.containerd import ContainerdImages
from tonnage.storage.registry.pulls import ImagePulls, PulledImage

DEFAULT_SIZE = 1 << 30
"""Bytes of a writable layer whose pod names no size."""
PULLED = "Pulled"
"""Reason of an Event on the pod, as the kubelet has it."""
_CHOICE = "image.json"
_AT_ONCE = 4


class ImagePuller(Protocol):
    """What brings images into the first store."""

    @property
    def is_remote(self) -> bool:
        """Whether they come from outside of the node, which pullPolicy is about."""

    def allows(self, image: ImageReference) -> bool:
        """Whether it may be asked for an image."""

    async def pull(self, image: ImageReference, platform: Platform, secrets: Mapping[str, str]) -> PulledImage:
        """Bring an image into the store, if it is not there in this version.

        Raises: UnavailableError (now, or it is not done yet), NotFoundError, PreconditionError, InvalidError.
        """

    async def close(self) -> None:
        """Stop what is being pulled. Idempotent."""


def _no_events(_pod: InlinePod, _type: str, _reason: str, _message: str) -> None:
    """Emit none."""


class _Choice(msgspec.Struct, frozen=True):
    """image.json in a volume's folder: which image it shows. layers: chain ids, the lowest first."""

    store: str
    digest: str
    layers: list[str]


@dataclass(frozen=True)
class ImageInline:
    """The source of the driver `image`. pullers: asked in this order; those of the node before remote ones.

    default_size: of writable layers in bytes, None: pods must name one. accepts: parameters of pools. events: of what
    was pulled.
    """

    stores: Sequence[ImageStore]
    pullers: Sequence[ImagePuller] = ()
    default_size: int | None = DEFAULT_SIZE
    accepts: Callable[[str], bool] = lambda key: False
    events: PodEvents = _no_events
    threads: Threads = field(default_factory=lambda: Threads("image", _AT_ONCE))

    @property
    def attributes(self) -> Mapping[str, AttributeRule]:
        """Every key that it takes, but for the pool's parameters."""
        return attributes.RULES

    @property
    def needs(self) -> SourceNeeds:
        """PersistentVolumes too, whose handle is the image's name."""
        asks = any(puller.is_remote for puller in self.pullers)
        return SourceNeeds(persistent=True, asks=asks, accepts=self.accepts)

    async def fill(self, request: FillRequest) -> Filled:
        """Return the layers of the image, protected while the request's folder exists.

        Raises: InvalidError (attributes), NotFoundError, PreconditionError (the image), UnavailableError, HostError.
        """
        wanted = attributes.parse(request, self.default_size)
        found = await self.threads.run(_chosen, request.folder)
        if found is None:
            found = await self._find(wanted, request)
            await self.threads.run(_store_choice, request.folder, found)
        store = ImageStore(Path(found.store))
        layers = tuple(store.layer(chain) for chain in reversed(found.layers))
        return Tree(layers, wanted.path, wanted.writable)

    async def close(self) -> None:
        """Stop pulls and end the threads. Idempotent."""
        for puller in self.pullers:
            await puller.close()
        self.threads.close()

    async def _find(self, wanted: ImageVolume, request: FillRequest) -> _Choice:
        is_always, found = self._is_always(wanted), None
        if not is_always:
            found = await self.threads.run(self._use, wanted, str(wanted.image), request.folder)
        for puller in self._asked(wanted) if found is None else ():
            try:
                pulled = await puller.pull(wanted.image, wanted.platform, request.pod.secrets)
            except NotFoundError:
                if puller.is_remote:
                    raise
                continue
            if pulled.report:
                self.events(request.pod, "Normal", PULLED, pulled.report)
            found = await self.threads.run(self._use, wanted, pulled.name, request.folder)
            if found is None:
                raise UnavailableError(f"image {wanted.image} was removed from its store meanwhile; it is pulled again")
            return found
        if found is None and is_always and not wanted.is_policy_given:  # none of this node's sources has it
            found = await self.threads.run(self._use, wanted, str(wanted.image), request.folder)
        if found is None:
            raise self._missing(wanted)
        return found

    def _asked(self, wanted: ImageVolume) -> list[ImagePuller]:
        """Those to ask: with Always only remote ones, with Never only those of the node."""
        allowed = [puller for puller in self.pullers if puller.allows(wanted.image)]
        if wanted.policy == "Never":
            return [puller for puller in allowed if not puller.is_remote]
        if self._is_pulled(wanted) and wanted.policy == "Always":
            return [puller for puller in allowed if puller.is_remote]
        return [] if wanted.policy == "Always" and wanted.is_policy_given else allowed

    def _is_pulled(self, wanted: ImageVolume) -> bool:
        """Whether a registry may be asked."""
        return any(puller.is_remote and puller.allows(wanted.image) for puller in self.pullers)

    def _is_always(self, wanted: ImageVolume) -> bool:
        """Whether the stores are asked last. By default only where others may be: images loaded by hand count."""
        if wanted.policy != "Always":
            return False
        return wanted.is_policy_given or bool(self._asked(wanted))

    def _missing(self, wanted: ImageVolume) -> NotFoundError:
        host = wanted.image.repository.partition("/")[0]
        if wanted.policy == "Always" and wanted.is_policy_given:
            return NotFoundError(
                f"image {wanted.image}: pullPolicy Always, but this node pulls from no registry {host}; allow it with"
                f" {OPTION}, or use IfNotPresent"
            )
        if wanted.policy == "Never" and self._is_pulled(wanted):
            return NotFoundError(f"image {wanted.image} is not present with pull policy of Never; pull or load it")
        where = ", ".join(str(store.path) for store in self.stores) or "none"
        return NotFoundError(
            f"image {wanted.image} for {_text(wanted.platform)} is in no image store of this node ({where}), which"
            f" pulls from no registry {host}; load it with `tonnage images load`, or allow that with {OPTION}"
        )

    def _use(self, wanted: ImageVolume, name: str, folder: Path) -> _Choice | None:
        """Find an image in the stores and protect its layers. Blocking."""
        for store in self.stores:
            record = store.use(name, str(folder))
            if record is None:
                continue
            if not _fits(record, wanted.platform):
                store.release(str(folder))
                continue
            if not record.layers:
                raise InvalidError(f"image {name} has no layers: there is nothing to show")
            return _Choice(str(store.path), record.digest, record.layers)
        return None


def _text(platform: Platform) -> str:
    return f"{platform.os}/{platform.architecture}"


def _fits(record: ImageRecord, platform: Platform) -> bool:
    return record.platform == _text(platform)


def _chosen(folder: Path) -> _Choice | None:
    """The image of an earlier call, protected again; None where there was none, or where it is gone. Blocking."""
    try:
        found = msgspec.json.decode((folder / _CHOICE).read_bytes(), type=_Choice)
    except (FileNotFoundError, msgspec.MsgspecError):  # not synced: a power cut, which ended all mounts, empties it
        return None
    return found if ImageStore(Path(found.store)).hold(found.layers, str(folder)) else None


def _store_choice(folder: Path, found: _Choice) -> None:
    with host_errors(f"cannot write {folder / _CHOICE}"):
        files.replace(folder / _CHOICE, msgspec.json.encode(found))


def image_inline(
    stores: Sequence[Path],
    access: RegistryAccess,
    *,
    folder: Path | None = None,
    containerd: Path | None = None,
    default_size: int | None = DEFAULT_SIZE,
    accepts: Callable[[str], bool] = lambda key: False,
    events: PodEvents = _no_events,
) -> ImageInline:
    """The source over stores, of which the first takes what is pulled. folder: of layouts and archives."""
    found = [ImageStore(path) for path in stores]
    pullers: list[ImagePuller] = []
    for store in found[:1]:
        if folder is not None:
            pullers.append(ImageFolder(folder, store))
        if containerd is not None:
            pullers.append(ImagePulls(store, ContainerdImages(containerd), is_remote=False))
        if access.hosts:
            pullers.append(ImagePulls(store, access))
    return ImageInline(found, pullers, default_size, accepts, events)

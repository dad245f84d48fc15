"""What a volume of an image asks for: volumeAttributes, checked, with their defaults. Pure.

The keys are those of image-populator (`image`) and of container-image-csi-driver (`image`, `pullAlways`), and ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.base import AttributeRule, FillRequest, WritableLayer
from tonnage.kubernetes.api.quantity import Quantity
from tonnage.storage.images import manifest, reference
from tonnage.storage.images.manifest import Platform
from tonnage.storage.images.reference import ImageReference

IMAGE, POLICY, ALWAYS, SIZE, POOL, PATH, PLATFORM = (
    "image", "pullPolicy", "pullAlways", "size", "pool", "path", "platform",
)  # fmt: skip
PullPolicy = Literal["Always", "IfNotPresent", "Never"]
_POLICIES: Mapping[str, PullPolicy] = {"Always": "Always", "IfNotPresent": "IfNotPresent", "Never": "Never"}
_LONGEST_PATH = 4095  # bytes, of the kernel
_PLATFORM = re.compile(r"([a-z0-9]{1,20})/([a-z0-9_]{1,20})(?:/([a-z0-9]{1,20}))?")
_OF_EPHEMERAL = re.compile(r"csi-[0-9a-f]{64}")
"""Handle that the kubelet makes for an inline volume (pkg/volume/csi, makeVolumeHandle)."""


@dataclass(frozen=True)
class ImageVolume:
    """What one volume asks for. is_policy_given: by the pod's author. path: below the image's root, "" for all.

    writable: None for a read-only volume.
    """

    image: ImageReference
    policy: PullPolicy
    is_policy_given: bool
    platform: Platform
    path: str = ""
    writable: WritableLayer | None = None


def parse(request: FillRequest, default_size: int | None) -> ImageVolume:
    """Read the attributes of a volume. default_size: of the writable layer in bytes, None: authors must give one.

    Raises: InvalidError with the key at fault.
    """
    given = request.attributes
    for key, value in given.items():
        if key in CHECKS:
            _check(key, value)
    is_persistent = not _OF_EPHEMERAL.fullmatch(request.handle)
    name = given.get(IMAGE) or (request.handle if is_persistent else "")
    if not name:
        raise InvalidError(f"volume {request.handle}: attribute {IMAGE!r} is missing: name the image to show")
    image = reference.parse(name)
    policy = _policy(given, image)
    return ImageVolume(
        image,
        policy,
        POLICY in given or ALWAYS in given,
        _platform(given[PLATFORM]) if PLATFORM in given else manifest.machine(),
        _path(given.get(PATH, "")),
        _writable(given, default_size, is_read_only=request.read_only or is_persistent),
    )


def _policy(given: Mapping[str, str], image: ImageReference) -> PullPolicy:
    """Kubernetes' default: Always for the tag latest, else IfNotPresent (pkg/apis/core/v1, SetDefaults_Container)."""
    default: PullPolicy = "Always" if image.tag == "latest" and not image.digest else "IfNotPresent"
    policy = _POLICIES[given[POLICY]] if POLICY in given else None
    if ALWAYS not in given:
        return policy or default
    is_always = given[ALWAYS] == "true"
    if policy is not None and is_always != (policy == "Always"):
        raise InvalidError(f"attributes {POLICY!r} and {ALWAYS!r} contradict each other: remove {ALWAYS!r}")
    return policy or ("Always" if is_always else "IfNotPresent")


def _one_of(*values: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in values:
            raise InvalidError(f"{text[:40]!r} is not one of {', '.join(values)}")

    return check


def _platform(text: str) -> Platform:
    found = _PLATFORM.fullmatch(text)
    if found is None:
        raise InvalidError(f"{text[:40]!r}: want OS/ARCHITECTURE, as linux/arm64")
    return Platform(found[2], found[1], found[3])


def _path(text: str) -> str:
    """A folder of the image, relative to its root; symlinks are resolved in the image when it is shown."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in text or len(text.encode(errors="surrogatepass")) > _LONGEST_PATH:
        raise InvalidError(f"{text[:80]!r}: want a folder of the image, without '..'")
    return "/".join(parts)


def _size(text: str) -> int:
    size = Quantity.parse(text).value
    if size <= 0:
        raise InvalidError(f"{text[:40]!r}: want more than 0 bytes, as 64Mi")
    return size


def _pool(text: str) -> str:
    if not text or len(text) > 253:
        raise InvalidError(f"{text[:40]!r} is no name of a pool")
    return text


CHECKS: Mapping[str, Callable[[str], object]] = {
    IMAGE: reference.parse,
    POLICY: _one_of(*_POLICIES),
    ALWAYS: _one_of("true", "false"),
    SIZE: _size,
    POOL: _pool,
    PATH: _path,
    PLATFORM: _platform,
}


def _check(key: str, value: str) -> None:
    try:
        CHECKS[key](value)
    except InvalidError as failure:
        raise InvalidError(f"attribute {key!r}: {failure}") from None


def _rule(check: Callable[[str], object]) -> AttributeRule:
    def checked(text: str) -> None:
        check(text)

    return AttributeRule(checked)


RULES: Mapping[str, AttributeRule] = {key: _rule(check) for key, check in CHECKS.items()}
"""The attributes, for the framework."""


def _writable(given: Mapping[str, str], default_size: int | None, *, is_read_only: bool) -> WritableLayer | None:
    others = {key: value for key, value in given.items() if key not in CHECKS}
    if is_read_only:
        if useless := sorted({SIZE, POOL, *others} & given.keys()):
            raise InvalidError(
                f"attribute {useless[0]!r}: the volume is read-only, and nothing is written: remove {useless[0]!r} or"
                " `readOnly: true`"
            )
        return None
    if SIZE not in given and default_size is None:
        raise InvalidError(
            f"attribute {SIZE!r} is missing: the volume is writable: give a size, as 64Mi, or set `readOnly: true`"
        )
    size = _size(given[SIZE]) if SIZE in given else default_size or 0
    return WritableLayer(size, _pool(given[POOL]) if POOL in given else "", others)

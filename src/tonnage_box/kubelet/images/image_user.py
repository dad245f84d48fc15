"""User of a container that runs from an image: the pod's word, else the image's, by the image's /etc/passwd. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.pods import Container, Pod
from tonnage_box.kubelet.containers.rootfs import MAX_ID, User, groups_of

MAX_FILE = 1 << 20
"""Bytes that are read of /etc/passwd and /etc/group."""


@dataclass(frozen=True)
class Accounts:
    """Lines of an image's /etc/passwd and /etc/group."""

    passwd: str = ""
    group: str = ""

    def user(self, key: str) -> tuple[int, int, str, str] | None:
        """uid, gid, name and home of a user, by name or uid. A number is always a uid, as for runc."""
        wanted = int(key) if _is_id(key) else None
        for fields in _lines(self.passwd, 6):
            if not _is_id(fields[2]) or not _is_id(fields[3]):
                continue
            if fields[0] == key if wanted is None else int(fields[2]) == wanted:
                return int(fields[2]), int(fields[3]), fields[0], fields[5]
        return None

    def gid(self, key: str) -> int | None:
        """The gid of a group, by name or gid."""
        if _is_id(key):
            return int(key)
        return next((int(f[2]) for f in _lines(self.group, 3) if f[0] == key and _is_id(f[2])), None)

    def groups_of(self, name: str) -> list[int]:
        """gids of the groups that list a user."""
        lines = _lines(self.group, 4)
        return [int(f[2]) for f in lines if name and name in f[3].split(",") and _is_id(f[2])]


def _lines(text: str, least: int) -> list[list[str]]:
    return [fields for line in text.splitlines() if len(fields := line.split(":")) >= least]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= MAX_ID


def user(pod: Pod, container: Container, image_user: str, accounts: Accounts) -> User:
    """User and groups of a container (CRI: runAsUser, then the image's User, then root).

    Raises: InvalidError in the words of the kubelet and of runc.
    """
    outer, inner = pod.spec.security_context, container.security_context
    wanted = inner.run_as_user if inner.run_as_user is not None else outer.run_as_user
    group = inner.run_as_group if inner.run_as_group is not None else outer.run_as_group
    _verify_non_root(pod, container, image_user.partition(":")[0])
    name, _, image_group = image_user.partition(":")
    if wanted is not None:
        User(wanted).checked()
    key = str(wanted) if wanted is not None else name or "0"
    found = accounts.user(key)
    if found is None and not _is_id(key):
        raise InvalidError(f"unable to find user {key[:80]}: no matching entries in passwd file")
    uid, gid, login, home = found or (int(key), 0, "", "/")
    if group is None and image_group and wanted is None:
        named = accounts.gid(image_group)
        if named is None:
            raise InvalidError(f"unable to find group {image_group[:80]}: no matching entries in group file")
        gid = named
    of_image = accounts.groups_of(login) if outer.supplemental_groups_policy != "Strict" else []
    groups = dict.fromkeys([*groups_of(outer), *of_image])
    home = home if home.startswith("/") else "/"
    return User(uid, gid if group is None else group, tuple(groups), home).checked()


def _verify_non_root(pod: Pod, container: Container, name: str) -> None:
    """runAsNonRoot, as pkg/kubelet/kuberuntime/security_context_others.go checks it. Raises: InvalidError."""
    outer, inner = pod.spec.security_context, container.security_context
    non_root = inner.run_as_non_root if inner.run_as_non_root is not None else outer.run_as_non_root
    wanted = inner.run_as_user if inner.run_as_user is not None else outer.run_as_user
    if not non_root or (wanted is not None and wanted != 0):
        return
    meta = pod.metadata
    where = f'(pod: "{meta.name}_{meta.namespace}({meta.uid})", container: {container.name})'
    if wanted == 0:
        raise InvalidError(f"container's runAsUser breaks non-root policy {where}")
    if name and not _is_id(name):
        raise InvalidError(
            f"container has runAsNonRoot and image has non-numeric user ({name[:80]}), "
            f"cannot verify user is non-root {where}"
        )
    if not name or int(name) == 0:
        raise InvalidError(f"container has runAsNonRoot and image will run as root {where}")

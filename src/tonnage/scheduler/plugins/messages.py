"""Additional messages about storage: invalid classes and missing drivers.

They follow Kubernetes' sentence; nodes with such an error are not in its count of nodes without enough free storage.
Publishers write a class's error into the annotation `tonnage.dev/reason` of their capacity objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tonnage.kubernetes.api import names
from tonnage.provisioning.capacity.published import PublishedCapacity, PublishedStorage
from tonnage.scheduler.framework.plugin import PodVolumes, Reasons, RejectionCause
from tonnage.scheduler.plugins.inline_volumes import NO_INLINE
from tonnage.scheduler.plugins.volume_binding import NO_CLASS, NO_STORAGE

MOST = 3
"""Maximum number of reasons for one pod."""


class StorageDiagnosis:
    """Why nodes lack storage for a pod, beyond Kubernetes' text.

    A node may be unable to create volumes of the pod's classes, whatever its capacity.
    """

    def __init__(self, volumes: PodVolumes, published: PublishedStorage, is_registered: Callable[[str], bool]) -> None:
        self._classes = {
            u.storage_class.metadata.name: u.storage_class.provisioner for u in volumes.unbound if u.measured
        }
        silent = [provisioner for name, provisioner in self._classes.items() if not published.has_offers(name)]
        self._published, self._is_registered = published, is_registered
        self._suspect = [name for name in self._classes if published.has_reasons(name)]
        self._is_absent = any(not is_registered(provisioner) for provisioner in silent)
        self._awaits_driver = any(map(is_registered, silent))
        self._lacking: list[str] = []

    def read(self, node: str, reasons: Reasons) -> tuple[Reasons, RejectionCause]:
        """Return the reasons to report of a node that rejects the volumes, and their cause."""
        if NO_STORAGE not in reasons:
            return reasons, RejectionCause.STORAGE if NO_INLINE in reasons else RejectionCause.BINDING
        self._lacking.append(node)
        if self._is_faulty(node):
            reasons = tuple(NO_CLASS if reason == NO_STORAGE else reason for reason in reasons)
        return reasons, RejectionCause.STORAGE

    @property
    def is_unpublished(self) -> bool:
        """Whether a driver exists and has published nothing for its class yet."""
        return bool(self._lacking) and self._awaits_driver

    def hint(self) -> str:
        """Return a sentence, after a space, why nodes lack storage, or ""."""
        published, nodes, found = self._published, self._lacking, dict[str, None]()
        for name, provisioner in self._classes.items() if nodes else ():
            if name in self._suspect:
                said = [node for node in nodes if name in published.on(node)] if published.is_faulty(name) else nodes
                found |= dict.fromkeys(_counted(name, _reasons(published, nodes, name), len(said)))
            elif not published.has_offers(name) and not self._is_registered(provisioner):
                found[of_class(name, not_there(provisioner))] = None
        return sentence(found)

    def _is_faulty(self, node: str) -> bool:
        """Return whether the node has an error of a class.

        Also if it has published nothing yet for a class that is invalid on all others.
        """
        if self._is_absent or not self._suspect:
            return self._is_absent
        offers = self._published.on(node)
        return any(self._rejects(name, offers.get(name, ())) for name in self._suspect)

    def _rejects(self, name: str, offers: Sequence[PublishedCapacity]) -> bool:
        if not offers:
            return self._published.is_faulty(name)
        return all(names.is_fault(offer.reason) for offer in offers)


def _reasons(published: PublishedStorage, nodes: Iterable[str], storage_class: str) -> Iterable[str]:
    return (o.reason for node in nodes for o in published.on(node).get(storage_class, ()) if o.reason)


def _counted(name: str, reasons: Iterable[str], nodes: int) -> Iterable[str]:
    """Yield the reasons; where nodes differ, with the number of nodes."""
    for reason, count in Counter(reasons).items():
        where = "" if count >= nodes else f" (on {count} of these nodes)"
        yield of_class(name, reason.removesuffix(".") + where if where else reason)


def class_hint(published: PublishedStorage, storage_class: str, nodes: Iterable[str]) -> str:
    """Return the sentence for a claim with immediate binding."""
    if not published.has_reasons(storage_class):
        return ""
    return sentence(dict.fromkeys(of_class(storage_class, r) for r in _reasons(published, nodes, storage_class)))


def of_class(name: str, reason: str) -> str:
    """Return a reason with its class."""
    return f'StorageClass "{name}": {reason}'


def not_there(provisioner: str) -> str:
    """Return the message that no node has a driver of that name."""
    return f'no node has a CSI driver "{provisioner}"; start it, or correct the provisioner of the class'


def sentence(reasons: Iterable[str]) -> str:
    """Join the first few reasons, "" without any."""
    listed = [reason.removesuffix(".") if not reason.endswith("...") else reason for reason in reasons]
    if not listed:
        return ""
    text = "; ".join(listed[:MOST]) + (f"; and {len(listed) - MOST} more" if len(listed) > MOST else "")
    return f" {text}" if text.endswith("...") else f" {text}."

"""core/v1 objects as they come from an API server."""

from __future__ import annotations

from tonnage.kubernetes.api.core import Secret
from tonnage.kubernetes.api.decode import decode
from tonnage.kubernetes.api.kinds import CLAIMS, LEASES, VOLUMES
from tonnage.kubernetes.api.meta import ObjectMeta


def test_a_claim_and_its_volume() -> None:
    claim = CLAIMS.decode(
        b'{"spec": {"volumeName": "pv", "storageClassName": "c", "resources": {"requests": {"storage": "1Gi"}}},'
        b' "status": {"phase": "Bound"}}'
    )
    assert (claim.spec.volume_name, claim.spec.storage_class_name, claim.status.phase) == ("pv", "c", "Bound")
    assert claim.spec.resources.requests == {"storage": "1Gi"}
    volume = VOLUMES.decode(b'{"spec": {"claimRef": {"name": "a", "uid": "u"}, "csi": {"volumeHandle": "p/v"}}}')
    assert volume.spec.claim_ref is not None
    assert volume.spec.csi is not None
    assert (volume.spec.claim_ref.uid, volume.spec.csi.volume_handle) == ("u", "p/v")


def test_a_lease() -> None:
    lease = LEASES.decode(b'{"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 2}}')
    assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds) == ("a", 15)


def test_a_secret_is_never_shown() -> None:
    secret = Secret(metadata=ObjectMeta(name="s", namespace="n"), data=decode(b'{"key": "c2VjcmV0"}', dict))
    assert repr(secret) == "Secret(n/s)"

"""certificates.k8s.io (v1, v1beta1) and cert-manager.io/v1, with only the fields that we read."""

from __future__ import annotations

import msgspec

from tonnage.kubernetes.api.meta import Condition, KubeObject, Object


class SigningRequestSpec(Object, frozen=True):
    """What is asked for, and by which account. request: PEM in base64. extra: of the account's token."""

    request: str = ""
    signer_name: str = ""
    usages: list[str] = []
    expiration_seconds: int | None = None
    username: str = ""
    extra: dict[str, list[str]] = {}


class SigningRequestStatus(Object, frozen=True):
    """What was decided. certificate: PEM in base64."""

    conditions: list[Condition] = []
    certificate: str = ""


class CertificateSigningRequest(KubeObject, frozen=True):
    """certificates.k8s.io/v1 CertificateSigningRequest."""

    spec: SigningRequestSpec = SigningRequestSpec()
    status: SigningRequestStatus = SigningRequestStatus()

    def has(self, condition: str) -> bool:
        """Whether it has a condition of that type."""
        return any(one.type == condition for one in self.status.conditions)


class CertificateRequestStatus(Object, frozen=True):
    """State of a request to cert-manager. certificate, ca: PEM in base64."""

    conditions: list[Condition] = []
    certificate: str = ""
    ca: str = ""


class CertificateRequest(KubeObject, frozen=True):
    """cert-manager.io/v1 CertificateRequest."""

    status: CertificateRequestStatus = CertificateRequestStatus()


class PodCertificateRequestSpec(Object, frozen=True):
    """For which pod a kubelet asks whom. stub_pkcs10_request, pkix_public_key: DER in base64; one of them is set."""

    signer_name: str = ""
    pod_name: str = ""
    pod_uid: str = msgspec.field(default="", name="podUID")
    service_account_name: str = ""
    node_name: str = ""
    max_expiration_seconds: int | None = None
    stub_pkcs10_request: str = msgspec.field(default="", name="stubPKCS10Request")
    pkix_public_key: str = ""
    unverified_user_annotations: dict[str, str] = {}


class PodCertificateRequestStatus(Object, frozen=True):
    """The answer, which is final. certificate_chain: PEM."""

    conditions: list[Condition] = []
    certificate_chain: str = ""
    begin_refresh_at: str = ""


class PodCertificateRequest(KubeObject, frozen=True):
    """certificates.k8s.io (v1, v1beta1) PodCertificateRequest (KEP-4317)."""

    spec: PodCertificateRequestSpec = PodCertificateRequestSpec()
    status: PodCertificateRequestStatus = PodCertificateRequestStatus()


class ClusterTrustBundleSpec(Object, frozen=True):
    """Root certificates (PEM) of a signer."""

    signer_name: str = ""
    trust_bundle: str = ""


class ClusterTrustBundle(KubeObject, frozen=True):
    """certificates.k8s.io (v1, v1beta1) ClusterTrustBundle (KEP-3257)."""

    spec: ClusterTrustBundleSpec = ClusterTrustBundleSpec()

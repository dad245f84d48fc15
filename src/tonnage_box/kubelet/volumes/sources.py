"""Content of configMap, secret, downwardAPI and projected volumes and of variables, by live reads.

Used for volumes and for env and envFrom.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256

from tonnage.base.errors import InvalidError, NotFoundError, UnsupportedError
from tonnage.csi.inline.cert.authority import pem_of, read_certificates
from tonnage.kubernetes.api.certificate import ClusterTrustBundle
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, TRUST_BUNDLES
from tonnage.kubernetes.api.pods import ClusterTrustBundleProjection, Container, Pod
from tonnage.kubernetes.api.quantity import Quantity
from tonnage.kubernetes.api.selectors import from_label_selector
from tonnage.kubernetes.client.client import Client
from tonnage.provisioning.claims.bind import find


@dataclass(frozen=True)
class NodeFields:
    """A node as the fields of its pods show it. address: its IP; allocatable: quantities as text.

    server: host and port of the API server for programs in containers, None where no container runs.
    """

    name: str
    address: str
    allocatable: Mapping[str, str]
    server: tuple[str, int] | None = None


class _TokenStatus(msgspec.Struct):
    token: str


class _TokenRequest(msgspec.Struct):
    status: _TokenStatus


class ObjectSources:
    """Reads ConfigMaps and Secrets of a namespace, and fields of pods on a node."""

    def __init__(self, client: Client, node: NodeFields) -> None:
        self.client, self.node = client, node

    async def config_map(self, namespace: str, name: str) -> dict[str, bytes] | None:
        """All keys of a ConfigMap, None when it does not exist. Raises: ApiError."""
        found = await find(self.client, CONFIG_MAPS, name, namespace)
        if found is None:
            return None
        data = {key: text.encode() for key, text in found.data.items()}
        return data | {key: base64.b64decode(text) for key, text in found.binary_data.items()}

    async def secret(self, namespace: str, name: str) -> dict[str, bytes] | None:
        """All keys of a Secret, None when it does not exist. Raises: ApiError."""
        found = await find(self.client, SECRETS, name, namespace)
        return None if found is None else {key: base64.b64decode(text) for key, text in found.data.items()}

    async def token(self, pod: Pod, *, audience: str, seconds: int) -> bytes:
        """A new token of the pod's account, which ends with the pod. Raises: ApiError."""
        meta = pod.metadata
        account = pod.spec.service_account_name or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        spec = {"audiences": [audience] if audience else [], "expirationSeconds": seconds, "boundObjectRef": bound}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = await self.client.post(SERVICE_ACCOUNTS.path(meta.namespace, account, "token"), body)
        return msgspec.json.decode(answer, type=_TokenRequest).status.token.encode()

    async def of(self, kind: str, namespace: str, name: str, *, optional: bool) -> dict[str, bytes]:
        """Keys of a "configmap" or "secret". Raises: NotFoundError in Kubernetes' words unless optional."""
        found = await (self.secret if kind == "secret" else self.config_map)(namespace, name)
        if found is None and not optional:
            raise NotFoundError(f'{kind} "{name}" not found')
        return found or {}

    async def trust_anchors(self, source: ClusterTrustBundleProjection) -> bytes:
        """The certificates of the bundles as PEM, each once, always in the same order.

        Raises: NotFoundError without any bundle unless optional, InvalidError, ApiError.
        """
        found = await self._bundles(source)
        if not found and not source.optional:
            which = f'"{source.name}"' if source.name else f"of signer {source.signer_name} with these labels"
            raise NotFoundError(f"clustertrustbundle {which} not found")
        roots = {root for bundle in found for root in read_certificates(bundle.spec.trust_bundle.encode())}
        return pem_of(sorted(roots, key=lambda root: root.fingerprint(SHA256())))

    async def _bundles(self, source: ClusterTrustBundleProjection) -> list[ClusterTrustBundle]:
        if source.name:
            found = await find(self.client, TRUST_BUNDLES, source.name)
            return [] if found is None else [found]
        if source.label_selector is None:  # as in Kubernetes, none selects nothing, and an empty one everything
            return []
        selected = from_label_selector(source.label_selector)
        listed = (await self.client.list(TRUST_BUNDLES)).items
        of_signer = [bundle for bundle in listed if bundle.spec.signer_name == source.signer_name]
        return [bundle for bundle in of_signer if selected.matches(bundle.metadata.labels)]

    def field(self, pod: Pod, path: str) -> str:
        """The value of a fieldRef. Raises: UnsupportedError for a path that is not offered."""
        meta = pod.metadata
        simple = {
            "metadata.name": meta.name,
            "metadata.namespace": meta.namespace,
            "metadata.uid": meta.uid,
            "spec.nodeName": self.node.name,
            "spec.serviceAccountName": pod.spec.service_account_name,
            **dict.fromkeys(("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"), self.node.address),
        }
        if path in simple:
            return simple[path]
        if path in ("metadata.labels", "metadata.annotations"):
            pairs = meta.labels if path == "metadata.labels" else meta.annotations
            return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted(pairs.items()))
        for prefix, pairs in (("metadata.labels", meta.labels), ("metadata.annotations", meta.annotations)):
            if path.startswith(f"{prefix}['") and path.endswith("']"):
                return pairs.get(path[len(prefix) + 2 : -2], "")
        raise UnsupportedError(f"fieldPath {path!r} is not supported")

    def resource(self, pod: Pod, ref: Mapping[str, Any], default: Container | None) -> str:
        """The value of a resourceFieldRef: limits fall back to the node's allocatable.

        Raises: InvalidError, UnsupportedError.
        """
        name = ref.get("containerName", "")
        container = next((c for c in pod.all_containers if c.name == name), None) if name else default
        if container is None:
            raise InvalidError(f"resourceFieldRef: there is no container {name!r}")
        part, _, what = ref.get("resource", "").partition(".")
        if part not in ("limits", "requests") or what not in ("cpu", "memory", "ephemeral-storage"):
            raise UnsupportedError(f"resourceFieldRef resource {ref.get('resource')!r} is not supported")
        amounts = container.resources.limits if part == "limits" else container.resources.requests
        text = amounts.get(what) or container.resources.limits.get(what) or ("0" if part == "requests" else "")
        value = Quantity.parse(text or self.node.allocatable.get(what, "0")).nanos
        divisor = Quantity.parse(str(ref.get("divisor") or "1")).nanos
        return str(-(-value // (divisor or Quantity.parse("1").nanos)))


def _quoted(text: str) -> str:
    """As Go's %q prints usual text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'

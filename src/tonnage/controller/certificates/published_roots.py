"""Publishes our issuers' root certificates: as ClusterTrustBundles (KEP-3257) for pods, in a ConfigMap for agents.

Agents renew certificates when the roots change. The Secrets are mounted files, which are read again each minute.
Watched: both kinds of objects, so that a changed one is repaired; the server need not have ClusterTrustBundles.
"""

from __future__ import annotations

from tonnage.controller.config import LoopContext
from tonnage.csi.inline.cert.issuers.remote import ROOTS, SIGNER_DOMAIN
from tonnage.kubernetes.api.certificate import ClusterTrustBundle
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, TRUST_BUNDLES
from tonnage.kubernetes.client.controller import Reconciler, on_difference
from tonnage.kubernetes.client.object_write import patch_object

EVERY = 60.0
"""Seconds between looks at the mounted Secrets; the kubelet needs about as long to change them."""


def bundle_name(issuer: str) -> str:
    """Return the name of an issuer's ClusterTrustBundle, which must begin with that of its signer."""
    return f"{SIGNER_DOMAIN.rstrip('/')}:{issuer}:v1"


class PublishedRoots(Reconciler[str]):
    """Keeps the roots of each issuer published. Keys are the issuers' names."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("published roots")
        self._client, self._namespace = context.client, context.config.namespace
        self._issuers = context.config.certificate_issuers
        of = context.informers.of
        self._served = of(TRUST_BUNDLES, optional=True)
        self._bundles = self.watch(self._served, on_difference(lambda one: one.spec, self._bundle_changed))
        maps = of(CONFIG_MAPS, namespace=self._namespace, fields=f"metadata.name={ROOTS}")
        self._maps = self.watch(maps, on_difference(lambda one: one.data, lambda _: self._issuers))
        for issuer in self._issuers:
            self.enqueue(issuer)

    async def reconcile(self, key: str) -> float:
        """Publish the roots of one issuer. Idempotent. Raises: ApiError; UnavailableError without the authority."""
        authority = await self._issuers[key].load()
        roots = authority.roots.decode()
        await self._publish_map(key, roots)
        if self._served.is_served:  # else the informer has logged that
            await self._publish_bundle(key, roots)
        return EVERY

    async def _publish_map(self, issuer: str, roots: str) -> None:
        found, data = self._maps.get(f"{self._namespace}/{ROOTS}"), {issuer: roots}
        if found is None:
            await self._client.create(CONFIG_MAPS, {"metadata": {"name": ROOTS}, "data": data}, self._namespace)
        elif found.data.get(issuer) != roots:
            await patch_object(self._client, CONFIG_MAPS, found, {"data": data})

    async def _publish_bundle(self, issuer: str, roots: str) -> None:
        name = bundle_name(issuer)
        found = self._bundles.get(name)
        if found is None:
            spec = {"signerName": f"{SIGNER_DOMAIN}{issuer}", "trustBundle": roots}
            await self._client.create(self._served.kind, {"metadata": {"name": name}, "spec": spec})
        elif found.spec.trust_bundle != roots:
            await patch_object(self._client, self._served.kind, found, {"spec": {"trustBundle": roots}})

    def _bundle_changed(self, bundle: ClusterTrustBundle) -> list[str]:
        issuer = bundle.spec.signer_name.removeprefix(SIGNER_DOMAIN)
        return [issuer] if issuer in self._issuers and bundle.metadata.name == bundle_name(issuer) else []

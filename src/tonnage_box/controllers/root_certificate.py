"""Root certificate publisher: ConfigMap kube-root-ca.crt in each namespace (pkg/controller/certificates).

Pods find in it the certificate with which they check the API server.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tonnage.base.errors import ApiAlreadyExistsError, ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import ConfigMap, Namespace
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, NAMESPACES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.informer import Informers

_DESCRIPTION = "kubernetes.io/description"
_TEXT = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)


class RootCertificatePublisher(Reconciler[str]):
    """Creates the ConfigMap and restores its content. certificate: PEM."""

    def __init__(self, client: Client, informers: Informers, certificate: str) -> None:
        self._client, self._data = client, {"ca.crt": certificate}
        namespaces = informers.of(NAMESPACES)
        maps = informers.of(CONFIG_MAPS, fields=f"metadata.name={names.ROOT_CA}")
        self._namespaces, self._maps = namespaces.cache, maps.cache
        super().__init__("root_certificate", workers=4)
        self.watch(namespaces, _namespace_added)
        self.watch(maps, _map_changed)

    async def reconcile(self, name: str) -> None:
        """Create or restore the ConfigMap of a namespace. Idempotent. Raises: ApiError."""
        namespace, found = self._namespaces.get(name), self._maps.get(f"{name}/{names.ROOT_CA}")
        if namespace is None or namespace.metadata.deleting or (found is not None and found.data == self._data):
            return
        body = {"metadata": {"name": names.ROOT_CA, "annotations": {_DESCRIPTION: _TEXT}}, "data": self._data}
        with suppress(ApiAlreadyExistsError, ApiNotFoundError):  # NotFound: namespace or map have gone meanwhile
            if found is None:
                await self._client.create(CONFIG_MAPS, body, name)
            else:
                foreign = dict.fromkeys(found.data.keys() - self._data.keys())
                await self._client.patch(CONFIG_MAPS, names.ROOT_CA, {"data": {**foreign, **self._data}}, name)


def _namespace_added(old: Namespace | None, new: Namespace | None) -> Iterable[str]:
    return (new.metadata.name,) if new is not None and not new.metadata.deleting and old is None else ()


def _map_changed(old: ConfigMap | None, new: ConfigMap | None) -> Iterable[str]:
    found = new or old
    return (found.metadata.namespace,) if found is not None else ()

"""ServiceAccount controller: `default` in every namespace, recreated when deleted (pkg/controller/serviceaccount)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tonnage.base.errors import ApiAlreadyExistsError, ApiNotFoundError
from tonnage.kubernetes.api.core import Namespace, ServiceAccount
from tonnage.kubernetes.api.kinds import NAMESPACES, SERVICE_ACCOUNTS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.informer import Informers

ACCOUNT = "default"


class ServiceAccountController(Reconciler[str]):
    """Creates the account that pods use when they name none."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        namespaces, accounts = informers.of(NAMESPACES), informers.of(SERVICE_ACCOUNTS)
        self._namespaces, self._accounts = namespaces.cache, accounts.cache
        super().__init__("service_account", workers=4)
        self.watch(namespaces, _namespace_added)
        self.watch(accounts, _account_gone)

    async def reconcile(self, name: str) -> None:
        """Create the account if the namespace lacks it. Idempotent. Raises: ApiError."""
        namespace = self._namespaces.get(name)
        if namespace is None or namespace.metadata.deleting or self._accounts.get(f"{name}/{ACCOUNT}") is not None:
            return
        with suppress(ApiAlreadyExistsError, ApiNotFoundError):  # NotFound: the namespace has gone meanwhile
            await self._client.create(SERVICE_ACCOUNTS, {"metadata": {"name": ACCOUNT}}, name)


def _namespace_added(old: Namespace | None, new: Namespace | None) -> Iterable[str]:
    return (new.metadata.name,) if new is not None and not new.metadata.deleting and old is None else ()


def _account_gone(old: ServiceAccount | None, new: ServiceAccount | None) -> Iterable[str]:
    return (old.metadata.namespace,) if new is None and old is not None and old.metadata.name == ACCOUNT else ()

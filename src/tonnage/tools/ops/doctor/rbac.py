"""Checks of RBAC: each service account may do all that its roles list, and no more.

The API server is asked (SubjectAccessReview), so the result counts whichever object grants a right. A reader who may
not ask about others asks about himself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec
import yaml

from tonnage.base.errors import ApiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.client import Client
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.tools.ops.cluster_snapshot import View
from tonnage.tools.ops.doctor.finding import Finding, fail, few, ok, warn
from tonnage.tools.ops.doctor.installation import APPLY
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation

_CHECK = "access"
_REVIEWS = "/apis/authorization.k8s.io/v1"
_AT_ONCE = 8
_ROLES: tuple[tuple[str, str, Callable[[View], bool]], ...] = (
    ("tonnage-node", "rbac-node.yaml", lambda view: True),
    ("tonnage-controller", "rbac-controller.yaml", lambda view: bool(view.deployments)),
    (names.SCHEDULER, "rbac-scheduler.yaml", lambda view: bool(view.schedulers)),
)
"""Account, template of its roles, and whether it is there to be asked about."""
_TOO_MUCH = (
    ("deletecollection", "", "persistentvolumes"),
    ("deletecollection", "", "persistentvolumeclaims"),
    ("list", "", "secrets"),
    ("create", "", "pods"),
    ("update", "", "nodes"),
)
"""Rights that no account needs, and with which its token could delete or read objects of others."""


@dataclass(frozen=True)
class Right:
    """One verb on one resource. name: "" for all; namespace: "" for the whole cluster."""

    verb: str
    group: str
    resource: str
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        of = f" {self.name}" if self.name else ""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{of}{where}"

    def attributes(self) -> dict[str, str]:
        """As a review wants them."""
        resource, _, subresource = self.resource.partition("/")
        found = {"verb": self.verb, "group": self.group, "resource": resource, "subresource": subresource}
        return {k: v for k, v in {**found, "name": self.name, "namespace": self.namespace}.items() if v}


def rights(file: str, namespace: str) -> list[Right]:
    """All that the roles of a template give."""
    chosen = Installation(namespace=namespace, scheduler=ScoringStrategy.LEAST_ALLOCATED)
    objects = yaml.safe_load_all(manifests.render_part(file, chosen))
    return [right for found in objects for right in _of(found)]


def _of(role: Mapping[str, Any]) -> Iterator[Right]:
    where = role["metadata"].get("namespace", "") if role["kind"] == "Role" else ""
    for rule in role.get("rules", ()):
        # list and watch of a single name use a field selector, which a review takes as a name as well.
        found = product(rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""]))
        yield from (Right(verb, group, resource, name, where) for group, resource, verb, name in found)


async def check(view: View, client: Client) -> list[Finding]:
    """Each account. Raises: UnavailableError."""
    findings: list[Finding] = []
    for account, file, is_there in _ROLES:
        if not is_there(view):
            continue
        reviewer = _AccessReview(client, view.namespace, account)
        try:
            lacking = await reviewer.which(rights(file, view.namespace), allowed=False)
            beyond = await reviewer.which([Right(*item) for item in _TOO_MUCH], allowed=True)
        except ApiError as failure:
            todo = "run it with an administrator's kubeconfig"
            findings.append(warn(_CHECK, account, f"its permissions cannot be checked: {failure.message[:200]}", todo))
            continue
        findings += _findings(account, lacking, beyond)
    return findings


def _findings(account: str, lacking: list[Right], beyond: list[Right]) -> Iterator[Finding]:
    if lacking:
        yield fail(_CHECK, account, f"it lacks permission to {few(map(str, lacking))}", APPLY)
    if beyond:
        todo = "find the binding that grants more: kubectl get clusterrolebindings,rolebindings -A -o wide"
        yield warn(_CHECK, account, f"it has more permissions than it needs: {few(map(str, beyond))}", todo)
    if not lacking and not beyond:
        yield ok(_CHECK, account, "it has the permissions that it needs, and none that it must not have")


class _AccessReview:
    """SubjectAccessReviews of one account."""

    def __init__(self, client: Client, namespace: str, account: str) -> None:
        self._client = client
        self._user = f"system:serviceaccount:{namespace}:{account}"
        self._groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        self._self: bool | None = None
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def which(self, found: list[Right], *, allowed: bool) -> list[Right]:
        """Those that are (or are not) allowed. Raises: ApiError when that may not be asked."""
        if self._self is None:
            self._self = await self._is_self()
        answers = await asyncio.gather(*map(self._allowed, found))
        return [right for right, answer in zip(found, answers, strict=True) if answer is allowed]

    async def _is_self(self) -> bool:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            answer = await self._client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        except ApiError:  # before Kubernetes 1.28
            return False
        return bool(msgspec.json.decode(answer)["status"]["userInfo"].get("username") == self._user)

    async def _allowed(self, right: Right) -> bool:
        kind = "SelfSubjectAccessReview" if self._self else "SubjectAccessReview"
        spec: dict[str, Any] = {"resourceAttributes": right.attributes()}
        if not self._self:
            spec |= {"user": self._user, "groups": self._groups}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        async with self._slots:
            answer = await self._client.post(f"{_REVIEWS}/{kind.lower()}s", body)
        return bool(msgspec.json.decode(answer)["status"].get("allowed", False))

"""Watch scope of an agent: claims labeled with its node, or all claims.

A MutatingAdmissionPolicy or `tonnage controller` writes the label `tonnage.dev/node`. A cluster may have neither, and
volumes must be provisioned nevertheless. Of other nodes' claims, `all` reads only the metadata, and stores none. An
agent labels the PVs that it creates, so PVs are always watched by label.

`auto` detects who labels claims before the first watch. A policy is then watched: one object that never changes.
Without a policy, the controller's Lease is read at intervals; labels are trusted while the Lease is renewed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ApiError, TonnageError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, LEASES, MUTATING_BINDINGS, MUTATING_POLICIES, VOLUMES
from tonnage.kubernetes.api.meta import PartialObject
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.config.agent import AgentConfig

log = logging.getLogger(__name__)
LOOK_EVERY = 30.0
"""Seconds between two checks without a policy; longer than a Lease is valid."""


class ClaimScope:
    """Sets the watch scope of the agent's claims.

    config: has the mode, one of SCOPES, and the namespace of the controller's Lease.
    """

    def __init__(self, client: Client, informers: Informers, config: AgentConfig, clock: Clock) -> None:
        self._client, self._informers, self._clock = client, informers, clock
        self._scope = scope = config.node_scope
        self._mode, self._namespace = config.scope, config.namespace
        self._claims = informers.of(CLAIMS, labels=scope.selector)
        self._claims.mine = scope.has_claim
        informers.of(VOLUMES, labels=scope.selector).mine = scope.has_volume
        self.by_label = True
        """Whether claims are watched by label now."""
        self._renewed: tuple[str | None, float] = (None, 0.0)
        self._labeller = ""
        self._policy_changed: asyncio.Event | None = None
        self._rejected = False
        self._backoff = Backoff(initial=0.2, maximum=10.0)

    async def decide(self) -> None:
        """Choose the first scope, before the informers start.

        Waits for the API server.
        """
        if self._mode == "all":
            self._watch_all()
        if self._mode != "auto":
            return
        while True:
            try:
                labeller = await self.labeller()
            except TonnageError as failure:
                delay = self._backoff.next("")
                log.info("scope not known yet retry=%.1fs error=%s", delay, failure)
                await self._clock.sleep(delay)
            else:
                self._choose(labeller)
                return

    async def run(self) -> None:
        """Follow changes of the cluster until cancelled; call decide() first.

        Returns at once if the mode is fixed.
        """
        while self._mode == "auto":
            if self._labeller == "policy" and self.by_label:
                await self._policy_changes()
            else:
                await self._clock.sleep(LOOK_EVERY)
            with suppress(TonnageError):  # then it stays as it was
                self._choose(await self.labeller())

    async def _policy_changes(self) -> None:
        """Return when the policy or its binding has changed.

        Returns at once the first time, for earlier changes.
        """
        if self._policy_changed is None:
            self._policy_changed = asyncio.Event()
            self._policy_changed.set()
            fields = f"metadata.name={names.SCOPE_POLICY}"
            for kind in (MUTATING_BINDINGS, MUTATING_POLICIES):
                informer = self._informers.of(kind, fields=fields)
                informer.cache.on_change(self._policy_seen)
                await informer.wait_synced()
        await self._policy_changed.wait()
        self._policy_changed.clear()

    def _policy_seen(self, old: PartialObject | None, new: PartialObject | None) -> None:
        """Handle a policy that came or went; other changes are ignored."""
        if self._policy_changed is not None and (old is None or new is None):
            self._policy_changed.set()

    async def labeller(self) -> str:
        """Return who labels claims: "policy", "controller", or "" for none.

        Raises: ApiError, UnavailableError.
        """
        if await self._has_policy():
            return "policy"
        return "controller" if await self._has_controller() else ""

    async def _has_policy(self) -> bool:
        """Return whether the policy exists and is bound.

        It cannot label claims of nodes with long names: CEL has no hash.
        """
        if self._scope.label != self._scope.node:
            return False
        for kind in (MUTATING_BINDINGS, MUTATING_POLICIES):
            try:
                await self._client.get(kind, names.SCOPE_POLICY)
            except ApiError as failure:
                if failure.code == 403 and not self._rejected:
                    self._rejected = True
                    log.warning(
                        "the policy for labels may not be looked at node=%s error=%s", self._scope.node, failure
                    )
                if failure.code not in (403, 404):
                    raise
                return False
        return True

    async def _has_controller(self) -> bool:
        """Return whether a controller is leader.

        The Lease must change between two checks: clocks may differ. The first check trusts it.
        """
        try:
            lease = (await self._client.get(LEASES, names.CONTROLLER_LEASE, self._namespace)).spec
        except ApiError as failure:
            if failure.code in (403, 404):
                return False
            raise
        if not lease.holder_identity:
            return False
        now = self._clock.monotonic()
        if lease.renew_time != self._renewed[0]:
            self._renewed = (lease.renew_time, now)
        return now - self._renewed[1] < LOOK_EVERY

    def _choose(self, labeller: str) -> None:
        """Change the scope; from all to the label only once no claim is missed."""
        self._labeller = labeller
        if not labeller and self.by_label:
            self._watch_all()
        elif labeller and not self.by_label and all(_label(c) == self._scope.label for c in self._claims.cache):
            log.info("claims are watched by label node=%s labelled-by=%s", self._scope.node, labeller)
            self.by_label = True
            self._claims.rescope(labels=self._scope.selector)

    def _watch_all(self) -> None:
        if self._mode == "auto":
            log.warning("no policy or controller labels claims, all are watched node=%s", self._scope.node)
        self.by_label = False
        self._claims.rescope(keep=self._scope.has_claim)


def _label(claim: PersistentVolumeClaim) -> str:
    return claim.metadata.labels.get(names.NODE_LABEL, "")

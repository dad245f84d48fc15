"""Checks of the node label of claims: its policy, claims without it, and the policy that restricts agents."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, MUTATING_BINDINGS, MUTATING_POLICIES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request
from tonnage.tools.ops.cluster_snapshot import AGENT_POLICIES, VALIDATING_BINDINGS, VALIDATING_POLICIES, View
from tonnage.tools.ops.doctor.finding import Finding, fail, few, ok, warn
from tonnage.tools.ops.doctor.installation import APPLY, leader

_CHECK = "node-labels"
_PROBE_NODE = "doctor"


async def check(view: View, client: Client) -> list[Finding]:
    """All of this file; a claim is tried with dryRun, so that none is made. Raises: UnavailableError."""
    return [*await _labeller(view, client), *_labels(view), *_restriction(view)]


async def _labeller(view: View, client: Client) -> list[Finding]:
    served = f"{MUTATING_POLICIES.api_version}/{MUTATING_POLICIES.plural}" in view.served
    if {MUTATING_POLICIES.plural, MUTATING_BINDINGS.plural} & view.rejected.keys() or view.scopes() == {"all"}:
        return []
    kinds = (MUTATING_POLICIES, MUTATING_BINDINGS)
    lacking = [kind.kind for kind in kinds if f"{kind.plural}/{names.SCOPE_POLICY}" not in view.there]
    if served and not lacking:
        return await _try(view, client)
    then = _without_policy(view)
    if served:
        text = f"there is no {' and no '.join(lacking)} {names.SCOPE_POLICY}, which this cluster supports: {then}"
        return [fail(_CHECK, names.SCOPE_POLICY, text, APPLY)]
    if leader(view):
        return [ok(_CHECK, names.CONTROLLER_LEASE, f"Kubernetes {view.version} does not support such policies: {then}")]
    make = fail if "label" in view.scopes() else warn
    todo = "see controller: it can label claims without the policy"
    return [make(_CHECK, names.SCOPE_POLICY, f"claims get no label: {then}", todo)]


def _without_policy(view: View) -> str:
    if leader(view):
        return "the controller labels claims, with one more write for each"
    if "label" in view.scopes():
        return "agents watch by label, so no volume is created"
    return "agents watch all claims of the cluster"


async def _try(view: View, client: Client) -> list[Finding]:
    """Create a claim with dryRun, to see which label it gets."""
    if not view.ours:
        return []
    body = {
        **CLAIMS.head(),
        "metadata": {"generateName": "tonnage-doctor-", "annotations": {names.SELECTED_NODE: _PROBE_NODE}},
        "spec": {
            "accessModes": [names.READ_WRITE_ONCE],
            "storageClassName": view.ours[0].metadata.name,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    path = CLAIMS.path(view.namespace)
    answer = await client.transport.request(Request("POST", path, {"dryRun": "All"}, msgspec.json.encode(body)))
    found = msgspec.json.decode(answer.body)
    if answer.status >= 300:
        text = f"the policy exists, and was not tested: {str(found.get('message', ''))[:200]}"
        return [warn(_CHECK, names.SCOPE_POLICY, text, "run it with an administrator's kubeconfig")]
    label = (found["metadata"].get("labels") or {}).get(names.NODE_LABEL, "")
    if label != _PROBE_NODE:
        text = f"a claim of class {view.ours[0].metadata.name} got label {names.NODE_LABEL} {label or 'not'}"
        return [fail(_CHECK, names.SCOPE_POLICY, f"the policy exists and does not work: {text}", APPLY)]
    return [ok(_CHECK, names.SCOPE_POLICY, "claims are labeled in the write that sets selected-node (tested)")]


def _labels(view: View) -> Iterator[Finding]:
    wrong = []
    for claim in view.our_claims:
        meta = claim.metadata
        wanted = names.label_value(meta.annotations.get(names.SELECTED_NODE, ""))
        if not meta.deleting and not claim.spec.volume_name and meta.labels.get(names.NODE_LABEL, "") != wanted:
            wrong.append(meta.key)
    if wrong and view.scopes() != {"all"}:
        text = f"{len(wrong)} claims have selected-node without its label: agents that watch by label miss them"
        todo = "the controller labels them within seconds: see controller"
        yield fail(_CHECK, few(sorted(wrong)), text, todo)


def _restriction(view: View) -> Iterator[Finding]:
    kinds = (VALIDATING_POLICIES, VALIDATING_BINDINGS)
    served = f"{VALIDATING_POLICIES.api_version}/{VALIDATING_POLICIES.plural}" in view.served
    if {k.plural for k in kinds} & view.rejected.keys():
        return
    lacking = [f"{k.kind} {n}" for n in AGENT_POLICIES for k in kinds if f"{k.plural}/{n}" not in view.there]
    about = AGENT_POLICIES[0]
    if not served:
        text = (
            f"Kubernetes {view.version} does not support such policies: an agent's token may write other nodes' volumes"
        )
        yield warn("node-restriction", about, text, "use Kubernetes 1.30 or later (docs/security.md)")
    elif lacking:
        text = f"there is no {' and no '.join(lacking)}: an agent's token may write other nodes' volumes"
        yield fail("node-restriction", about, text, APPLY)
    else:
        yield ok("node-restriction", about, "agents can write only their own node's objects")

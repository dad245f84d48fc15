"""The index of roles and bindings says the same as the stored objects, after any changes."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from tonnage_box.apiserver.access.role_index import RoleIndex
from tonnage_box.apiserver.request.user import ApiUser, Attributes
from tonnage_box.apiserver.storage.store import ObjectKey, Store

GROUP = "rbac.authorization.k8s.io"
NAMES, SPACES, USERS = ("a", "b"), ("n", "m"), ("u", "v")
changes = st.tuples(
    st.sampled_from(["roles", "clusterroles", "rolebindings", "clusterrolebindings"]),
    st.sampled_from(SPACES),
    st.sampled_from(NAMES),
    st.sampled_from(["get", "list", ""]),  # "": deleted
    st.sampled_from(USERS),
    st.sampled_from(["Role", "ClusterRole"]),
)


def _object(plural: str, name: str, word: str, user: str, kind: str) -> dict[str, Any]:
    meta = {"metadata": {"name": name}}
    if "bindings" not in plural:
        return meta | {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": [word]}]}
    kind = "ClusterRole" if plural.startswith("cluster") else kind
    ref = {"kind": kind, "name": "a" if word == "get" else "b"}
    return meta | {"roleRef": ref, "subjects": [{"kind": "User", "name": user}]}


def _allowed(store: Store, user: str, asked: Attributes) -> bool:
    """By the stored objects alone."""
    bindings = store.records(f"{GROUP}/clusterrolebindings") + store.records(f"{GROUP}/rolebindings", asked.namespace)
    for record in bindings:
        binding = record.decode()
        if not any(subject["name"] == user for subject in binding["subjects"]):
            continue
        ref, own = binding["roleRef"], record.key.namespace if binding["roleRef"]["kind"] == "Role" else ""
        role = store.get(ObjectKey(f"{GROUP}/{'roles' if own else 'clusterroles'}", own, ref["name"]))
        if role is not None and asked.verb in role.decode()["rules"][0]["verbs"]:
            return True
    return False


@examples(60, deadline=None)
@given(st.lists(changes, max_size=25), st.integers(0, 25))
def test_any_changes(done: list[Any], begin: int) -> None:
    asyncio.run(_run(done, begin))


async def _run(done: list[Any], begin: int) -> None:
    store = Store(lambda collection, obj: {})
    policy = RoleIndex(store)
    for index, (plural, space, name, word, user, kind) in enumerate([*done, ("roles", "n", "a", "", "u", "Role")]):
        if index == min(begin, len(done)):
            policy.start()
        key = ObjectKey(f"{GROUP}/{plural}", "" if plural.startswith("cluster") else space, name)
        there = store.get(key)
        if word:
            obj = _object(plural, name, word, user, kind)
            await store.put(key, obj, there.revision if there else 0)
        elif there is not None:
            await store.remove(key, there.decode(), there.revision)
    for user in USERS:
        for space in SPACES:
            for verb in ("get", "list", "delete"):
                asked = Attributes(verb, "", "pods", namespace=space)
                found = policy.allowing(ApiUser(user), asked)
                assert (found is not None) == _allowed(store, user, asked)

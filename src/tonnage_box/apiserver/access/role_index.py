"""Index of roles and bindings, updated with each change of the store: a check takes microseconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.access.rule import Obj, Rule
from tonnage_box.apiserver.request.user import ApiUser, Attributes, account_name
from tonnage_box.apiserver.storage.store import ObjectKey, Store, StoredObject, StoreEvent

_ROLE_KINDS = {kinds.ROLES.key: "Role", kinds.CLUSTER_ROLES.key: "ClusterRole"}
_BINDINGS = frozenset({kinds.ROLE_BINDINGS.key, kinds.CLUSTER_ROLE_BINDINGS.key})
RoleKey = tuple[str, str, str]
"""Kind, namespace ("" of a ClusterRole) and name."""


@dataclass(frozen=True)
class RoleGrant:
    """A binding: its object's name and namespace ("": of the whole cluster), role and subjects as words."""

    kind: str
    namespace: str
    name: str
    role: RoleKey
    subjects: frozenset[str]

    def reason(self, user: ApiUser) -> str:
        """Why it allows, as Kubernetes writes it."""
        where = f"{self.name}/{self.namespace}" if self.namespace else self.name
        subject = next(word for word in _words(user) if word in self.subjects)
        kind, _, name = subject.partition(" ")
        return f'RBAC: allowed by {self.kind} "{where}" of {self.role[0]} "{self.role[2]}" to {kind} "{name}"'


class RoleIndex:
    """All roles and bindings of a store. start() reads those that are there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rules: dict[RoleKey, tuple[Rule, ...]] = {}
        # Subject -> namespace of the binding -> its name -> binding.
        self._by_subject: dict[str, dict[str, dict[str, RoleGrant]]] = {}
        self._bindings: dict[tuple[str, str, str], RoleGrant] = {}

    def start(self) -> None:
        """Read everything and follow all changes from now on."""
        for collection in (*_ROLE_KINDS, *_BINDINGS):
            for record in self._store.records(collection):
                self._put(record)
        self._store.listen(self._changed)

    def _changed(self, event: StoreEvent) -> None:
        collection = event.record.key.collection
        if collection not in _ROLE_KINDS and collection not in _BINDINGS:
            return
        if event.type != "DELETED":
            self._put(event.record)
        elif collection in _ROLE_KINDS:
            self._rules.pop(_role_key(event.record), None)
        else:
            self._unbind(event.record)

    def _put(self, record: StoredObject) -> None:
        obj = record.decode()
        if record.key.collection in _ROLE_KINDS:
            self._rules[_role_key(record)] = tuple(map(Rule.read, obj.get("rules") or ()))
            return
        self._unbind(record)
        binding = _binding(record, obj)
        self._bindings[record.key] = binding
        for subject in binding.subjects:
            spaces = self._by_subject.setdefault(subject, {})
            spaces.setdefault(binding.namespace, {})[binding.name] = binding

    def _unbind(self, record: StoredObject) -> None:
        binding = self._bindings.pop(record.key, None)
        if binding is None:
            return
        for subject in binding.subjects:
            spaces = self._by_subject[subject]
            del spaces[binding.namespace][binding.name]
            if not spaces[binding.namespace]:
                del spaces[binding.namespace]
            if not spaces:
                del self._by_subject[subject]

    def allowing(self, user: ApiUser, asked: Attributes) -> RoleGrant | None:
        """The first binding that allows the action."""
        for binding in self._of(user, "" if asked.path else asked.namespace):
            if any(rule.allows(asked) for rule in self._rules.get(binding.role, ())):
                return binding
        return None

    def missing_roles(self, user: ApiUser, namespace: str) -> list[tuple[str, str]]:
        """Kind and name of roles that bindings of the user name and that do not exist."""
        roles = dict.fromkeys(binding.role for binding in self._of(user, namespace))
        return [(kind, name) for kind, space, name in roles if (kind, space, name) not in self._rules]

    def rules_of(self, user: ApiUser, namespace: str) -> list[Rule]:
        """All rules that hold for the user in a namespace, or in the cluster alone ("")."""
        return [rule for binding in self._of(user, namespace) for rule in self._rules.get(binding.role, ())]

    def role_rules(self, kind: str, name: str, namespace: str) -> list[Obj] | None:
        """Rules of a Role or ClusterRole as they are stored, None when there is none."""
        collection = kinds.ROLES.key if kind == "Role" else kinds.CLUSTER_ROLES.key
        record = self._store.get(ObjectKey(collection, namespace if kind == "Role" else "", name))
        return None if record is None else record.decode().get("rules") or []

    def _of(self, user: ApiUser, namespace: str) -> Iterator[RoleGrant]:
        found = [spaces for word in _words(user) if (spaces := self._by_subject.get(word)) is not None]
        for where in ("", namespace) if namespace else ("",):
            for spaces in found:
                yield from spaces.get(where, {}).values()


def _words(user: ApiUser) -> Iterator[str]:
    yield f"User {user.name}"
    for group in user.groups:
        yield f"Group {group}"


def _role_key(record: StoredObject) -> RoleKey:
    return (_ROLE_KINDS[record.key.collection], record.key.namespace, record.key.name)


def _binding(record: StoredObject, obj: Obj) -> RoleGrant:
    _, namespace, name = record.key
    ref = obj.get("roleRef") or {}
    role = (ref.get("kind", ""), namespace if ref.get("kind") == "Role" else "", ref.get("name", ""))
    subjects = frozenset(_subject(subject, namespace) for subject in obj.get("subjects") or ())
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    return RoleGrant(kind, namespace, name, role, subjects)


def _subject(subject: Obj, namespace: str) -> str:
    """The subject as a word: a service account is the user of that name."""
    if subject.get("kind") == "ServiceAccount":
        return f"User {account_name(subject.get('namespace') or namespace, subject.get('name', ''))}"
    return f"{subject.get('kind')} {subject.get('name')}"

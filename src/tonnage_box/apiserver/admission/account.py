"""ServiceAccount admission: names a pod's account and mounts its token (plugin/pkg/admission/serviceaccount)."""

from __future__ import annotations

from collections.abc import Iterator

from tonnage.kubernetes.api import kinds, names
from tonnage_box.apiserver.request import errors
from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.storage.store import Obj

TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where clients in containers look for the token."""
_SECONDS = 3607
_MODE = 0o644
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX = 5


def of_pod(context: AdmissionContext, pod: Obj) -> None:
    """Name the account of a new pod, and mount its token. Raises: a 403 when there is no such account.

    `default` may be missing: its controller makes it, and the kubelet waits for it.
    """
    spec = pod["spec"]
    name = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    account = context.get(kinds.SERVICE_ACCOUNTS, name, context.namespace)
    if account is None and name != "default":
        why = f'error looking up service account {context.namespace}/{name}: serviceaccount "{name}" not found'
        raise errors.forbidden(kinds.PODS, context.name, why)
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    if context.access.issues_tokens and _wants_token(spec, account or {}):
        _mount(pod)
    if account and account.get("imagePullSecrets") and not spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [{"name": secret.get("name", "")} for secret in account["imagePullSecrets"]]


def _wants_token(spec: Obj, account: Obj) -> bool:
    """The pod's own word comes first, then that of its account."""
    for part in (spec, account):
        if (wanted := part.get("automountServiceAccountToken")) is not None:
            return bool(wanted)
    return True


def _mount(pod: Obj) -> None:
    spec = pod["spec"]
    prefix = names.TOKEN_VOLUME
    volume = next((v["name"] for v in spec.get("volumes") or () if v["name"].startswith(prefix)), "")
    without = [c for c in _containers(spec) if not _is_taken(c)]
    if not without:
        return
    name = volume or prefix + _suffix(pod["metadata"]["uid"])
    for container in without:
        mount = {"name": name, "readOnly": True, "mountPath": TOKEN_PATH}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    if not volume:
        spec["volumes"] = [*(spec.get("volumes") or ()), {"name": name, "projected": _sources()}]


def _containers(spec: Obj) -> Iterator[Obj]:
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def _is_taken(container: Obj) -> bool:
    return any(mount.get("mountPath") == TOKEN_PATH for mount in container.get("volumeMounts") or ())


def _suffix(uid: str) -> str:
    """Letters of a generated name. The uid is random, and known here."""
    number = int(uid.replace("-", "")[-12:] or "0", 16)
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(_SUFFIX))


def _sources() -> Obj:
    """Token, certificate of the API server, and namespace, as Kubernetes projects them."""
    field = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    authority = {"name": names.ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    return {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": _SECONDS, "path": "token"}},
            {"configMap": authority},
            {"downwardAPI": {"items": [field]}},
        ],
        "defaultMode": _MODE,
    }

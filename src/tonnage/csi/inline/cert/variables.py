"""Variables in attributes, `$POD_NAME` and `${POD_NAME}`, by the rules of Go's os.Expand.

Used for names in certificates. Only the pod's own identity is known here, never anything of the node.
"""

from __future__ import annotations

import re

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.base import InlinePod
from tonnage.csi.inline.cert.field_error import quote
from tonnage.kubernetes.api.pods import Pod

KNOWN = ("POD_NAME", "POD_NAMESPACE", "POD_UID", "SERVICE_ACCOUNT_NAME")
_VARIABLE = re.compile(r"\$(?:\{([^}]*)\}|([A-Za-z_][A-Za-z0-9_]*)|([*#$@!?\-0-9])|(\{))", re.ASCII)


def inline_pod(pod: Pod) -> InlinePod:
    """Return the pod as the kubelet describes it to a driver, with its addresses."""
    meta, account = pod.metadata, pod.spec.service_account_name or "default"
    addresses = tuple(address.ip for address in pod.status.pod_ips)
    return InlinePod(meta.namespace, meta.name, meta.uid, account, addresses=addresses)


def expand(text: str, pod: InlinePod) -> str:
    """Replace variables by values of the pod. Raises: InvalidError that names the unknown ones."""
    values = dict(zip(KNOWN, (pod.name, pod.namespace, pod.uid, pod.service_account), strict=True))
    unknown = []

    def value(match: re.Match[str]) -> str:
        name = next((group for group in match.groups()[:3] if group is not None), "")
        if not name:  # `${}` and an open `${` are bad syntax, which Go leaves out
            return ""
        if name not in values:
            unknown.append(name)
        return values.get(name, "")

    expanded = _VARIABLE.sub(value, text)
    if unknown:
        words = ", ".join(f"undefined variable {quote(name)}" for name in unknown)
        raise InvalidError(f"{words}, known variables: [{' '.join(KNOWN)}]")
    return expanded

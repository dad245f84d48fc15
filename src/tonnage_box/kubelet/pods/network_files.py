"""Names of a pod: its host name, and the files of /etc that name lookup reads (kubelet_pods.go, network/dns). Pure.

There is no DNS server of the cluster. So, as under a kubelet that knows none, `ClusterFirst` is as `Default`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tonnage.base.errors import HostError
from tonnage.host.encoding import encode
from tonnage.kubernetes.api.pods import HostAlias, Pod, PodDNSConfig
from tonnage_box.kubelet.containers.rootfs import ADDRESS

CLUSTER_DOMAIN = "cluster.local"
_LONGEST = 63
_LONGEST_FQDN = 64  # characters, which the kernel stores of a host name
_HOSTS = """# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


def hostname(pod: Pod) -> str:
    """What the pod's containers call themselves. Raises: HostError (a full name that is too long)."""
    short, full = _short(pod), _full(pod)
    if not (full and pod.spec.set_hostname_as_fqdn):
        return short
    if len(full) > _LONGEST_FQDN:
        raise HostError(
            f"spec.setHostnameAsFQDN: failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is "
            f"too long ({_LONGEST_FQDN} characters is the max, {len(full)} characters requested)"
        )
    return full


def _short(pod: Pod) -> str:
    wanted = pod.spec.hostname_override or pod.spec.hostname or pod.metadata.name
    return wanted[:_LONGEST].rstrip("-.")


def _full(pod: Pod) -> str:
    """The name with its domain, "" without one."""
    spec = pod.spec
    if not spec.subdomain or spec.hostname_override is not None:
        return ""
    return f"{_short(pod)}.{spec.subdomain}.{pod.metadata.namespace}.svc.{CLUSTER_DOMAIN}"


def files(pod: Pod, resolv_conf: str) -> dict[str, bytes]:
    """Files of /etc that each container of a pod gets. resolv_conf: the machine's. Raises: HostError, InvalidError."""
    names = "\t".join(name for name in (_full(pod), _short(pod)) if name)
    texts = {
        "hostname": f"{hostname(pod)}\n",
        "hosts": f"{_HOSTS}{ADDRESS}\t{names}\n{_aliases(pod.spec.host_aliases)}",
        "resolv.conf": _resolv_conf(pod, resolv_conf),
    }
    return {name: encode(text, f"/etc/{name}") for name, text in texts.items()}


def _aliases(aliases: Iterable[HostAlias]) -> str:
    lines = [f"{alias.ip}\t" + "\t".join(alias.hostnames) + "\n" for alias in aliases]
    return "".join(["\n# Entries added by HostAliases.\n", *lines]) if lines else ""


def _resolv_conf(pod: Pod, machines: str) -> str:
    added, is_alone = pod.spec.dns_config, pod.spec.dns_policy == "None"
    if added is None:
        return "" if is_alone else machines
    return _merged("" if is_alone else machines, added)


def _merged(text: str, added: PodDNSConfig) -> str:
    """The machine's settings and the pod's, as container runtimes write them; of options the pod's win."""
    servers: list[str] = []
    searches: list[str] = []
    options: dict[str, str] = {}
    for word, *values in filter(None, (line.split() for line in text.splitlines())):
        if word == "nameserver":
            servers += values[:1]
        elif word == "search":  # the last line counts
            searches = [value.rstrip(".") for value in values if value != "."]
        elif word == "options":
            options |= dict(value.partition(":")[::2] for value in values)
    options |= {option.name: option.value or "" for option in added.options}
    lines = {
        "search": _once([*searches, *added.searches]),
        "nameserver": _once([*servers, *added.nameservers]),
        "options": _shown(options),
    }
    searched = [f"search {' '.join(lines['search'])}"] if lines["search"] else []
    optional = [f"options {' '.join(lines['options'])}"] if lines["options"] else []
    return "".join(f"{line}\n" for line in (*searched, *(f"nameserver {s}" for s in lines["nameserver"]), *optional))


def _shown(options: Mapping[str, str]) -> list[str]:
    return [f"{name}:{value}" if value else name for name, value in options.items()]


def _once(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))

"""Names of a pod, and the files of /etc that name lookup reads."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tonnage.base.errors import HostError, InvalidError
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.kubelet.pods import network_files

MACHINES = "# made by hand\nnameserver 192.0.2.1\nsearch old\nsearch example.org. .\noptions ndots:1 rotate\n"


def _pod(name: str = "web-0", **spec: Any) -> Pod:
    return msgspec.convert({"metadata": {"name": name, "namespace": "shop"}, "spec": spec}, Pod)


@pytest.mark.parametrize(
    ("spec", "name", "line"),
    [
        ({}, "web-0", "web-0"),
        ({"hostname": "front"}, "front", "front"),
        ({"subdomain": "web"}, "web-0", "web-0.web.shop.svc.cluster.local\tweb-0"),
        (
            {"subdomain": "web", "setHostnameAsFQDN": True},
            "web-0.web.shop.svc.cluster.local",
            "web-0.web.shop.svc.cluster.local\tweb-0",
        ),
        ({"setHostnameAsFQDN": True}, "web-0", "web-0"),
        ({"hostname": "front", "subdomain": "web", "hostnameOverride": "db.example.org"}, "db.example.org",
         "db.example.org"),
    ],
)  # fmt: skip
def test_what_a_pod_calls_itself(spec: dict[str, Any], name: str, line: str) -> None:
    files = network_files.files(_pod(**spec), "")
    assert network_files.hostname(_pod(**spec)) == name
    assert files["hostname"].decode() == f"{name}\n"
    assert files["hosts"].decode().splitlines()[-1] == f"127.0.0.1\t{line}"


def test_a_long_name_is_cut_and_a_long_full_name_is_rejected() -> None:
    assert network_files.hostname(_pod("a" * 62 + "-b")) == "a" * 62
    with pytest.raises(HostError, match=r"setHostnameAsFQDN: .* is too long \(64 characters is the max, 67 characters"):
        network_files.hostname(_pod("a" * 40, subdomain="web", setHostnameAsFQDN=True))


def test_host_aliases_are_lines_of_the_hosts_file() -> None:
    aliases = [{"ip": "192.0.2.7", "hostnames": ["db", "db.example.org"]}, {"ip": "2001:db8::1"}]
    text = network_files.files(_pod(hostAliases=aliases), "")["hosts"].decode()
    assert text.startswith("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n")
    added = "\n# Entries added by HostAliases.\n192.0.2.7\tdb\tdb.example.org\n2001:db8::1\t\n"
    assert text.endswith(f"127.0.0.1\tweb-0\n{added}")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, MACHINES),
        ({"dnsPolicy": "ClusterFirst"}, MACHINES),
        (
            {
                "dnsConfig": {
                    "nameservers": ["192.0.2.9", "192.0.2.1"],
                    "searches": ["shop.local"],
                    "options": [{"name": "ndots", "value": "5"}, {"name": "edns0"}],
                }
            },
            "search example.org shop.local\nnameserver 192.0.2.1\nnameserver 192.0.2.9\noptions ndots:5 rotate edns0\n",
        ),
        ({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.9"]}}, "nameserver 192.0.2.9\n"),
        ({"dnsPolicy": "None"}, ""),
    ],
)
def test_name_lookup_is_as_the_machines_and_the_pods(spec: dict[str, Any], expected: str) -> None:
    assert network_files.files(_pod(**spec), MACHINES)["resolv.conf"].decode() == expected


def test_what_is_no_text_is_rejected_by_the_files_name() -> None:
    with pytest.raises(InvalidError, match="/etc/hosts is not valid Unicode"):
        network_files.files(_pod(hostAliases=[{"ip": "192.0.2.7", "hostnames": ["\ud800"]}]), "")

"""Configuration of `tonnage controller`, by its command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.controller.contexts import context

from tonnage.base.errors import InvalidError
from tonnage.base.observe.exporter import Address
from tonnage.controller.certificates.authority_folder import AuthorityFolder
from tonnage.controller.config import ControllerConfig, parse_certificate_issuers
from tonnage.kubernetes.api import names
from tonnage.tools.cli import replica
from tonnage.tools.cli.main import build_parser, main


def _configured(*arguments: str) -> ControllerConfig:
    return replica.configured(build_parser("controller").parse_args(["controller", *arguments]), ControllerConfig)


def test_in_a_pod_the_environment_says_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "tonnage-controller-1")
    monkeypatch.setenv("POD_NAMESPACE", "storage")
    config = _configured("--metrics", "0.0.0.0:9809")
    assert (config.identity, config.namespace) == ("tonnage-controller-1", "storage")
    assert config.drivers == {names.DRIVER: names.TOPOLOGY_NODE}
    assert config.metrics == Address("0.0.0.0", 9809)


def test_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POD_NAME", "POD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    config = _configured()
    assert config.identity
    assert (config.namespace, config.metrics) == (names.SYSTEM_NAMESPACE, None)
    config = _configured("--identity", "me", "--namespace", "there")
    assert (config.identity, config.namespace) == ("me", "there")


@pytest.mark.parametrize("mode", ["auto", "tiers", "exact"])
def test_how_room_is_published(mode: str) -> None:
    assert _configured("--capacity", mode).capacity == mode
    assert _configured().capacity == "auto"


def test_drivers_of_others_come_with_their_topology_key() -> None:
    config = _configured("--driver", "csi.example.com=topology.example.com/node")
    assert config.drivers["csi.example.com"] == "topology.example.com/node"
    assert names.DRIVER in config.drivers


def test_provisioners_of_flexvolumes_may_have_a_slash() -> None:
    config = _configured("--driver", f"tonnage.dev/flex-provisioner={names.TOPOLOGY_NODE}")
    assert config.drivers["tonnage.dev/flex-provisioner"] == names.TOPOLOGY_NODE


@pytest.mark.parametrize("text", ["csi.example.com", "csi.example.com=", "=key", "a b=key", "example.com/x=key"])
def test_a_driver_without_key_is_rejected(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["controller", "--driver", text]) == 2
    assert "want NAME=TOPOLOGY_KEY" in capsys.readouterr().err


def test_nodes_to_come() -> None:
    config = _configured(
        "--node-group-label", "eks.amazonaws.com/nodegroup",
        "--node-template", "pool=big:tonnage-scratch=100Gi,disks=4Ti/1Ti",
    )  # fmt: skip
    assert config.group_labels == ["eks.amazonaws.com/nodegroup"]
    (template,) = config.templates
    assert template.group == "pool=big"
    assert template.by_class == {"tonnage-scratch": (100 << 30, 100 << 30), "disks": (4 << 40, 1 << 40)}


@pytest.mark.parametrize(
    ("option", "text", "why"),
    [
        ("--node-group-label", "a b", "want a label's key"),
        ("--node-group-label", "x/y/z", "want a label's key"),
        ("--node-template", "pool=big", "want LABEL=VALUE:CLASS=SIZE"),
        ("--node-template", "pool:c=1Gi", "want LABEL=VALUE:CLASS=SIZE"),
        ("--node-template", "pool=:c=1Gi", "want LABEL=VALUE:CLASS=SIZE"),
        ("--node-template", "pool=big:c", "is not CLASS=SIZE"),
        ("--node-template", "pool=big:c=much", "much"),
    ],
)
def test_what_is_no_template_is_rejected(option: str, text: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["controller", option, text]) == 2
    assert why in capsys.readouterr().err


def test_all_provisioners_are_handled_unless_some_are_named() -> None:
    kube: Any = None
    assert context(kube, kube).handles("any.example.com")
    ours = context(kube, kube, provisioners=[names.DRIVER])
    assert ours.handles(names.DRIVER)
    assert not ours.handles("any.example.com")


def test_certificate_issuers() -> None:
    text = "internal=/issuers/internal,allow=dns:*.example.com,allow=ip:10.0.0.0/8,days=1,domain=example.org,is-ca=true"
    config = _configured("--certificate-issuer", text, "--certificate-issuer", "plain=/issuers/plain")
    internal, plain = config.certificate_issuers["internal"], config.certificate_issuers["plain"]
    assert internal.load == AuthorityFolder(Path("/issuers/internal"))
    assert internal.policy.allow == ("dns:*.example.com", "ip:10.0.0.0/8")
    assert (internal.policy.longest, internal.policy.cluster_domain, internal.policy.is_ca) == (
        86400,
        "example.org",
        True,
    )
    assert (plain.policy.longest, plain.policy.is_ca) == (90 * 86400, False)


@pytest.mark.parametrize(
    "text", ["", "a", "a=b", "A=/b", "a=/b,days=0", "a=/b,days=x", "a=/b,allow=x", "a=/b,other=1", "a=/b,is-ca=no"]
)
def test_certificate_issuers_that_are_wrong(text: str) -> None:
    with pytest.raises(InvalidError):
        parse_certificate_issuers([text])

"""The certificate that attributes mean."""

from __future__ import annotations

import pytest
from cryptography import x509
from tests.unit.csi.inline.cert.makers import UID, compatible, pod

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.attributes import COMPATIBLE
from tonnage.csi.inline.cert.authority import read_request
from tonnage.csi.inline.cert.keys import make_key
from tonnage.csi.inline.cert.wanted import difference, signing_request, wanted_certificate


def test_names_of_the_pod() -> None:
    attributes = compatible(common_name="$POD_NAME", organizations='"a,b",c', ip_sans="10.0.0.1, ::1", serialnumber="7")
    wanted = wanted_certificate(attributes, pod(), COMPATIBLE)
    assert wanted.subject.rfc4514_string() == "2.5.4.5=7,CN=my-csi-app-x,O=a\\,b+O=c"
    assert [str(name.value) for name in wanted.names] == [
        "my-service.sandbox.svc.cluster.local",
        "10.0.0.1",
        "::1",
        f"spiffe://cluster.local/ns/sandbox/sa/default/pod/{UID}",
    ]


def test_a_literal_subject_replaces_the_fields() -> None:
    attributes = compatible(literal_subject="CN=${POD_NAME},OU=x,DC=example,DC=com", common_name="other")
    wanted = wanted_certificate(attributes, pod(), COMPATIBLE)
    assert wanted.subject.rfc4514_string() == "CN=my-csi-app-x,OU=x,DC=example,DC=com"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"ip_sans": "x, 1.2.3.4, y"}, '"ip-sans": failed to parse IP address: ["x","y"]'),
        ({"uri_sans": "no uri"}, '"uri-sans": parse "no uri": invalid URI for request'),
        ({"dns_names": "a,,b"}, '"dns-names": "": want DNS names, parted by commas'),
        ({"dns_names": "$HOME"}, '"dns-names": undefined variable "HOME", known variables: [POD_NAME POD_NAMESPACE POD_UID SERVICE_ACCOUNT_NAME]'),
        ({"countries": "Wonderland"}, '"countries": "Wonderland": '),
        ({"common_name": "x" * 10_000}, '"common-name": "'),
        ({"literal_subject": "nonsense"}, '"literal-subject": "nonsense": '),
        ({"organizations": '"open'}, '"organizations": '),
    ],
)  # fmt: skip
def test_rejected(values: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidError) as raised:
        wanted_certificate(compatible(**values), pod(), COMPATIBLE)
    assert str(raised.value).startswith(text)


@pytest.mark.parametrize("algorithm", ["ECDSA", "Ed25519"])
def test_a_request_says_exactly_that(algorithm: str) -> None:
    wanted = wanted_certificate(compatible(common_name="$POD_NAME", countries="DE"), pod(), COMPATIBLE)
    asked = read_request(signing_request(wanted, make_key(algorithm, 256)))
    assert difference(asked, wanted) == ""
    alternatives = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert not alternatives.critical


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"common_name": "other"}, "another subject"),
        ({"dns_names": "kubernetes.default.svc"}, "other names"),
        ({"is_ca": "true"}, "is-ca"),
    ],
)
def test_differences(values: dict[str, str], text: str) -> None:
    asked = wanted_certificate(compatible(**values), pod(), COMPATIBLE)
    wanted = wanted_certificate(compatible(), pod(), COMPATIBLE)
    assert text in difference(read_request(signing_request(asked, make_key("ECDSA", 256))), wanted)

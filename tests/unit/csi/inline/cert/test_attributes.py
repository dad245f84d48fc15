"""Attributes are rejected with cert-manager's very texts."""

from __future__ import annotations

import pytest
from tests.unit.csi.inline.cert.makers import compatible, ours, pod

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.attributes import COMPATIBLE, KEYS, OURS, AttributeDialect, read_attributes
from tonnage.csi.inline.cert.keys import make_key
from tonnage.csi.inline.cert.wanted import from_settings, signing_request

P = "volumeAttributes.csi.cert-manager.io/"
REJECTED = [
    ({"issuer_name": ""}, f"{P}issuer-name: Required value: issuer-name is a required field"),
    ({"is_ca": "yes"}, f'{P}is-ca: Invalid value: "yes": may only accept values of "true" or "false"'),
    ({"reuse_private_key": "1"}, f'{P}reuse-private-key: Invalid value: "1": may only accept values of "true" or "false"'),
    ({"duration": "5"}, f'{P}duration: Invalid value: "5": must be a valid duration string: time: missing unit in duration "5"'),
    ({"duration": "1d"}, f'{P}duration: Invalid value: "1d": must be a valid duration string: time: unknown unit "d" in duration "1d"'),
    ({"renew_before": "x"}, f'{P}renew-before: Invalid value: "x": must be a valid duration string: time: invalid duration "x"'),
    ({"key_usages": "server auth, fly"}, f'{P}key-usages: Invalid value: "fly": not a valid key usage'),
    ({"key_algorithm": "dsa"}, f'{P}key-algorithm: Unsupported value: "dsa": supported values: "RSA", "ECDSA", "Ed25519"'),
    ({"key_encoding": "PKCS12"}, f'{P}key-encoding: Unsupported value: "PKCS12": supported values: "PKCS1", "PKCS8"'),
    ({"key_algorithm": "ecdsa", "key_encoding": "PKCS1"}, f'{P}key-encoding: Invalid value: "PKCS1": pkcs1 cannot be used with ecdsa. use pkcs8 or pkcs12 instead'),
    ({"key_algorithm": "Ed25519", "key_encoding": "PKCS1"}, f'{P}key-encoding: Invalid value: "PKCS1": pkcs1 cannot be used with ed25519. use pkcs8 or pkcs12 instead'),
    ({"key_size": "1024"}, f'{P}key-size: Invalid value: "1024": key size must be at least 2048 when using the RSA key algorithm'),
    ({"key_size": "16384"}, f'{P}key-size: Invalid value: "16384": key size must not exceed 8192 when using the RSA key algorithm'),
    ({"key_size": "big"}, f'{P}key-size: Invalid value: "big": strconv.Atoi: parsing "big": invalid syntax'),
    ({"key_algorithm": "ECDSA", "key_size": "200"}, f'{P}key-size: Unsupported value: "200": supported values: "256", "384", "521"'),
    ({"key_algorithm": "ed25519", "key_size": "256"}, f'{P}key-size: Invalid value: "256": size must be empty when using Ed25519 as the key algorithm'),
    ({"ca_file": "/a"}, f'[{P}ca-file: Invalid value: "/a": filename must not be an absolute path, {P}ca-file: Invalid value: "/a": filename must not include \'/\']'),
    ({"certificate_file": "..a"}, f'{P}certificate-file: Invalid value: "..a": filename must not start with \'..\''),
    ({"privatekey_file": "a/b"}, f'{P}privatekey-file: Invalid value: "a/b": filename must not include \'/\''),
    ({"ca_file": " a"}, f'{P}ca-file: Invalid value: " a": filename must not include leading or trailing spaces'),
    ({"ca_file": "tls.crt"}, f'[{P}ca-file: Duplicate value: "tls.crt", {P}certificate-file: Duplicate value: "tls.crt"]'),
    ({"pkcs12_enable": "true"}, f"{P}pkcs12-password: Required value: required attribute when PKCS12 KeyStore is enabled"),
    ({"pkcs12_enable": "false"}, f"{P}pkcs12-password: Required value: required attribute when PKCS12 KeyStore is enabled"),
    ({"pkcs12_enable": "yes", "pkcs12_password": "a"}, f'{P}pkcs12-enable: Unsupported value: "yes": supported values: "true", "false"'),
    ({"pkcs12_filename": "a"}, f'{P}pkcs12-filename: Invalid value: "a": cannot use attribute without "csi.cert-manager.io/pkcs12-enable" set to "true" or "false"'),
]  # fmt: skip


@pytest.mark.parametrize(("values", "text"), REJECTED)
def test_rejected(values: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidError) as raised:
        read_attributes(compatible(**values), COMPATIBLE)
    assert str(raised.value) == text


def test_a_password_is_never_in_a_rejection_or_a_representation() -> None:
    with pytest.raises(InvalidError) as raised:
        read_attributes(compatible(pkcs12_password="hunter2"), COMPATIBLE)
    assert "hunter2" not in str(raised.value)
    settings = read_attributes(compatible(pkcs12_enable="true", pkcs12_password="hunter2"), COMPATIBLE)
    assert settings.store.password == "hunter2"
    assert "hunter2" not in repr(settings)


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(InvalidError) as raised:
        read_attributes(compatible(duration="9" * 10_000), COMPATIBLE)
    assert len(str(raised.value)) < 500


def test_defaults_of_both_names() -> None:
    theirs = read_attributes(compatible(), COMPATIBLE)
    assert (theirs.algorithm, theirs.size, theirs.encoding, theirs.seconds) == ("RSA", 2048, "PKCS1", 2160 * 3600)
    mine = read_attributes(ours(), OURS)
    assert (mine.algorithm, mine.size, mine.encoding) == ("ECDSA", 256, "PKCS8")
    assert mine.usages == ("digital signature", "key encipherment")


def test_unknown_keys() -> None:
    with pytest.raises(InvalidError, match="unknown dnsnames; known are issuer-name"):
        read_attributes(ours(dnsnames="a"), OURS)
    read_attributes(compatible(disable_auto_renew="true"), COMPATIBLE)
    given = {**ours(), "example.com/team": "a", "csi.storage.k8s.io/ephemeral": "true"}
    assert read_attributes(given, OURS).annotations == {"example.com/team": "a"}
    assert OURS.accepts("example.com/team")
    assert not OURS.accepts("dnsnames")
    assert not OURS.accepts("cert.tonnage.dev/dns-names")


@pytest.mark.parametrize("text", ["0", "4294967296", "root", "-1"])
def test_groups(text: str) -> None:
    with pytest.raises(InvalidError, match="1 to 4294967295"):
        read_attributes(ours(fs_group=text), OURS)
    assert read_attributes(ours(fs_group="2000"), OURS).fs_group == 2000


def test_a_trust_store_needs_a_password_only() -> None:
    with pytest.raises(InvalidError, match="pkcs12-password: Required value"):
        read_attributes(ours(truststore_file="trust.p12"), OURS)
    read_attributes(ours(truststore_file="trust.p12", pkcs12_password="a"), OURS)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"wait": "no"}, 'may only accept values of "true" or "false"'),
        ({"after": "pod-ip"}, 'a pod has its address only after its volumes are mounted; set wait to "false"'),
        ({"after": "x"}, "want pod-ip, condition:TYPE"),
        ({"ip_sans": "$POD_IP"}, "$POD_IP needs after: pod-ip"),
        ({"wait": "false", "ip_sans": "10.0.0.1,${POD_IPS}"}, "$POD_IP needs after: pod-ip"),
        ({"wait": "false", "bundle_file": "pending"}, 'the name of another file, with wait "false"'),
    ],
)
def test_waiting(values: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidError) as raised:
        read_attributes(ours(**values), OURS)
    assert text in str(raised.value)


HOSTILE = (
    "x" * 10_000,
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    "a/../b",
    "\0",
    "a\nb",
    "${",
    "$(id)",
    "é" * 300,
    " ",
    "-1",
    "1e99",
    "serialNumber=é",
)


@pytest.mark.parametrize("dialect", [OURS, COMPATIBLE], ids=["ours", "cert-manager's"])
@pytest.mark.parametrize("key", KEYS)
def test_hostile_values_are_rejected_with_a_short_text_or_name_no_path(key: str, dialect: AttributeDialect) -> None:
    texts: list[str] = []
    for value in HOSTILE:
        given = ours() if dialect is OURS else compatible()
        try:
            settings = read_attributes({**given, f"{dialect.prefix}{key}": value}, dialect)
            wanted = from_settings(settings, pod())
            signing_request(wanted, make_key("ECDSA", 256))
        except InvalidError as error:
            texts.append(str(error))
            continue
        files = [settings.file(name) for name in KEYS if name.endswith("-file")] + [settings.store.file]
        assert not [name for name in files if "/" in name or "\0" in name or name in (".", "..")]
    assert not [text for text in texts if len(text) > 3000]

"""The volumeAttributes of a certificate: keys, defaults and rejections of cert-manager/csi-driver, and a few more.

Read by the agent and by the controller that checks what the agent asks for. Under `csi.cert-manager.io` every key has
that prefix; under our own driver name it has none, and a key that is not known is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.base import AttributeRule
from tonnage.csi.inline.cert import field_error
from tonnage.csi.inline.cert.duration import parse_duration
from tonnage.csi.inline.cert.gate import POD_IP, PodGate, parse_gates
from tonnage.csi.inline.cert.usage import is_usage
from tonnage.kubernetes.api.number import whole

CERT_MANAGER = "csi.cert-manager.io"
DRIVER = "cert.tonnage.dev"
PKCS12_PASSWORD = "pkcs12-password"  # a key's name
_RSA, _ECDSA, _ED25519 = "RSA", "ECDSA", "Ed25519"
_ENCODINGS = ("PKCS1", "PKCS8")
_CURVES = (256, 384, 521)
_RSA_LIMITS = (2048, 8192)
_PKCS12 = "pkcs12-enable", "pkcs12-filename", PKCS12_PASSWORD
_FILES = {"ca-file": "ca.crt", "certificate-file": "tls.crt", "privatekey-file": "tls.key"}
_OUR_FILES = ("bundle-file", "truststore-file")
_PLAIN = (
    "issuer-name", "issuer-kind", "issuer-group", "common-name", "literal-subject", "organizations",
    "organizationalunits", "countries", "provinces", "localities", "streetaddresses", "postalcodes", "serialnumber",
    "dns-names", "uri-sans", "ip-sans", "duration", "is-ca", "key-usages", "key-algorithm", "key-encoding", "key-size",
    "fs-group", "renew-before", "reuse-private-key",
)  # fmt: skip
KEYS = (*_PLAIN, *_FILES, *_PKCS12, *_OUR_FILES, "pkcs12-profile", "wait", "after")
PENDING = "pending"
"""Name of the file that a volume has until its certificate comes, with `wait: "false"`."""
_POD_IPS = re.compile(r"\$\{?POD_IPS?\b")
_PROFILES = ("modern", "legacy")


@dataclass(frozen=True)
class AttributeDialect:
    """A driver name with its spelling of the keys. strict: whether an unknown key of its own is rejected."""

    driver: str
    prefix: str
    algorithm: str
    strict: bool

    def rules(self) -> dict[str, AttributeRule]:
        """Return the rule of each key; values are checked together, as some depend on others."""
        return {self.prefix + key: AttributeRule(secret=key == PKCS12_PASSWORD) for key in KEYS}

    def accepts(self, key: str) -> bool:
        """Whether a key that has no rule is passed on: foreign prefixes are annotations of the request."""
        group, slash, _ = key.partition("/")
        return bool(slash) and not (self.strict and group == self.driver)


OURS = AttributeDialect(DRIVER, "", _ECDSA, strict=True)
COMPATIBLE = AttributeDialect(CERT_MANAGER, f"{CERT_MANAGER}/", _RSA, strict=False)
DIALECTS = {dialect.driver: dialect for dialect in (OURS, COMPATIBLE)}


@dataclass(frozen=True)
class KeyStore:
    """A PKCS #12 file: its name, and whether its algorithms are those of old Java. repr() hides the password."""

    file: str = ""
    password: str = field(default="", repr=False)
    legacy: bool = False


@dataclass(frozen=True)
class CertificateSettings:
    """The checked attributes, with defaults.

    values: by the keys without prefix. seconds: of the certificate's life. renew_before: seconds before its end, None
    for a third of its life. fs_group: of the files, None for the pod's own. waits: whether the pod starts only with
    its certificate. after: what to wait for before it is requested.
    """

    values: Mapping[str, str] = field(repr=False)
    annotations: Mapping[str, str]
    seconds: float
    usages: tuple[str, ...]
    is_ca: bool
    algorithm: str
    size: int
    encoding: str
    store: KeyStore
    renew_before: float | None = None
    reuse_key: bool = False
    fs_group: int | None = None
    waits: bool = True
    after: tuple[PodGate, ...] = ()

    @property
    def issuer(self) -> str:
        """The issuer's name."""
        return self.values["issuer-name"]

    def file(self, key: str) -> str:
        """Return the name of a file by its attribute, "" for none."""
        return self.values.get(key, "")


def read_attributes(attributes: Mapping[str, str], dialect: AttributeDialect) -> CertificateSettings:
    """Check the attributes of a volume and add the defaults. Raises: InvalidError with all that is wrong."""
    values = _defaults(_own(attributes, dialect), dialect)
    if errors := list(_errors(values, dialect.prefix)):
        raise InvalidError(field_error.aggregate(errors))
    enabled = values.get("pkcs12-enable") == "true"
    return CertificateSettings(
        values=values,
        annotations={key: attributes[key] for key in sorted(attributes) if _is_foreign(key)},
        seconds=parse_duration(values["duration"]),
        usages=tuple(usage.strip() for usage in values["key-usages"].split(",")),
        is_ca=values["is-ca"] == "true",
        algorithm=values["key-algorithm"],
        size=int(values.get("key-size") or 0),
        encoding=values["key-encoding"],
        store=KeyStore(
            values.get("pkcs12-filename", "") if enabled else "",
            values.get(PKCS12_PASSWORD, ""),
            values.get("pkcs12-profile") == "legacy",
        ),
        renew_before=parse_duration(values["renew-before"]) if values.get("renew-before") else None,
        reuse_key=values.get("reuse-private-key") == "true",
        fs_group=int(values["fs-group"]) if values.get("fs-group") else None,
        waits=values.get("wait") != "false",
        after=parse_gates(values.get("after", "")),
    )


def _own(attributes: Mapping[str, str], dialect: AttributeDialect) -> dict[str, str]:
    """Return the attributes of certificates by their keys without prefix."""
    named = {key.removeprefix(dialect.prefix): value for key, value in attributes.items() if _has(key, dialect)}
    if unknown := sorted(key for key in named if key not in KEYS and dialect.strict):
        raise InvalidError(f"volumeAttributes: unknown {', '.join(unknown)[:200]}; known are {', '.join(KEYS)}")
    return named


def _has(key: str, dialect: AttributeDialect) -> bool:
    return key.startswith(dialect.prefix) if dialect.prefix else "/" not in key or key.startswith(f"{dialect.driver}/")


def _is_foreign(key: str) -> bool:
    return "/" in key and key.partition("/")[0] not in (CERT_MANAGER, DRIVER, "csi.storage.k8s.io")


def _defaults(values: Mapping[str, str], dialect: AttributeDialect) -> dict[str, str]:
    algorithm = values.get("key-algorithm") or dialect.algorithm
    known = {word.lower(): word for word in (_RSA, _ECDSA, _ED25519)}
    algorithm = known.get(algorithm.lower(), algorithm)
    found = {
        "issuer-kind": "Issuer",
        "issuer-group": "cert-manager.io",
        "duration": "2160h",
        "is-ca": "false",
        "key-usages": "digital signature,key encipherment",
        "key-encoding": "PKCS1" if algorithm == _RSA else "PKCS8",
        "key-size": {_RSA: "2048", _ECDSA: "256"}.get(algorithm, ""),
        **_FILES,
        **({"pkcs12-filename": "keystore.p12"} if values.get("pkcs12-enable") else {}),
    }
    given = {key: value for key, value in values.items() if value or key in _PKCS12}
    return found | given | {"key-algorithm": algorithm}


def _errors(values: Mapping[str, str], prefix: str) -> Iterator[str]:
    if not values.get("issuer-name"):
        yield field_error.required(f"{prefix}issuer-name", "issuer-name is a required field")
    for key in ("is-ca", "duration", "key-usages", *_FILES, "pkcs12-filename", *_OUR_FILES, "renew-before"):
        yield from _CHECKS[key](f"{prefix}{key}", values.get(key, ""))
    for key in ("reuse-private-key", "fs-group", "pkcs12-profile", "wait", "after"):
        yield from _CHECKS[key](f"{prefix}{key}", values.get(key, ""))
    yield from _key_errors(values, prefix)
    yield from _pkcs12_errors(values, prefix)
    yield from _duplicates(values, prefix)
    yield from _waiting_errors(values, prefix)


def _boolean(key: str, value: str) -> Iterator[str]:
    if value not in ("", "true", "false"):
        yield field_error.invalid(key, value, 'may only accept values of "true" or "false"')


def _duration(key: str, value: str) -> Iterator[str]:
    try:
        parse_duration(value or "0")
    except InvalidError as error:
        yield field_error.invalid(key, value, f"must be a valid duration string: {error}")


def _usages(key: str, value: str) -> Iterator[str]:
    for usage in value.split(",") if value else ():
        if not is_usage(usage.strip()):
            yield field_error.invalid(key, usage.strip(), "not a valid key usage")


def _file_name(key: str, value: str) -> Iterator[str]:
    if value.startswith("/"):
        yield field_error.invalid(key, value, "filename must not be an absolute path")
    if value.startswith(".."):
        yield field_error.invalid(key, value, "filename must not start with '..'")
    if "/" in value:
        yield field_error.invalid(key, value, "filename must not include '/'")
    if len(value.encode("utf-8", "replace")) > 255:
        yield field_error.invalid(key, value, "filename must be no longer than 255 characters")
    if value != value.strip():
        yield field_error.invalid(key, value, "filename must not include leading or trailing spaces")
    if value == "." or "\0" in value:
        yield field_error.invalid(key, value, "filename must be the name of a file")


def _group(key: str, value: str) -> Iterator[str]:
    number = whole(value) if value else 1
    if number is None or not 1 <= number <= 4294967295:
        yield field_error.invalid(key, value, "must be a group id of 1 to 4294967295")


def _profile(key: str, value: str) -> Iterator[str]:
    if value and value not in _PROFILES:
        yield field_error.unsupported(key, value, _PROFILES)


def _gates(key: str, value: str) -> Iterator[str]:
    try:
        parse_gates(value)
    except InvalidError as error:
        yield field_error.invalid(key, value, str(error))


_CHECKS: Mapping[str, Callable[[str, str], Iterator[str]]] = {
    "is-ca": _boolean, "reuse-private-key": _boolean, "duration": _duration, "renew-before": _duration,
    "key-usages": _usages, "fs-group": _group, "pkcs12-profile": _profile, "pkcs12-filename": _file_name,
    "wait": _boolean, "after": _gates,
    **dict.fromkeys((*_FILES, *_OUR_FILES), _file_name),
}  # fmt: skip


def _key_errors(values: Mapping[str, str], prefix: str) -> Iterator[str]:
    algorithm, encoding, size = values["key-algorithm"], values["key-encoding"], values.get("key-size", "")
    sizes, encodings = f"{prefix}key-size", f"{prefix}key-encoding"
    if encoding not in _ENCODINGS:
        yield field_error.unsupported(encodings, encoding, _ENCODINGS)
    elif algorithm == _RSA:
        yield from _rsa_size(sizes, size)
    elif algorithm not in (_ECDSA, _ED25519):
        yield field_error.unsupported(f"{prefix}key-algorithm", algorithm, (_RSA, _ECDSA, _ED25519))
    elif encoding == "PKCS1":
        detail = f"pkcs1 cannot be used with {algorithm.lower()}. use pkcs8 or pkcs12 instead"
        yield field_error.invalid(encodings, encoding, detail)
    elif algorithm == _ED25519 and size:
        yield field_error.invalid(sizes, size, "size must be empty when using Ed25519 as the key algorithm")
    elif algorithm == _ECDSA and whole(size) is None:
        yield field_error.invalid(sizes, size, _not_a_number(size))
    elif algorithm == _ECDSA and whole(size) not in _CURVES:
        yield field_error.unsupported(sizes, size, [str(curve) for curve in _CURVES])


def _rsa_size(key: str, text: str) -> Iterator[str]:
    size, (least, most) = whole(text), _RSA_LIMITS
    if size is None:
        yield field_error.invalid(key, text, _not_a_number(text))
    elif size < least:
        yield field_error.invalid(key, text, f"key size must be at least {least} when using the RSA key algorithm")
    elif size > most:
        yield field_error.invalid(key, text, f"key size must not exceed {most} when using the RSA key algorithm")


def _not_a_number(text: str) -> str:
    return f"strconv.Atoi: parsing {field_error.quote(text)}: invalid syntax"


def _pkcs12_errors(values: Mapping[str, str], prefix: str) -> Iterator[str]:
    enable, name, password = (f"{prefix}{key}" for key in _PKCS12)
    if on := values.get("pkcs12-enable"):
        for key, full in (("pkcs12-filename", name), (PKCS12_PASSWORD, password)):
            if not values.get(key):
                yield field_error.required(full, "required attribute when PKCS12 KeyStore is enabled")
        if on not in ("true", "false"):
            yield field_error.unsupported(enable, on, ("true", "false"))
        return
    detail = f'cannot use attribute without "{enable}" set to "true" or "false"'
    if "pkcs12-filename" in values:
        yield field_error.invalid(name, values["pkcs12-filename"], detail)
    if "truststore-file" in values:
        if not values.get(PKCS12_PASSWORD):
            yield field_error.required(password, "required attribute when a truststore-file is asked for")
    elif PKCS12_PASSWORD in values:
        yield field_error.invalid(password, "(hidden)", detail)


def _waiting_errors(values: Mapping[str, str], prefix: str) -> Iterator[str]:
    after, waits = values.get("after", ""), values.get("wait") != "false"
    if POD_IP in after.split(",") and waits:
        detail = f'a pod has its address only after its volumes are mounted; set {prefix}wait to "false"'
        yield field_error.invalid(f"{prefix}after", after, detail)
    if POD_IP not in after.split(",") and _POD_IPS.search(values.get("ip-sans", "")):
        yield field_error.invalid(f"{prefix}ip-sans", values["ip-sans"], f"$POD_IP needs {prefix}after: {POD_IP}")
    for key in (*_FILES, "pkcs12-filename", *_OUR_FILES):
        if not waits and values.get(key) == PENDING:
            detail = 'the name of another file, with wait "false"'
            yield field_error.invalid(f"{prefix}{key}", PENDING, detail)


def _duplicates(values: Mapping[str, str], prefix: str) -> Iterator[str]:
    files = {key: values[key] for key in (*_FILES, "pkcs12-filename", *_OUR_FILES) if values.get(key)}
    for key in sorted(files):
        if list(files.values()).count(files[key]) > 1:
            yield field_error.duplicate(f"{prefix}{key}", files[key])

"""The one rule that gives a pod's certificate from its attributes: names, usages, life.

The agent asks for exactly this, and the controller signs nothing else. A pure function: no clock, no randomness.
"""

from __future__ import annotations

import csv
import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.base import InlinePod
from tonnage.csi.inline.cert.attributes import AttributeDialect, CertificateSettings, read_attributes
from tonnage.csi.inline.cert.field_error import quote
from tonnage.csi.inline.cert.keys import PrivateKey
from tonnage.csi.inline.cert.variables import expand

_SUBJECT = {
    "countries": NameOID.COUNTRY_NAME,
    "organizations": NameOID.ORGANIZATION_NAME,
    "organizationalunits": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "localities": NameOID.LOCALITY_NAME,
    "provinces": NameOID.STATE_OR_PROVINCE_NAME,
    "streetaddresses": NameOID.STREET_ADDRESS,
    "postalcodes": NameOID.POSTAL_CODE,
}
"""In the order in which Go writes them (pkix.Name)."""
_PRINTABLE = (NameOID.COUNTRY_NAME, NameOID.SERIAL_NUMBER)
_IS_PRINTABLE = re.compile(r"[A-Za-z0-9 '()+,\-./:=?]*").fullmatch


@dataclass(frozen=True)
class IssuerReference:
    """An issuer: as cert-manager names it."""

    name: str
    kind: str
    group: str


@dataclass(frozen=True)
class WantedCertificate:
    """What a pod's certificate says. seconds: of its life. names: DNS, addresses, URIs, in this order."""

    subject: x509.Name
    names: tuple[x509.GeneralName, ...]
    usages: tuple[str, ...]
    seconds: float
    is_ca: bool
    issuer: IssuerReference
    annotations: Mapping[str, str]


def wanted_certificate(attributes: Mapping[str, str], pod: InlinePod, dialect: AttributeDialect) -> WantedCertificate:
    """Return the certificate that these attributes mean for this pod. Raises: InvalidError."""
    return from_settings(read_attributes(attributes, dialect), pod)


def from_settings(settings: CertificateSettings, pod: InlinePod) -> WantedCertificate:
    """Return the certificate that checked attributes mean for this pod. Raises: InvalidError."""
    values = settings.values
    return WantedCertificate(
        _subject(values, pod),
        tuple(_names(values, pod)),
        settings.usages,
        settings.seconds,
        settings.is_ca,
        reference_of(settings),
        settings.annotations,
    )


def reference_of(settings: CertificateSettings) -> IssuerReference:
    """Return the issuer that attributes name."""
    return IssuerReference(*(settings.values[f"issuer-{word}"] for word in ("name", "kind", "group")))


def signing_request(wanted: WantedCertificate, key: PrivateKey) -> bytes:
    """Return the PKCS #10 request as PEM. Raises: InvalidError."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(wanted.subject)
    if wanted.names:
        names = x509.SubjectAlternativeName(wanted.names)
        builder = builder.add_extension(names, critical=not wanted.subject.rdns)
    if wanted.is_ca:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, digest).public_bytes(serialization.Encoding.PEM)


def difference(request: x509.CertificateSigningRequest, wanted: WantedCertificate) -> str:
    """Return in which part a request is not the wanted one, "" if it is."""
    known = {x509.SubjectAlternativeName.oid, x509.BasicConstraints.oid}
    if more := [extension.oid.dotted_string for extension in request.extensions if extension.oid not in known]:
        return f"the request has extensions {', '.join(more)[:120]}"
    if request.subject != wanted.subject:
        return "the request has another subject"
    if set(_alternatives(request)) != set(wanted.names):
        return "the request has other names"
    if _is_ca(request) != wanted.is_ca:
        return "the request is for another kind of certificate (is-ca)"
    return ""


def _alternatives(request: x509.CertificateSigningRequest) -> list[x509.GeneralName]:
    try:
        return list(request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _is_ca(request: x509.CertificateSigningRequest) -> bool:
    try:
        return request.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _subject(values: Mapping[str, str], pod: InlinePod) -> x509.Name:
    if literal := values.get("literal-subject"):
        text = _expand("literal-subject", literal, pod)
        try:
            subject = x509.Name.from_rfc4514_string(text)
        except ValueError as error:
            raise InvalidError(f'"literal-subject": {quote(text)}: {error}') from None
        for attribute in subject:
            _check_printable("literal-subject", attribute.oid, str(attribute.value))
        return subject
    parts = []
    for key, oid in _SUBJECT.items():
        if text := values.get(key, ""):
            parts.append([_attribute(key, oid, value) for value in _csv(key, _expand(key, text, pod))])
    if name := _expand("common-name", values.get("common-name", ""), pod):
        parts.append([_attribute("common-name", NameOID.COMMON_NAME, name)])
    if serial := values.get("serialnumber"):
        parts.append([_attribute("serialnumber", NameOID.SERIAL_NUMBER, serial)])
    return x509.Name([x509.RelativeDistinguishedName(dict.fromkeys(part)) for part in parts if part])


def _attribute(key: str, oid: x509.ObjectIdentifier, value: str) -> x509.NameAttribute[str]:
    _check_printable(key, oid, value)
    try:
        return x509.NameAttribute(oid, value)
    except ValueError as error:
        raise InvalidError(f'"{key}": {quote(value)}: {error}') from None


def _check_printable(key: str, oid: x509.ObjectIdentifier, value: str) -> None:
    if oid in _PRINTABLE and not _IS_PRINTABLE(value):
        raise InvalidError(f'"{key}": {quote(value)}: want letters, digits, spaces and any of \'()+,-./:=?')


def _csv(key: str, text: str) -> list[str]:
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as error:
        raise InvalidError(f'"{key}": {quote(text)}: {error}; quote values that hold a comma') from None
    return [value for row in rows for value in row]


def _names(values: Mapping[str, str], pod: InlinePod) -> Iterator[x509.GeneralName]:
    for name in _list(_expand("dns-names", values.get("dns-names", ""), pod)):
        yield _dns(name)
    yield from _addresses(values.get("ip-sans", ""), pod)
    yield from _uris(_list(_expand("uri-sans", values.get("uri-sans", ""), pod)))


def _dns(name: str) -> x509.DNSName:
    if not name or not name.isascii() or not name.isprintable() or " " in name or len(name) > 253:
        raise InvalidError(f'"dns-names": {quote(name)}: want DNS names, parted by commas')
    return x509.DNSName(name)


def _addresses(text: str, pod: InlinePod) -> list[x509.IPAddress]:
    found, bad = [], []
    own = {"POD_IP": pod.addresses[:1], "POD_IPS": pod.addresses}
    parts = [own.get(_plain(part)) or (part,) for part in _list(text)]
    for part in (address for addresses in parts for address in addresses):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(part)))
        except ValueError:
            bad.append(part)
    if bad:
        words = ",".join(map(quote, bad))
        raise InvalidError(f'"ip-sans": failed to parse IP address: [{words}]')
    return found


def _plain(text: str) -> str:
    """Return the name of a text that is one variable."""
    return text.removeprefix("$").removeprefix("{").removesuffix("}") if text.startswith("$") else ""


def _uris(texts: list[str]) -> list[x509.UniformResourceIdentifier]:
    if bad := [text for text in texts if not _is_uri(text)]:
        words = ", ".join(f"parse {quote(text)}: invalid URI for request" for text in bad)
        raise InvalidError(f'"uri-sans": {words}')
    return [x509.UniformResourceIdentifier(text) for text in texts]


def _is_uri(text: str) -> bool:
    try:
        split = urlsplit(text)
    except ValueError:
        return False
    return bool(split.scheme) and text.isascii() and text.isprintable() and " " not in text


def _expand(key: str, text: str, pod: InlinePod) -> str:
    try:
        return expand(text, pod)
    except InvalidError as error:
        raise InvalidError(f'"{key}": {error}') from None


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []

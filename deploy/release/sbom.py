"""Lists of what a wheel or an image has inside (SBOM), in the format SPDX 2.3.

They are written by spdx-tools, which also validates them. They are read without it: a release can be verified with
nothing but Python.
"""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import quote

from deploy.release.sums import digest
from packaging.requirements import Requirement

SUFFIX = ".spdx.json"
_DEBIAN = "var/lib/dpkg/status.d/"
_RELEASE = "usr/lib/os-release"
_NAMING = re.compile(rf"^{_DEBIAN}|^{_RELEASE}$|\.dist-info/METADATA$")
_ENVIRONMENT = {"python_version": "3.11", "python_full_version": "3.11.0", "extra": ""}
"""Of the oldest Python, which needs most: the list does not depend on the one that builds."""


@dataclass(frozen=True, order=True)
class Component:
    """A package of Debian or a Python distribution. purl: package URL. license: an SPDX expression, "" if unknown."""

    name: str
    version: str
    purl: str
    license: str = ""


def is_listed(file: Path) -> bool:
    """Whether a file of a release has such a list."""
    return file.name.endswith((".whl", ".tar"))


def components(file: Path) -> list[Component]:
    """What an image has; or the distribution of a wheel and what it needs. Raises PackageNotFoundError for a wheel."""
    return list(_of_wheel(file)) if file.suffix == ".whl" else sorted(of_image(file))


def names(file: Path) -> set[str]:
    """The names that the list of a wheel or an image must have; read from that file alone."""
    if file.suffix != ".whl":
        return {component.name for component in of_image(file)}
    fields = _wheel_fields(file)
    return {_plain(fields["Name"]), *(_plain(one.name) for one in _needs(fields.get_all("Requires-Dist") or ()))}


def listed(spdx: Path) -> set[str]:
    """The names in a list."""
    return {package["name"] for package in json.loads(spdx.read_text())["packages"]}


def write(file: Path, version: str, time: int) -> Path:
    """Write FILE.spdx.json of a wheel or an image. time: seconds since 1970. Needs spdx-tools."""
    from deploy.release.spdx import document, save

    sha256 = digest(file)
    target = file.with_name(file.name + SUFFIX)
    save(document(file.name, version, sha256, components(file), datetime.fromtimestamp(time, UTC)), target)
    return target


def of_image(archive: Path) -> Iterator[Component]:
    """Packages of Debian and Python distributions of an image, from what each left in it."""
    found = dict(_texts(archive))
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', found.pop(_RELEASE, ""), re.MULTILINE))
    for path, text in found.items():
        fields = _fields(text)
        yield _debian(fields, system) if path.startswith(_DEBIAN) else _python(fields)


def _texts(archive: Path) -> Iterator[tuple[str, str]]:
    """Path and text of the files of an image that name what it has."""
    with tarfile.open(archive) as outer:
        manifest = outer.extractfile("manifest.json")
        assert manifest is not None
        for name in json.load(manifest)[0]["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(name)) as layer:
                for member in layer:
                    file = layer.extractfile(member) if member.isreg() and _NAMING.search(member.name) else None
                    if file is not None:
                        yield member.name, file.read().decode()


def _debian(fields: Message, system: Mapping[str, str]) -> Component:
    """Its package URL has the name of its source, too: faults are listed by that."""
    name, version, source = fields["Package"], fields["Version"], fields.get("Source", "").partition(" ")[0]
    qualifiers = f"arch={fields['Architecture']}&distro={system.get('ID')}-{system.get('VERSION_ID')}"
    upstream = f"&upstream={quote(source)}" if source else ""
    return Component(name, version, f"pkg:deb/debian/{quote(name)}@{quote(version)}?{qualifiers}{upstream}")


def _python(fields: Message) -> Component:
    name, version = _plain(fields["Name"]), fields["Version"]
    return Component(name, version, f"pkg:pypi/{name}@{quote(version)}", fields.get("License-Expression", ""))


def _of_wheel(file: Path) -> Iterator[Component]:
    """The distribution, and all that is installed with it, in the versions of this environment."""
    fields = _wheel_fields(file)
    yield (itself := _python(fields))
    found: dict[str, Component] = {}
    todo = list(_needs(fields.get_all("Requires-Dist") or ()))
    while todo:
        needed = todo.pop()
        installed = distribution(needed.name)
        component = _python(_fields(installed.read_text("METADATA") or ""))
        if pinned := [one.version for one in needed.specifier if one.operator == "=="]:  # tonnage, by tonnage-box
            component = replace(component, version=pinned[0], purl=f"pkg:pypi/{component.name}@{pinned[0]}")
        if component.name not in found and component.name != itself.name:
            found[component.name] = component
            todo += _needs(installed.requires or ())
    yield from sorted(found.values())


def _wheel_fields(file: Path) -> Message:
    with zipfile.ZipFile(file) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return _fields(wheel.read(name).decode())


def _fields(text: str) -> Message:
    return HeaderParser().parsestr(text, headersonly=True)


def _needs(texts: Iterable[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, texts):
        if requirement.marker is None or requirement.marker.evaluate(_ENVIRONMENT):
            yield requirement


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

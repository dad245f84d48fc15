"""Regenerate the numbers of the fields of the built-in kinds in Kubernetes' protobuf encoding.

    python scripts/gen_protobuf.py k8s.io/api k8s.io/apimachinery

The arguments are the folders of the two Go modules. Run it after a struct or field was added to the schemas: it writes
a line for each struct into `numbers.txt` of its group's folder, with the number of each field. A field that JSON shows
one level higher has the numbers on its way. A new group starts with an empty `numbers.txt`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tonnage_box.apiserver.protobuf.messages import ALIASES, NUMBERS, UNNUMBERED
from tonnage_box.apiserver.schema import schemas

_HEAD = "# Numbers of protobuf fields, from Kubernetes' generated.proto files. Made by scripts/gen_protobuf.py.\n"
_MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.S | re.M)
_FIELD = re.compile(r"^\s*(?:optional|repeated|map<\w+, *[.\w]+>)\s+(?:([.\w]+)\s+)?(\w+) = (\d+);", re.M)
_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.S | re.M)
_MEMBER = re.compile(r"^\s*(?:(\w+)\s+)?([*\[\]\w.]+)\s*`(.*)`", re.M)


class Modules:
    """The two Go modules: messages of generated.proto with the JSON names that the Go types have."""

    def __init__(self, api: Path, machinery: Path) -> None:
        self._api, self._machinery = api, machinery
        self._messages: dict[str, dict[str, list[tuple[str, str, int]]]] = {}

    def _folder(self, package: str) -> Path:
        group, version = package.split(".")
        return self._machinery / "pkg/apis/meta/v1" if group == "meta" else self._api / group / version

    def _of(self, package: str) -> dict[str, list[tuple[str, str, int]]]:
        """Message -> JSON name ("" for a struct inline), type and number of each field."""
        if package not in self._messages:
            folder = self._folder(package)
            names = dict(_json_names(folder))
            text = re.sub(r"//.*", "", (folder / "generated.proto").read_text())
            self._messages[package] = {
                message: [
                    (names.get((message, name), name), kind, int(number))
                    for kind, name, number in _FIELD.findall(fields)
                ]
                for message, fields in _MESSAGE.findall(text)
            }
        return self._messages[package]

    def numbers(self, name: str) -> dict[str, str]:
        """JSON name of each field of a struct -> its number, or the numbers on the way to it."""
        package, _, message = name.rpartition(".")
        found: dict[str, str] = {}
        for json, kind, number in self._of(package)[message]:
            if json:
                found[json] = str(number)
            else:
                inner = self.numbers(_full(kind, package))
                found |= {deep: f"{number}.{way}" for deep, way in inner.items()}
        return found


def _full(kind: str, package: str) -> str:
    if not kind.startswith("."):
        return f"{package}.{kind}"
    return ".".join(kind.split(".")[-3:])


def _json_names(folder: Path) -> Iterator[tuple[tuple[str, str], str]]:
    for file in sorted(folder.glob("*.go")):
        if file.name.startswith(("zz_", "generated")) or file.name.endswith("_test.go"):
            continue
        for struct, body in _STRUCT.findall(file.read_text()):
            for own, kind, tags in _MEMBER.findall(body):
                json, wire = re.search(r'json:"([^",]*)', tags), re.search(r"protobuf:.*?name=(\w+)", tags)
                numbered = re.search(r'protobuf:"\w+,\d+,\w+"', tags)
                if json and wire:
                    yield (struct, wire[1]), json[1]
                elif json and numbered:
                    own = own or kind.rpartition(".")[2].lstrip("*")
                    yield (struct, own[0].lower() + own[1:]), json[1]


def table(modules: Modules, names: Iterable[str]) -> Iterator[str]:
    """The lines of a group's structs. Raises KeyError for a field that Kubernetes does not have."""
    for name in sorted(names):
        known = modules.numbers(ALIASES.get(name, name))
        fields = schemas.struct(name).fields
        numbered = (f"{field}={known[field]}" for field in fields if field in known or field not in UNNUMBERED)
        yield " ".join((name, *numbered))


if __name__ == "__main__":
    both = Modules(Path(sys.argv[1]), Path(sys.argv[2]))
    for folder in sorted(file.parent for file in schemas.KINDS.glob(f"*/{NUMBERS}")):
        lines = table(both, schemas.texts(folder))
        (folder / NUMBERS).write_text(_HEAD + "\n".join(lines) + "\n", encoding="utf-8")

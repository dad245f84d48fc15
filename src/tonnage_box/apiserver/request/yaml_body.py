"""YAML request bodies, parsed with limits. Imported on first use: the parser takes 1 MiB of memory.

Small bodies are parsed in process, larger ones by this module run as a program: PyYAML takes about 10 us per event.
Events are read one by one, without recursion, so neither depth nor size can overflow the interpreter's or libyaml's
stack.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import resource
import sys
from typing import Any, NamedTuple

import msgspec
import yaml

MAX_DEPTH = 64
MAX_EVENTS = 100_000
MAX_REPEATED = 100
_SHOWN = 256
"""Characters of a key in a complaint."""
MAX_INSIDE = 4 << 10
"""Bytes of a body that is parsed in the event loop: some 20 ms at most."""
_SECONDS = 10
_WALL_SECONDS = 60.0
_MEMORY = 1 << 30
_TAG = "tag:yaml.org,2002:"
_MISSING = object()
_STARTS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """YAML as Kubernetes reads it: timestamps stay strings."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in pairs if tag != f"{_TAG}timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class Parsed(NamedTuple):
    """The value of a document and its duplicate keys, of which the last one wins.

    At most MAX_REPEATED duplicate keys are reported.
    """

    value: Any
    repeated: list[str]


async def read(body: bytes) -> bytes:
    """Parsed of a YAML body as JSON, by a program of its own. Raises: ValueError with what is wrong."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        async with asyncio.timeout(_WALL_SECONDS):
            answer, _ = await program.communicate(body)
    except TimeoutError:
        raise ValueError(f"it was not read in {_WALL_SECONDS:g} s; send JSON") from None
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    if program.returncode == 1:
        raise ValueError(answer.decode(errors="replace"))
    if program.returncode != 0:
        raise ValueError(f"it takes more than {_SECONDS} s or {_MEMORY >> 20} MiB to read; send JSON")
    return answer


def parse(body: bytes) -> Parsed:
    """One YAML document. Raises: ValueError with what is wrong."""
    try:
        builder = _Builder(_Loader(body))
        return Parsed(builder.value(), builder.repeated)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


class _Builder:
    """Builds a value from a document's events. events: how many were read. repeated: see Parsed."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.events = 0
        self.repeated: list[str] = []
        self._documents: list[Any] = []
        self._open: list[list[Any] | dict[str, Any]] = []
        self._keys: list[Any] = []
        """Of each that is open the key whose value comes next."""

    def value(self) -> Any:
        """The one document, None if there is none. Raises: ValueError and YAMLError."""
        while (event := self._next()) is not None:
            match event:
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._open.pop()
                    self._keys.pop()
                case yaml.AliasEvent():  # a few lines of aliases unfold to gigabytes
                    raise ValueError("aliases are not read; write them out or send JSON")
                case yaml.ScalarEvent():
                    self._add(event, self._begin(event))
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    value = self._begin(event)
                    self._add(event, value)
                    if len(self._open) >= MAX_DEPTH:
                        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
                    self._open.append(value)
                    self._keys.append(_MISSING)
        if len(self._documents) > 1:
            raise ValueError("it holds more than one document")
        return self._documents[0] if self._documents else None

    def _add(self, event: yaml.Event, value: Any) -> None:
        """Put a value where it belongs, or take it as the key of the next one."""
        if not self._open:
            self._documents.append(value)
        elif isinstance(parent := self._open[-1], list):
            parent.append(value)
        elif self._keys[-1] is not _MISSING:
            parent[self._keys[-1]] = value
            self._keys[-1] = _MISSING
        else:
            key = self._keys[-1] = _key(value)
            if key in parent and len(self.repeated) < MAX_REPEATED:  # in the words of Go's parser
                shown = json.dumps(key if len(key) <= _SHOWN else key[:_SHOWN] + "...", ensure_ascii=False)
                self.repeated.append(f"line {_line(event)}: key {shown} already set in map")

    def _next(self) -> Any:
        if not self._loader.check_event():
            return None
        self.events += 1
        if self.events > MAX_EVENTS:
            raise ValueError(
                f"it has more than {MAX_EVENTS} events (keys, values, and where lists and maps begin and end)"
            )
        return self._loader.get_event()

    def _begin(self, event: Any) -> Any:
        if isinstance(event, _STARTS):
            is_map = isinstance(event, yaml.MappingStartEvent)
            if event.tag not in (None, "!", _TAG + ("map" if is_map else "seq")):
                raise ValueError(f"the tag {event.tag[:60]!r} is not read")
            return {} if is_map else []
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        return _scalar(tag, event.value)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 0


def _scalar(tag: str, text: str) -> Any:
    match tag.removeprefix(_TAG):
        case "null":
            return None
        case "bool" if text.lower() in ("yes", "true", "on", "no", "false", "off"):
            return text.lower() in ("yes", "true", "on")
        case "int" | "float" if ":" in text or len(text) > 400:  # no numbers of base 60: 1:30 is text
            return text
        case "int":
            return _integer(text.replace("_", ""))
        case "float":
            return _float(text.replace("_", ""))
        case "str" | "merge" | "value":
            return text
    raise ValueError(f"the tag {tag[:60]!r} of {text[:60]!r} is not read")


def _integer(text: str) -> int | float:
    digits = text.lstrip("+-")
    is_octal = digits.startswith("0") and digits.isdigit()
    number = int(text, 8 if is_octal else 0)
    return number if -(2**63) <= number < 2**64 else _float(str(number))


def _float(text: str) -> float:
    number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(number):
        raise ValueError(f"{text[:60]!r} is no number of JSON")
    return number


def _key(value: Any) -> str:
    """A key of JSON: numbers and booleans become text, as Kubernetes does."""
    match value:
        case str():
            return value
        case list() | dict():
            raise ValueError("a key is a list or a map: want text")
        case None:
            raise ValueError("a key is null: want text")
    return json.dumps(value)


def main() -> int:
    """Parse the body on stdin: JSON on stdout and 0, or what is wrong and 1."""
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer, code = msgspec.json.encode(parse(sys.stdin.buffer.read())), 0
    except ValueError as error:
        answer, code = str(error)[:300].encode(errors="replace"), 1
    sys.stdout.buffer.write(answer)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Protobuf of every kind against Kubernetes' own: objects filled at random, marshaled there and read here, and back."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.protobuf import envelope
from tonnage_box.apiserver.schema import decode, schemas

pytestmark = [pytest.mark.real, pytest.mark.programs]
SAMPLES = 25
_MORE = [("v1", "Binding"), ("policy/v1", "Eviction"), ("v1", "DeleteOptions"), ("autoscaling/v1", "Scale")]
_MORE += [("authentication.k8s.io/v1", "TokenRequest"), ("v1", "Status")]
_OMITTED = frozenset(["action", "keyType", "operator", "pkixPublicKey", "proofOfPossession", "signerName"])
Sample = dict[str, Any]


def run(program: Path, samples: Iterable[Sample], *arguments: str) -> list[Sample]:
    text = "".join(json.dumps(sample) + "\n" for sample in samples)
    ended = subprocess.run([str(program), *arguments], input=text, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


def normal(sample: Sample) -> Sample:
    """The object of a sample as the server takes it from JSON."""
    obj: Sample = sample["json"]
    decode.normalize(schema_name(sample), obj)
    found: Sample = without_empty(obj)
    return found


def without_empty(obj: Any) -> Any:
    """The object without texts that Go's JSON leaves out when they are empty, although they must be given."""
    if isinstance(obj, list):
        return [without_empty(item) for item in obj]
    if not isinstance(obj, dict):
        return obj
    return {k: without_empty(v) for k, v in obj.items() if v != "" or k not in _OMITTED}


def schema_name(sample: Sample) -> str:
    group, _, version = sample["apiVersion"].rpartition("/")
    name = f"{group.partition('.')[0] or 'core'}.{version}.{sample['kind']}"
    return name if name in schemas.all_structs() else f"meta.v1.{sample['kind']}"


@pytest.mark.parametrize("seed", [1, 2])
def test_every_kind_is_read_and_written_as_kubernetes_does(go_program: Callable[[str], Path], seed: int) -> None:
    program = go_program("clientgo")
    kinds = {(row.kind.api_version, row.kind.kind) for row in RESOURCES.values() if row.is_encoded}
    kinds |= set(_MORE)
    asked = [{"apiVersion": version, "kind": kind} for version, kind in sorted(kinds)]
    samples = run(program, asked, f"-samples={SAMPLES}", f"-seed={seed}")
    assert len(samples) == SAMPLES * len(kinds)

    written = []
    for sample in samples:
        found = envelope.decode(b64decode(sample["protobuf"]), msgspec.json.decode)
        what = f"{sample['apiVersion']} {sample['kind']}"
        assert decode.normalize(schema_name(sample), found) == [], what
        assert without_empty(found) == normal(sample), what
        written.append(sample | {"protobuf": b64encode(envelope.encode(found)).decode()})

    again = run(program, written, "-read-samples")
    assert len(again) == len(samples)
    for before, after in zip(samples, again, strict=True):
        assert normal(after) == normal(before), f"{before['apiVersion']} {before['kind']}"

"""Bodies in YAML, which clients rarely send; apart from negotiate.py because the parser takes a MiB of memory."""

from __future__ import annotations

from typing import Any

import yaml

from tonnage.apiserver.errors import bad_request


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """YAML as Kubernetes reads it: what looks like a time stays text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in pairs if tag != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(body: bytes) -> Any:
    """The value of a YAML body. Raises 400."""
    try:
        for event in yaml.parse(body, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent):  # a few lines of aliases unfold to gigabytes
                raise bad_request("YAML with aliases is not read; write it out or send JSON")
        return yaml.load(body, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise bad_request(f"the body of the request is not valid YAML: {str(error)[:300]}") from None

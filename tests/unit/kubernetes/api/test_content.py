"""Content objects as the API server has them."""

from __future__ import annotations

from tonnage.kubernetes.api.kinds import CONTENTS


def test_its_spec_is_as_it_was_written() -> None:
    found = CONTENTS.decode(b'{"metadata": {"name": "c"}, "spec": {"image": {"reference": "a", "new": 1}}}')
    assert found.spec == {"image": {"reference": "a", "new": 1}}
    assert (CONTENTS.api_version, CONTENTS.namespaced) == ("tonnage.dev/v1", True)

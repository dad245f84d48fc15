"""The Go module of a release of Kubernetes: upstream's versions, and those of the release in place of folders."""

from __future__ import annotations

import re

import pytest
from cluster.programs import MODULES, version
from scripts.pin_kubernetes import go_mod, main

UPSTREAM = """module k8s.io/kubernetes

go 1.26.0

require (
\tgithub.com/example/tool v1.2.3
\tk8s.io/api v0.0.0
\tk8s.io/utils v0.0.0-20260101000000-0123456789ab
)

require (
\tgithub.com/example/other v0.1.0 // indirect
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
)
"""


def test_staging_modules_have_the_version_of_the_release() -> None:
    text = go_mod(UPSTREAM, "1.35.4")
    assert "\tk8s.io/api => k8s.io/api v0.35.4\n" in text
    for line in (
        "github.com/example/other v0.1.0",
        "github.com/example/tool v1.2.3",
        "k8s.io/api v0.35.4",
        "k8s.io/kubernetes v1.35.4",
        "k8s.io/utils v0.0.0-20260101000000-0123456789ab",
    ):
        assert f"\t{line} // indirect\n" in text
    assert "./staging" not in text


def test_a_newer_toolchain_is_named() -> None:
    assert "\ntoolchain go1.27.4\n" in go_mod(UPSTREAM, "1.38.0-beta.0", "go1.27.4")
    assert "toolchain" not in go_mod(UPSTREAM, "1.35.4")


@pytest.mark.parametrize("version", ["", "1.35", "v1.35.4", "../1.35.4", "2.0.0", "1.35.4 x"])
def test_what_is_no_version_is_rejected_and_makes_no_folder(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(MODULES.iterdir())
    assert main(version) == 2
    assert "not a version; give one as 1.35.4" in capsys.readouterr().err
    assert sorted(MODULES.iterdir()) == before


@pytest.mark.parametrize("folder", sorted(path.name for path in MODULES.glob("kubernetes-*")))
def test_each_folder_pins_its_release(folder: str) -> None:
    assert re.fullmatch(rf"v{re.escape(folder.removeprefix('kubernetes-'))}\.\d+\S*", version(MODULES / folder))

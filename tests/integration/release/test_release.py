"""The files of a release without images: made of a tag in a clone, the same bytes elsewhere, verified, and changed.

What is in images is tested with the image.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from deploy.release import build, provenance, sbom, signature, sums, tag, twice, verify
from deploy.release.__main__ import main, make
from deploy.release.tag import Rejected
from tests.integration.release.spdx import spdx_faults
from tests.layers import needs_layer
from tests.programs import need

pytestmark = [pytest.mark.real, needs_layer("release", "spdx_tools")]
ROOT = Path(__file__).parents[3]
VERSION = "7.8.9"
AUTHOR = ("-c", "user.name=A", "-c", "user.email=a@example.test")


def run(*command: str, cwd: Path = ROOT, given: bytes = b"") -> str:
    return subprocess.run(command, cwd=cwd, input=given, check=True, capture_output=True).stdout.decode()


def key(file: Path) -> str:
    """Make a private key; its public part."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file))
    return file.with_name(f"{file.name}.pub").read_text().strip()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree as it is, in a repository of its own, with a version, a tag of it and a key that may sign."""
    need("ssh-keygen")
    folder = tmp_path_factory.mktemp("tree")
    tree = folder / "tree"
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")[:-1]:
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    tag.set_version(tree, VERSION)
    with (tree / "CHANGELOG.md").open("a") as out:
        out.write(f"\n## {VERSION}\n")
    with (tree / signature.SIGNERS).open("a") as out:
        out.write(f'release@example.test namespaces="{signature.NAMESPACE}" {key(folder / "key")}\n')
    run("git", "init", "--quiet", cwd=tree)
    run("git", "add", "--all", cwd=tree)
    run("git", *AUTHOR, "commit", "--quiet", "--message=A release", cwd=tree)
    run("git", "tag", f"v{VERSION}", cwd=tree)
    return tree


@pytest.fixture(scope="module")
def release(root: Path) -> Path:
    """The folder of a release without images."""
    return make(VERSION, root.parent / "key", root.parent / "out", (), root=root)


@pytest.fixture
def copy(release: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(release, tmp_path / "copy")


def faults(folder: Path, root: Path) -> list[str]:
    return list(verify.faults(folder, root / signature.SIGNERS))


def test_files(release: Path) -> None:
    manifests = {f"tonnage-{VERSION}-kubernetes-{one}.yaml" for one in build.releases()}
    wheels = {f"{name}-{VERSION}-py3-none-any.whl" for name in ("tonnage", "tonnage_box")}
    assert {file.name for file in release.iterdir()} == {
        *manifests,
        *wheels,
        *(f"{wheel}.spdx.json" for wheel in wheels),
        *(f"{name}-{VERSION}.tar.gz" for name in ("tonnage", "tonnage_box")),
        f"tonnage-{VERSION}.tgz",
        "provenance.intoto.json",
        "SHA256SUMS",
        "SHA256SUMS.sig",
    }


def test_a_build_elsewhere_has_the_same_bytes(root: Path, release: Path, tmp_path: Path) -> None:
    """The only test that builds twice: another folder, user, day, umask and time zone, as far as the machine allows."""
    said: list[str] = []
    twice.build_elsewhere(root, tag.check(root, VERSION), tmp_path, (), said.append)
    rows = list(twice.rows(release, tmp_path))
    assert len(rows) == len(list(release.iterdir())) - 2
    assert [row.name for row in rows if not row.is_same] == []
    assert "umask 077" in said[0]


def test_a_file_that_differs_is_named(release: Path, copy: Path) -> None:
    (copy / f"tonnage-{VERSION}.tgz").write_bytes(b"other")
    (copy / f"tonnage-{VERSION}.tar.gz").unlink()
    different = [row.name for row in twice.rows(release, copy) if not row.is_same]
    assert different == [f"tonnage-{VERSION}.tar.gz", f"tonnage-{VERSION}.tgz"]


def test_the_source_distribution_makes_the_same_wheel(release: Path, tmp_path: Path) -> None:
    with tarfile.open(release / f"tonnage-{VERSION}.tar.gz") as source:
        source.extractall(tmp_path)
    environ = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(int((tmp_path / f"tonnage-{VERSION}/pyproject.toml").stat().st_mtime)),
    }
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path / f"tonnage-{VERSION}", env=environ, check=True, capture_output=True)
    wheel = f"tonnage-{VERSION}-py3-none-any.whl"
    assert (tmp_path / wheel).read_bytes() == (release / wheel).read_bytes()


def test_it_is_verified_by_the_command(root: Path, release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(release), "--signers", str(root / signature.SIGNERS)]) == 0
    assert "files are as release@example.test signed them" in capsys.readouterr().out


def test_it_is_verified_without_this_project(root: Path, release: Path) -> None:
    """As docs/release.md has it: sha256sum and ssh-keygen."""
    assert "FAILED" not in run("sha256sum", "--check", "SHA256SUMS", cwd=release)
    command = ("-I", "release@example.test", "-n", "tonnage-release", "-s", "SHA256SUMS.sig")
    said = run("ssh-keygen", "-Y", "verify", "-f", str(root / signature.SIGNERS), *command, cwd=release, given=(release / "SHA256SUMS").read_bytes())  # fmt: skip
    assert "Good" in said


def test_a_changed_byte_is_named(root: Path, copy: Path) -> None:
    """In any file but sums and signature."""
    names = sorted(sums.read(copy))
    assert len(names) > 8
    for name in names:
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        (fault,) = faults(copy, root)
        assert fault.startswith(f"{name}: changed: its SHA-256 is ")
        (copy / name).write_bytes(content)
    assert faults(copy, root) == []


@pytest.mark.parametrize("name", ["SHA256SUMS", "SHA256SUMS.sig"])
def test_changed_sums_or_signature(root: Path, copy: Path, name: str) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content.replace(content[100:101], b"x", 1))
    with pytest.raises(Rejected, match=r"SHA256SUMS\.sig: ssh-keygen: "):
        faults(copy, root)


def test_files_that_are_missing_or_added(root: Path, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "more.tar").touch()
    (copy / f"tonnage-{VERSION}.tgz").unlink()
    assert main(["verify", str(copy), "--signers", str(root / signature.SIGNERS)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "more.tar: not a file of this release; remove it",
        f"tonnage-{VERSION}.tgz: missing; download it again",
    ]


def test_a_folder_that_is_no_release(root: Path, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="no SHA256SUMS: not a release"):
        faults(tmp_path, root)


@pytest.mark.parametrize("name", ["SHA256SUMS.sig"])
def test_without_signature(root: Path, copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(Rejected, match=r"SHA256SUMS\.sig: missing"):
        faults(copy, root)


def test_a_signature_by_another_key_or_for_another_purpose(root: Path, copy: Path, tmp_path: Path) -> None:
    key(tmp_path / "other")
    for private, namespace in ((tmp_path / "other", signature.NAMESPACE), (root.parent / "key", "file")):
        (copy / "SHA256SUMS.sig").unlink()
        run("ssh-keygen", "-Y", "sign", "-q", "-f", str(private), "-n", namespace, str(copy / "SHA256SUMS"))
        with pytest.raises(Rejected, match=r"SHA256SUMS\.sig: ssh-keygen: "):
            faults(copy, root)


def signed_again(folder: Path, root: Path) -> None:
    (folder / "SHA256SUMS.sig").unlink()
    signature.sign(sums.write(folder), root.parent / "key")


def test_a_list_without_a_package(root: Path, copy: Path) -> None:
    """Also where its maker signed it: the wheel itself says what it needs."""
    spdx = copy / f"tonnage-{VERSION}-py3-none-any.whl.spdx.json"
    document = json.loads(spdx.read_text())
    document["packages"] = [one for one in document["packages"] if one["name"] not in ("aiohttp", "pyyaml")]
    spdx.write_text(json.dumps(document))
    signed_again(copy, root)
    assert faults(copy, root) == [
        f"{spdx.name}: lacks aiohttp, pyyaml, which {spdx.name.removesuffix('.spdx.json')} has; make the release again",
        f"provenance.intoto.json: {spdx.name} is not among its subjects; make the release again",
    ]
    spdx.unlink()
    signed_again(copy, root)
    assert f"no {spdx.name}; make the release again" in faults(copy, root)[0]


def test_a_second_release_over_the_first(root: Path, release: Path) -> None:
    before = sums.digests(release)
    with pytest.raises(Rejected, match=f"v{VERSION}: exists: a release is made once"):
        make(VERSION, root.parent / "key", root.parent / "out", (), root=root)
    assert (sums.digests(release), os.listdir(release.parent)) == (before, [release.name])


def test_keys_that_may_not_sign(root: Path, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="there is no such private key; name one with KEY=FILE"):
        make(VERSION, tmp_path / "none", tmp_path / "out", (), root=root)
    key(tmp_path / "other")
    with pytest.raises(Rejected, match=r"its public key is not in deploy/release/allowed_signers"):
        make(VERSION, tmp_path / "other", tmp_path / "out", (), root=root)
    assert not (tmp_path / "out").exists()


def test_a_failed_build_leaves_nothing(root: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    run("git", "clone", "--quiet", str(root), str(tree))
    (tree / "deploy/release/build.py").write_text("raise SystemExit('a fault of this build')\n")
    run("git", *AUTHOR, "commit", "--quiet", "--all", "--message=A fault", cwd=tree)
    run("git", "tag", "--force", f"v{VERSION}", cwd=tree)
    with pytest.raises(Rejected, match=f"v{VERSION}: not built: a fault of this build"):
        make(VERSION, root.parent / "key", tmp_path / "out", (), root=tree)
    assert os.listdir(tmp_path / "out") == []


def test_the_repository_has_no_private_key() -> None:
    text = (ROOT / signature.SIGNERS).read_text()
    assert all(line.startswith("#") or f'namespaces="{signature.NAMESPACE}" ssh-' in line for line in text.splitlines())
    command = ["git", "grep", "-lI", "BEGIN OPENSSH " + "PRIVATE KEY"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout == b""


@pytest.mark.parametrize("name", ["tonnage", "tonnage_box"])
def test_the_lists_are_valid_spdx(release: Path, name: str) -> None:
    """By the validator of the SPDX project; what a wheel needs is there with the versions of constraints/run.txt."""
    spdx = release / f"{name}-{VERSION}-py3-none-any.whl.spdx.json"
    assert spdx_faults(spdx) == []
    packages = {one["name"]: one for one in json.loads(spdx.read_text())["packages"]}
    pinned = dict(line.split("==") for line in (ROOT / "constraints/run.txt").read_text().split())
    assert packages["aiohttp"]["versionInfo"] == pinned["aiohttp"]
    assert packages["tonnage"]["versionInfo"] == VERSION
    assert packages["tonnage"]["licenseDeclared"] == "Apache-2.0"
    assert packages["aiohttp"]["externalRefs"][0]["referenceLocator"] == f"pkg:pypi/aiohttp@{pinned['aiohttp']}"
    assert set(packages) - {"tonnage", "tonnage-box", spdx.name.removesuffix(sbom.SUFFIX)} <= set(pinned)


def test_the_provenance_is_a_statement_of_slsa(root: Path, release: Path) -> None:
    """By the messages and the validator of the in-toto project, which reject unknown fields."""
    statements = import_module("in_toto_attestation.v1.statement_pb2")
    predicates = import_module("in_toto_attestation.predicates.provenance.v1.provenance_pb2")
    wrapper = import_module("in_toto_attestation.v1.statement")
    json_format = import_module("google.protobuf.json_format")
    made = json.loads((release / provenance.NAME).read_text())
    wrapper.Statement.copy_from_pb(json_format.ParseDict(made, statements.Statement())).validate()
    predicate = json_format.ParseDict(made["predicate"], predicates.Provenance())
    assert (made["_type"], made["predicateType"]) == (provenance.STATEMENT, provenance.PREDICATE)
    (source,) = predicate.build_definition.resolved_dependencies
    assert source.digest["gitCommit"] == run("git", "rev-parse", "HEAD", cwd=root).strip()
    assert {one["name"] for one in made["subject"]} == set(sums.read(release)) - {provenance.NAME}


def test_archives_belong_to_root_and_have_the_time_of_the_commit(root: Path, release: Path) -> None:
    time = tag.check(root, VERSION).time
    for file in (*release.glob("*.tar.gz"), *release.glob("*.tgz")):
        with tarfile.open(file) as members:
            found = {(one.uid, one.gid, one.mode & ~0o111, one.mtime) for one in members}
        assert found == {(0, 0, 0o644, time)}, file.name


def chart(release: Path) -> Iterator[str]:
    with tarfile.open(release / f"tonnage-{VERSION}.tgz") as members:
        yield from members.getnames()


def test_the_chart_has_the_files_of_its_folder(release: Path) -> None:
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "deploy/helm/tonnage").splitlines()
    assert sorted(chart(release)) == sorted(re.sub(r"^deploy/helm/", "", name) for name in listed)


def test_manifests_name_the_image_of_the_release(release: Path) -> None:
    for file in release.glob("*.yaml"):
        objects = [one for one in yaml.safe_load_all(file.read_text()) if one]
        (agent,) = (one for one in objects if one["kind"] == "DaemonSet")
        assert agent["spec"]["template"]["spec"]["containers"][0]["image"] == f"tonnage.dev/tonnage:{VERSION}"
    newest = (release / f"tonnage-{VERSION}-kubernetes-{build.releases()[-1]}.yaml").read_text()
    assert "MutatingAdmissionPolicy" in newest

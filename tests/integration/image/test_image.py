"""The image itself: small, the same bytes each time, and all that we call runs in it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deploy.image.build import LIMIT, Image, build
from deploy.image.debian import Missing
from deploy.release import sbom
from tests.integration.release.spdx import spdx_faults
from tests.layers import needs_layer

from tonnage import __version__

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="chroot takes root")
pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Built as `make image` does."""
    try:
        return build(tmp_path_factory.mktemp("image") / "a.tar", "example.test/tonnage:1", time=1_800_000_000)
    except Missing as reason:
        pytest.skip(f"no image: {reason}")


def layers(image: Image) -> Iterator[tarfile.TarFile]:
    """The layers of an image, the lowest first."""
    with tarfile.open(image.file) as archive:
        file = archive.extractfile("manifest.json")
        assert file is not None
        for name in json.loads(file.read())[0]["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                yield layer


def digests(image: Image) -> dict[str, str]:
    """Each path of an image, and all that there is of it."""
    found = {}
    for layer in layers(image):
        for member in layer:
            file = layer.extractfile(member) if member.isreg() else None
            content = hashlib.sha256(file.read()).hexdigest() if file else member.linkname
            found[member.name] = f"{member.mode:o} {member.mtime} {content}"
    return found


@pytest.fixture(scope="module")
def root(image: Image) -> Iterator[Path]:
    """A folder with all layers in it."""
    folder = image.file.parent / "root"
    folder.mkdir()
    for layer in layers(image):
        layer.extraction_filter = lambda member, _: member  # all of it; Python 3.11.2 has no argument for that
        layer.extractall(folder)
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)


def test_size(image: Image, tell: Callable[[str], None]) -> None:
    tell(f"image: {image.size / 2**20:.1f} MiB")
    assert 2**20 < image.size <= LIMIT


def test_same_bytes_again(image: Image) -> None:
    again = build(image.file.with_name("b.tar"), image.name, time=1_800_000_000)
    if again.file.read_bytes() != image.file.read_bytes():
        before, after = digests(image), digests(again)
        pytest.fail(f"other bytes: {[path for path in before | after if before.get(path) != after.get(path)]}")
    again.file.unlink()


def test_nothing_gives_rights_or_tells_of_this_machine(root: Path) -> None:
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 1000
    assert not [path for path in files if path.stat().st_mode & 0o6000]
    here = str(Path(__file__).parents[3]).encode()
    words = (here, b"/tonnage-image-", b"/tonnage-wheel-")  # where it was compiled and built
    assert not [path for path in files if any(word in path.read_bytes() for word in words)]


@needs_root
@pytest.mark.parametrize(
    "command",
    [
        ("tonnage", "--version"),
        ("tonnage", "node", "--help"),
        ("mkfs.ext4", "-V"), ("e2fsck", "-V"), ("resize2fs",), ("e2image",), ("tune2fs",),
        ("mkfs.xfs", "-V"), ("xfs_growfs", "-V"), ("xfs_repair", "-V"), ("xfs_admin", "-V"),
        ("mkfs.btrfs", "-V"), ("btrfs", "--version"), ("btrfstune", "--version"),
        ("lvm", "version"), ("thin_check", "-V"), ("dmsetup", "version"),
        ("ndctl", "--version"), ("wipefs", "--version"), ("blkid", "--version"), ("mount", "--version"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_program_runs(root: Path, command: tuple[str, ...]) -> None:
    """In a chroot: with the image's loader, libraries and interpreter and no others."""
    ended = subprocess.run(
        ["chroot", str(root), *command],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/sbin:/usr/bin"}, timeout=300,
    )  # fmt: skip
    said = ended.stdout + ended.stderr
    assert ended.returncode not in (126, 127), said
    assert said.strip()
    assert "error while loading" not in said
    assert "not found" not in said


@needs_root
def test_byte_code_is_used(root: Path) -> None:
    """On a read-only root a module whose byte code is not taken is compiled at every start."""
    code = "import tonnage.tools.cli.main, asyncio, yaml, aiohttp, cryptography, google.protobuf, grpclib, msgspec, sqlite3, ssl"
    ended = subprocess.run(
        ["chroot", str(root), "python3", "-v", "-c", code],
        capture_output=True, text=True, check=True, env={"PATH": "/usr/sbin:/usr/bin", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert "matches /usr/local/lib/python3" in ended.stderr
    assert not [line for line in ended.stderr.splitlines() if line.startswith("# wrote") or "bytecode is stale" in line]
    assert not [
        line for line in ended.stderr.splitlines() if line.startswith("# code object") and line.endswith(".py'")
    ]


def test_of_ours_it_has_the_distribution_tonnage_alone(image: Image) -> None:
    ours = {
        path.partition("/dist-packages/")[2].partition("/")[0]
        for path in digests(image)
        if "dist-packages/tonnage" in path
    }
    assert ours == {"tonnage", f"tonnage-{__version__}.dist-info"}


def test_of_tools_that_build_or_install_it_has_none(root: Path) -> None:
    """Nor an interpreter but Python and the shell of xfs_admin."""
    programs = {path.name for folder in ("usr/bin", "usr/sbin") for path in (root / folder).iterdir()}
    tools = {"cc", "gcc", "ld", "as", "make", "pip", "pip3", "dpkg", "apt", "apt-get", "perl", "bash", "curl", "wget"}
    assert {"mkfs.ext4", "dash", "python3"} <= programs
    assert programs & tools == set()
    assert not [*root.glob("usr/**/pip"), *root.glob("usr/**/setuptools"), *root.glob("usr/**/tonnage_box*")]


def test_scanners_find_which_debian_it_is(root: Path) -> None:
    text = (root / "usr/lib/os-release").read_text()
    assert "ID=debian" in text
    assert (root / "etc/os-release").is_symlink()


def test_what_is_inside_is_read_from_the_image(image: Image) -> None:
    """All packages of Debian and Python distributions, and no other."""
    found = {one.name: one for one in sbom.components(image.file)}
    packages = {file.name.partition("_")[0] for file in image.materials if file.suffix == ".deb"}
    wheels = {
        file.name.partition("-")[0].lower().replace("_", "-") for file in image.materials if file.suffix == ".whl"
    }
    assert {"e2fsprogs", "lvm2", "libc6"} <= packages
    assert {"aiohttp", "cryptography"} <= wheels
    assert set(found) == {*packages, *wheels, "tonnage"}
    library = found["libext2fs2"].purl
    assert library.startswith("pkg:deb/debian/libext2fs2@")
    assert "arch=" in library
    assert "distro=debian-" in library
    assert library.endswith("&upstream=e2fsprogs")


@needs_layer("release", "spdx_tools")
def test_its_list_is_valid_spdx_and_complete(image: Image) -> None:
    spdx = sbom.write(image.file, "1", 1_800_000_000)
    assert spdx_faults(spdx) == []
    names = sbom.names(image.file)
    assert names - sbom.listed(spdx) == set()
    document = json.loads(spdx.read_text())
    kinds = {one["relationshipType"] for one in document["relationships"]}
    assert (kinds, document["creationInfo"]["created"]) == ({"DESCRIBES", "CONTAINS"}, "2027-01-15T08:00:00Z")
    document["packages"] = [one for one in document["packages"] if one["name"] != "lvm2"]
    spdx.write_text(json.dumps(document))
    assert names - sbom.listed(spdx) == {"lvm2"}

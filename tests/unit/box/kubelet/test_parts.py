"""The parts that only compute or only touch files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.aio.clock import RealClock
from tonnage.api.pods import Container, Pod, SecurityContext
from tonnage.box.kubelet.containers import env, logs, rootfs
from tonnage.box.kubelet.containers.log_writer import LONGEST, Lines, LogFile, stamp
from tonnage.box.kubelet.containers.paths import Paths
from tonnage.box.kubelet.volumes import fsgroup, subpaths, vol_data
from tonnage.errors import ApiError, Invalid, Unsupported
from tonnage.host import atomic_writer
from tonnage.host.atomic_writer import Content


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)$(B)", "x12"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(NO)", "$(NO)"),
        ("$A $ $(", "$A $ $("),
        ("", ""),
    ],
)
def test_expand(text: str, expected: str) -> None:
    assert env.expand(text, {"A": "1", "B": "2"}) == expected


def test_arguments_need_a_command() -> None:
    assert env.arguments(Container(command=["a", "$(X)"], args=["b"]), {"X": "y"}) == ["a", "y", "b"]
    with pytest.raises(Invalid, match="has no command"):
        env.arguments(Container(name="c", args=["b"]), {})


@pytest.mark.parametrize(
    ("pod", "container", "user"),
    [
        (SecurityContext(), SecurityContext(), rootfs.User()),
        (SecurityContext(run_as_user=1), SecurityContext(run_as_user=2), rootfs.User(2)),
        (SecurityContext(run_as_user=1, run_as_group=3), SecurityContext(), rootfs.User(1, 3)),
        (SecurityContext(fs_group=5, supplemental_groups=[5, 6]), SecurityContext(), rootfs.User(0, 0, (5, 6))),
    ],
)
def test_users(pod: SecurityContext, container: SecurityContext, user: rootfs.User) -> None:
    assert rootfs.user(pod, container) == user


def test_users_that_are_refused() -> None:
    with pytest.raises(Unsupported, match="privileged"):
        rootfs.user(SecurityContext(), SecurityContext(privileged=True))
    with pytest.raises(Invalid, match="runAsNonRoot"):
        rootfs.user(SecurityContext(run_as_non_root=True), SecurityContext())


@pytest.mark.parametrize(
    "path", ["/", "//", "/usr", "/proc", "/proc/sys", "relative", "/a/../b", "/usr/no/such/place", "/x\0"]
)
def test_places_that_must_stay(path: str) -> None:
    with pytest.raises(Invalid):
        rootfs.target(path)


def test_variables_that_act_early_reach_only_the_command() -> None:
    variables = {"LD_PRELOAD": "/evil.so", "A": "b"}
    options = rootfs.arguments([], name="n", environment=variables, working_dir="", read_only=False)
    assert "/evil.so" not in options
    command = rootfs.command(rootfs.User(7), variables, ["run"])
    assert command[command.index("--") + 1 :] == ["/usr/bin/env", "LD_PRELOAD=/evil.so", "run"]


@pytest.mark.parametrize("uid", ["", "..", "a/b", "a\0b", "x" * 300])
def test_names_from_outside_stay_single_components(uid: str) -> None:
    with pytest.raises(Invalid):
        Paths(Path("/k")).pod(uid)


@given(st.lists(st.binary(max_size=3 * LONGEST), max_size=6))
def test_log_lines_lose_nothing(chunks: list[bytes]) -> None:
    lines = Lines(b"stdout")
    out = b"".join([*(lines.feed(chunk, b"T") for chunk in chunks), lines.end(b"T")])
    back = b""
    for line in out.split(b"\n")[:-1]:
        head, text = line[: len(b"T stdout F")], line[len(b"T stdout F ") :]
        assert head in (b"T stdout F", b"T stdout P")
        assert len(text) <= LONGEST
        back += text + (b"\n" if head.endswith(b"F") else b"")
    assert back == b"".join(chunks)


def test_stamps_have_nine_digits() -> None:
    assert stamp(1_700_000_000_000_000_001) == b"2023-11-14T22:13:20.000000001Z"


def test_log_files_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "c" / "0.log"
    file = LogFile(str(path), rotate=100)
    for number in range(50):
        file.write(b"%03d %s\n" % (number, b"x" * 16))
    file.close()
    assert path.stat().st_size <= 121
    assert (tmp_path / "c" / "0.log.1").stat().st_size <= 121
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["0.log", "0.log.1"]
    assert path.read_bytes().endswith(b"049 " + b"x" * 16 + b"\n")


@given(
    old=st.lists(st.integers(0, 200_000), max_size=4),
    new=st.lists(st.integers(0, 200_000), max_size=4),
    tail=st.integers(0, 10),
)
def test_the_tail_is_what_tail_says(
    tmp_path_factory: pytest.TempPathFactory, old: list[int], new: list[int], tail: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    path = folder / "0.log"
    parts = [[b"%d %s\n" % (n, b"y" * size) for n, size in enumerate(sizes)] for sizes in (old, new)]
    path.write_bytes(b"".join(parts[1]))
    if old:
        Path(f"{path}.1").write_bytes(b"".join(parts[0]))
    before, offset = logs.tail_start(str(path), tail)
    text = Path(f"{path}.1").read_bytes()[before:] if before >= 0 else b""
    text += path.read_bytes()[offset:]
    lines = parts[0] + parts[1]
    assert text == b"".join(lines[len(lines) - min(tail, len(lines)) :])


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"tailLines": "-1"}, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ({"limitBytes": "0"}, "limitBytes: Invalid value: 0: must be greater than 0"),
        ({"tailLines": "x"}, "tailLines='x' is not a number"),
        ({"sinceSeconds": "1", "sinceTime": "2020-01-01T00:00:00Z"}, "at most one of"),
        ({"sinceTime": "yesterday"}, "is not an RFC 3339 time"),
        ({"follow": "perhaps"}, "want true or false"),
        ({"colour": "red"}, "unknown option colour"),
        ({"stream": "Stdwhat"}, "Unsupported value"),
    ],
)
def test_log_options_that_are_wrong(query: dict[str, str], text: str) -> None:
    with pytest.raises(ApiError, match=text):
        logs.parse(query, RealClock())


def test_the_time_limit_of_a_request_is_no_option_of_logs() -> None:
    assert logs.parse({"timeout": "20s", "tailLines": "1"}, RealClock()).tail == 1


def test_a_container_must_be_named_where_there_are_several() -> None:
    pod = Pod()
    with pytest.raises(ApiError, match="a container name must be specified for pod"):
        logs.choose(pod, "")
    with pytest.raises(ApiError, match="container x is not valid for pod"):
        logs.choose(pod, "x")


def test_vol_data_survives_and_damage_is_told(tmp_path: Path) -> None:
    data = vol_data.VolumeData("d", "h", "pv")
    assert vol_data.load(str(tmp_path)) is None
    vol_data.save(str(tmp_path), data)
    assert vol_data.load(str(tmp_path)) == data
    (tmp_path / "vol_data.json").write_text("{")
    with pytest.raises(Invalid, match="damaged"):
        vol_data.load(str(tmp_path))
    vol_data.remove(str(tmp_path))
    vol_data.remove(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_files_change_at_one_stroke(tmp_path: Path) -> None:
    folder = str(tmp_path)
    atomic_writer.write(folder, {"a": Content(b"1"), "sub/b": Content(b"2", 0o600)})
    held = os.path.realpath(tmp_path / "..data")
    assert (tmp_path / "a").read_bytes() == b"1"
    assert stat.S_IMODE((tmp_path / "sub" / "b").stat().st_mode) == 0o600
    atomic_writer.write(folder, {"a": Content(b"1"), "sub/b": Content(b"2", 0o600)})
    assert os.path.realpath(tmp_path / "..data") == held
    atomic_writer.write(folder, {"c": Content(b"3")})
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("..")) == ["c"]
    assert not os.path.exists(held)


@pytest.mark.parametrize("path", ["../x", "/x", "a/../b", "", "..data", "a//b"])
def test_files_stay_below_their_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(Invalid):
        atomic_writer.write(str(tmp_path), {path: Content(b"")})


def test_fs_group_follows_no_symlink(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: gives files away")
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o600)
    volume = tmp_path / "volume"
    (volume / "sub").mkdir(parents=True)
    (volume / "sub" / "file").write_text("")
    (volume / "link").symlink_to(outside)
    fsgroup.apply(str(volume), 4321, policy=None)
    assert (outside.stat().st_gid, stat.S_IMODE(outside.stat().st_mode)) == (0, 0o600)
    assert (volume / "link").lstat().st_gid == 4321
    for path, extra in ((volume, 0o2770), (volume / "sub", 0o2770), (volume / "sub" / "file", 0o660)):
        assert path.stat().st_gid == 4321
        assert stat.S_IMODE(path.stat().st_mode) & extra == extra


def test_fs_group_on_root_mismatch_looks_at_the_root_only(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: gives files away")
    fsgroup.apply(str(tmp_path), 4321, policy=None)
    (tmp_path / "later").write_text("")
    fsgroup.apply(str(tmp_path), 4321, policy="OnRootMismatch")
    assert (tmp_path / "later").stat().st_gid in (0, 4321)
    os.chown(tmp_path / "later", -1, 0)
    fsgroup.apply(str(tmp_path), 4321, policy="OnRootMismatch")
    assert (tmp_path / "later").stat().st_gid == 0
    fsgroup.apply(str(tmp_path), 4321, policy="Always")
    assert (tmp_path / "later").stat().st_gid == 4321


@pytest.mark.parametrize(
    ("policy", "fstype", "modes", "read_only", "expected"),
    [
        ("None", "ext4", ["ReadWriteOnce"], False, False),
        ("File", "", ["ReadWriteMany"], False, True),
        ("File", "", ["ReadWriteOnce"], True, False),
        ("ReadWriteOnceWithFSType", "ext4", ["ReadWriteOnce"], False, True),
        ("ReadWriteOnceWithFSType", "ext4", ["ReadWriteOncePod"], False, True),
        ("ReadWriteOnceWithFSType", "", ["ReadWriteOnce"], False, False),
        ("ReadWriteOnceWithFSType", "ext4", ["ReadWriteOnce", "ReadOnlyMany"], False, False),
    ],
)
def test_when_the_kubelet_sets_the_group(
    policy: str, fstype: str, modes: list[str], read_only: bool, expected: bool
) -> None:
    assert fsgroup.wanted(policy, fstype=fstype, access_modes=modes, read_only=read_only) is expected


def test_a_subpath_is_resolved_beneath_its_volume(tmp_path: Path) -> None:
    volume = tmp_path / "v"
    (volume / "in").mkdir(parents=True)
    (volume / "good").symlink_to("in")
    (volume / "bad").symlink_to(tmp_path)
    (volume / "worse").symlink_to("../..")
    with subpaths.opened(str(volume), "good") as fd:
        assert os.readlink(f"/proc/self/fd/{fd}") == str(volume / "in")
    with subpaths.opened(str(volume), "new/deep") as fd:
        assert os.readlink(f"/proc/self/fd/{fd}") == str(volume / "new" / "deep")
    for path in ("bad", "worse", "bad/x/y", "../v", "/etc"):
        with pytest.raises(Invalid), subpaths.opened(str(volume), path):
            pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["v"]

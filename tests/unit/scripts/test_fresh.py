"""`make fresh`: what it takes from this machine, what its table says, and when it rejects. A run takes root and minutes."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from cluster.gobuild import Missing
from scripts.fresh import __main__ as fresh
from scripts.fresh import base, system
from scripts.fresh.base import Source
from scripts.fresh.inside import Plan, Result, Step, loop_devices, numbers, read_plan

ROOT = Path(__file__).parents[3]
MAIN = ("main",)
LIST = """
# a comment
deb http://mirror.example/debian bookworm main contrib # another
deb [ arch=amd64 signed-by=/usr/share/keyrings/x.gpg ] http://mirror.example/debian bookworm-updates main
deb [trusted=yes] http://security.example/ bookworm-security main
deb-src http://mirror.example/debian bookworm main
"""
SOURCES = """Types: deb deb-src
# a comment in a stanza
URIs: http://mirror.example/debian
 http://second.example/debian
Suites: trixie trixie-updates
Components: main non-free-firmware
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 URIs: not-a-field

Types: deb
Enabled: no
URIs: http://off.example
Suites: trixie
Components: main

Types: deb-src
URIs: http://source.example
Suites: trixie
Components: main
"""


def row(step: Step, code: int = 0, *, left: tuple[str, ...] = (), output: str = "") -> fresh.Row:
    return fresh.Row("Debian 12", Result(step, code, 61.5, 90.0, 53.2, list(left), output), Path("build/log"))


class TestSources:
    def test_sources_list(self) -> None:
        assert base.parse_list(LIST) == [
            Source("http://mirror.example/debian", "bookworm", ("main", "contrib")),
            Source("http://mirror.example/debian", "bookworm-updates", MAIN),
            Source("http://security.example/", "bookworm-security", MAIN),
        ]

    def test_deb822(self) -> None:
        components = ("main", "non-free-firmware")
        assert base.parse_deb822(SOURCES) == [
            Source("http://mirror.example/debian", "trixie", components),
            Source("http://mirror.example/debian", "trixie-updates", components),
            Source("http://second.example/debian", "trixie", components),
            Source("http://second.example/debian", "trixie-updates", components),
        ]

    def test_every_file_of_apt_is_read_and_no_other(self, tmp_path: Path) -> None:
        (tmp_path / "sources.list.d").mkdir()
        (tmp_path / "sources.list").write_text("deb http://a sid main\n")
        (tmp_path / "sources.list.d/b.list").write_text("deb http://b sid main\n")
        (tmp_path / "sources.list.d/c.sources").write_text(
            "Types: deb\nURIs: http://c\nSuites: sid\nComponents: main\n"
        )
        (tmp_path / "sources.list.d/d.list.disabled").write_text("deb http://d sid main\n")
        assert [source.uri for source in base.machine_sources(tmp_path)] == ["http://a", "http://b", "http://c"]

    def test_another_debian_of_the_same_archives_with_the_main_suite_first(self) -> None:
        machine = list(reversed(base.parse_list(LIST)))
        assert base.bare_sources(machine, 13) == [
            Source("http://mirror.example/debian", "trixie", MAIN),
            Source("http://mirror.example/debian", "trixie-updates", MAIN),
            Source("http://security.example/", "trixie-security", MAIN),
        ]

    @pytest.mark.parametrize(
        "text", ["", "deb http://archive.example/ubuntu noble main\n", "deb http://mirror.example/debian sid contrib\n"]
    )
    def test_a_machine_without_an_archive_of_debian_is_told(self, text: str) -> None:
        with pytest.raises(Missing, match=r"no archive of Debian .* apt sources; run it on Debian"):
            base.bare_sources(base.parse_list(text), 12)


class TestArguments:
    def test_all_by_default(self) -> None:
        parsed = fresh.arguments([])
        assert (parsed.debian, parsed.commands, parsed.user) == ([12, 13], ["demo", "test"], True)

    def test_what_ci_runs(self) -> None:
        parsed = fresh.arguments(["--debian", "12", "demo"])
        assert (parsed.debian, parsed.commands, parsed.user) == ([12], ["demo"], False)

    def test_the_user_alone(self) -> None:
        parsed = fresh.arguments(["--user"])
        assert (parsed.debian, parsed.commands, parsed.user) == ([12, 13], [], True)

    @pytest.mark.parametrize("words", [["--debian", "11"], ["tset"], ["--nothing"]])
    def test_a_typing_error_is_no_success(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            fresh.arguments(words)
        assert ended.value.code == 2
        assert words[-1] in capsys.readouterr().err

    def test_each_command_has_a_copy_of_its_own_and_a_user_without_root_one(self) -> None:
        chosen = fresh.plans(["demo", "test"], as_user=True)
        assert list(chosen) == ["root-demo", "root-test", "user-demo"]
        assert {step.user for name in ("root-demo", "root-test") for step in chosen[name]} == {""}
        assert [step.command for step in chosen["root-test"] if step.is_told] == ["make test"]
        assert {step.user for step in chosen["user-demo"] if step.is_told} == {base.USER}


class TestTable:
    def test_counts_are_those_of_the_last_line(self) -> None:
        cells = row(
            Step("make test"), output="1 passed, 2 failed, 3 skipped\nmore\n10 passed, 0 failed, 4 skipped\n"
        ).cells()
        assert cells == ["Debian 12", "make test", "root", "62", "90", "53", "10", "0", "4", "passed"]
        assert len(cells) == len(fresh.HEADER)

    def test_columns(self) -> None:
        assert fresh.table([["a", "b"], ["long", "c"]]) == "a     b\nlong  c"

    def test_what_was_not_run(self) -> None:
        said = "\nfailed:\n  a: b\nwhat was not run:\n    3 x no lvm\n   4 x no Go: see README.md:4\n1 passed, 1 failed, 7 skipped\n"
        assert fresh.not_run(said).splitlines() == ["    3 x no lvm", "   4 x no Go: see README.md:4"]
        assert fresh.not_run("1 passed, 0 failed, 0 skipped\n") == ""

    def test_what_fails(self) -> None:
        fine, rejected = Step("make demo"), Step("make demo", rejection="install python3-venv")
        assert row(fine).problem == ""
        assert row(fine, 2).problem == "exit status 2"
        assert row(fine, left=("mount /x", "loop device /dev/loop1 of /y")).problem == (
            "left behind: mount /x; loop device /dev/loop1 of /y"
        )
        assert row(rejected, 1, output="setup: install python3-venv").problem == ""
        for code, output in ((0, "install python3-venv"), (1, ""), (1, "Traceback ...\nno: install python3-venv")):
            assert row(rejected, code, output=output).problem == (
                f"exit status {code}; it had to end with: install python3-venv"
            )
        rows = row(fine), row(fine, 2), row(rejected, 1, output="setup: install python3-venv")
        assert [one.outcome for one in rows] == ["passed", "FAILED", "rejected"]

    def test_the_report_fails_with_one_row_and_shows_the_end_of_its_output(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = "".join(f"line {number}\n" for number in range(80))
        assert fresh._report([row(Step("make demo"))]) == 0
        capsys.readouterr()
        assert fresh._report([row(Step("make demo")), row(Step("make test"), 2, output=lines)]) == 1
        shown = capsys.readouterr().out
        assert "line 30\n" in shown
        assert "line 29\n" not in shown
        assert "build/log" in shown


class TestEnvironment:
    def test_only_how_registries_are_reached_is_passed_in(self) -> None:
        passed = {"https_proxy": "http://p", "NO_PROXY": "localhost", "PIP_INDEX_URL": "http://i", "PIP_CERT": "/c"}
        others = {
            "PATH": "/x",
            "HOME": "/y",
            "PIP_FIND_LINKS": "/z",
            "PYTHONPATH": "/p",
            "CI": "1",
            "XDG_CACHE_HOME": "/q",
        }
        assert system.network_environment({**passed, **others}) == passed

    @pytest.mark.skipif(not Path("/usr/bin/apt-config").exists(), reason="no apt-config")
    def test_files(self, tmp_path: Path) -> None:
        certificate = tmp_path / "ca.pem"
        certificate.write_text("certificate")
        (tmp_path / ".config/pip").mkdir(parents=True)
        (tmp_path / ".config/pip/pip.conf").write_text("[global]\n")
        files = system.network_files(
            {"HOME": str(tmp_path), "PIP_CERT": str(certificate)}, [Source("http://m", "trixie", MAIN)]
        )
        assert files["/etc/apt/sources.list"].endswith(" http://m trixie main\n")
        assert files[str(certificate)] == "certificate"
        assert files["/etc/pip.conf"] == "[global]\n"

    def test_a_plan_survives_json(self) -> None:
        plan = Plan("/image", "/repository", "/log", [Step("make demo", "tonnage", "stranger")], files={"/a": "b"})
        assert read_plan(json.dumps(asdict(plan))) == plan


class TestCopies:
    def test_a_copy_is_removed_and_that_of_a_killed_run_too_but_not_that_of_a_running_one(self, tmp_path: Path) -> None:
        image = tmp_path / "debian-12.ext4"
        image.write_text("disk")
        (tmp_path / "run-killed.ext4").write_text("old")
        running = tmp_path / "run-running.ext4"
        running.write_text("other")
        with running.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with system.fresh_copy(image) as copy:
                assert copy.read_text() == "disk"
                assert {path.name for path in tmp_path.iterdir()} == {image.name, running.name, copy.name}
            assert {path.name for path in tmp_path.iterdir()} == {image.name, running.name}


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/loop-control").exists(), reason="no root or no loop devices")
class TestLoopDevices:
    def test_one_on_a_file_of_that_device_is_found_and_others_are_not(self, tmp_path: Path) -> None:
        file = tmp_path / "a file"
        file.write_bytes(bytes(1 << 20))
        loop = subprocess.check_output(["losetup", "--find", "--show", str(file)], text=True).strip()
        try:
            assert (loop, str(file)) in loop_devices({numbers(file.stat().st_dev)})
            assert loop_devices({numbers(os.stat("/proc").st_dev)}) == []
        finally:
            subprocess.run(["losetup", "--detach", loop], check=True)

    def test_those_of_a_run_that_was_killed_are_detached(self, tmp_path: Path) -> None:
        image = tmp_path / "run-killed.ext4"
        image.write_bytes(bytes(1 << 20))
        loop = subprocess.check_output(["losetup", "--find", "--show", str(image)], text=True).strip()
        try:
            with (tmp_path / "image").open("w") as other, system.fresh_copy(Path(other.name)):
                assert not image.exists()
                assert str(image) not in [file for _, file in loop_devices({numbers(tmp_path.stat().st_dev)})]
        finally:
            subprocess.run(["losetup", "--detach", loop], capture_output=True, check=False)


class TestRejections:
    """One sentence, and no success."""

    def test_without_root(self) -> None:
        done = self.run({}, before="import os; os.geteuid() or os.seteuid(65534)")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "make fresh: it mounts file systems, which takes root; run: sudo make fresh\n"

    @pytest.mark.skipif(os.geteuid() != 0, reason="not root")
    def test_without_programs(self) -> None:
        done = self.run({"PATH": "/nonexistent"})
        assert done.returncode == 2
        assert done.stderr.startswith("make fresh: not installed: unshare, mount, ")
        assert done.stderr.count("\n") == 1

    @pytest.mark.skipif(os.geteuid() != 0, reason="not root")
    @pytest.mark.skipif(not Path("/usr/lib/apt/apt-helper").exists(), reason="no apt-helper")
    def test_without_network(self) -> None:
        with pytest.raises(Missing, match=r"does not answer for Debian's trixie; check the network and apt's proxy$"):
            base.check_network(Source("http://127.0.0.1:9/debian", "trixie", MAIN))

    def test_without_debootstrap_and_apt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nonexistent")
        with pytest.raises(
            Missing, match=r"^make fresh: debootstrap is not installed, and there is no apt; install debootstrap$"
        ):
            base._ensure_debootstrap()

    @staticmethod
    def run(environment: dict[str, str], before: str = "") -> subprocess.CompletedProcess[str]:
        script = f"import sys; from scripts.fresh.__main__ import main; {before}\nsys.exit(main(['demo']))"
        return subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip

"""The judge of `make test-upstream`: nothing that did not run counts as success. The suite itself is not run here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from cluster.processes import Failed
from tests.upstream import __main__ as command
from tests.upstream import results
from tests.upstream.remote import kubelet_verb
from tests.upstream.results import BEGIN, END, Result

NOT_CHOSEN = '<skipped message="skipped"/>'
NOT_OFFERED = '<skipped message="skipped - Driver does not support it"/>'
FAILED = '<failure message="no"/>'


def write(file: Path, cases: Mapping[str, str]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f'<testcase name="{name}">{inside}</testcase>' for name, inside in cases.items())
    file.write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")
    return file


def test_what_a_file_says(tmp_path: Path) -> None:
    cases = {
        "[It] b": "",
        "[It] a": "<system-err>much</system-err>",
        "[It] c": FAILED,
        "[It] d": '<error message="interrupted"/>',
        "[It] e": NOT_OFFERED,
        "[It] f": NOT_CHOSEN,
        "[It] g": '<skipped message="pending"/>',
        "[SynchronizedBeforeSuite]": "",
        "[ReportAfterSuite]": FAILED,
    }
    found = results.read(write(tmp_path / "x.xml", cases))
    assert found == Result(("a", "b"), ("[ReportAfterSuite]", "c", "d"), 1)
    assert found.line() == "2 passed, 3 failed, 1 skipped"


@pytest.mark.parametrize(
    ("cases", "code", "must_pass", "fault", "failures"),
    [
        ({"[It] a": ""}, 0, False, "", 0),
        ({"[It] a": "", "[It] b": FAILED}, 1, False, "", 1),
        ({"[It] a": ""}, 1, False, "ginkgo ended with 1, and no test failed", 1),
        ({"[It] a": ""}, -9, False, "ginkgo ended with -9, and no test failed", 1),
        ({"[It] a": NOT_CHOSEN}, 0, False, "no test ran", 1),
        ({}, 0, False, "no test ran", 1),
        ({"[It] a": NOT_OFFERED}, 0, False, "", 0),
        ({"[It] a": NOT_OFFERED}, 0, True, "no test passed", 1),
        ({"[It] a": NOT_CHOSEN}, 0, True, "no test ran", 1),
        ({"[It] a": NOT_OFFERED}, 2, False, "ginkgo ended with 2, and no test failed", 1),
    ],
)
def test_a_part(
    tmp_path: Path, cases: Mapping[str, str], code: int, fault: str, failures: int, *, must_pass: bool
) -> None:
    found = results.judge(write(tmp_path / "x.xml", cases), code, must_pass=must_pass)
    assert found.fault.removesuffix(": see its log") == fault
    assert found.failures == failures
    assert fault in found.line()


@pytest.mark.parametrize("text", [None, "", "<testsuites><testsuite>"])
def test_a_part_without_results(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "x.xml").write_text(text)
    found = results.judge(tmp_path / "x.xml", 0)
    assert "ginkgo ended with 0 and wrote no results" in found.line()
    assert found.failures == 1


def test_the_table(tmp_path: Path) -> None:
    """Of several disks, of which one lacks a file; other files and folders there are of other runs."""
    reports, page = tmp_path / "reports", tmp_path / "page.md"
    write(reports / "ext4" / "slow.xml", {"[It] a": "", "[It] b": FAILED, "[It] c": NOT_OFFERED})
    write(reports / "xfs" / "slow.xml", {"[It] a": ""})
    write(reports / "xfs" / "main.xml", {"[It] a": "", "[It] b": ""})
    write(reports / "xfs" / "focus.xml", {"[It] a": ""})
    (reports / "older").mkdir()
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        results.document(reports, page, "v1.2.3", disks=["ext4", "xfs"], parts=["main", "slow"])
        assert page.read_text().splitlines() == [
            "before", BEGIN, "Kubernetes v1.2.3, passed / failed / skipped as not offered:", "",
            "| disk | main | slow |", "|---|---|---|",
            "| ext4 | no results | 1 / 1 / 1 |", "| xfs | 2 / 0 / 0 | 1 / 0 / 0 |", END, "after",
        ]  # fmt: skip


def test_a_page_without_marks(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("text")
    with pytest.raises(ValueError, match="has no line"):
        results.document(tmp_path, tmp_path / "page.md", "v1", disks=["xfs"], parts=["main"])


def test_one_cluster_that_does_not_start_is_a_failure_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run(disk: str, *_: object) -> int:
        ran.append(disk)
        if disk == "xfs":
            raise Failed("kubelet: no")
        return 0

    monkeypatch.setattr(command, "_run", run)
    for disks, code in ((["xfs", "btrfs"], 1), (["btrfs"], 0)):
        monkeypatch.setattr("sys.argv", ["upstream", *disks, "--reports", str(tmp_path)])
        assert command.main(lambda: tmp_path) == code
    assert ran == ["xfs", "btrfs", "btrfs"]


@pytest.mark.parametrize(
    ("command", "verb"),
    [
        ("systemctl start kubelet", "start"),
        ("sudo systemctl stop kubelet", "stop"),
        ("systemctl restart kubelet.service", "restart"),
        ("systemctl show kubelet --property ActiveState --value", "show"),
        ("systemctl status kubelet", ""),
        ("systemctl --version", ""),
        ("systemctl stop kubelet; reboot", ""),
        ("systemctl stop kubelet2", ""),
        ("systemctl stop containerd", ""),
        ("sudo --version", ""),
        ("echo systemctl stop kubelet", ""),
        ('sudo sh -c "ls /var/lib/kubelet"', ""),
    ],
)
def test_commands_for_the_kubelet(command: str, verb: str) -> None:
    assert kubelet_verb(command) == verb

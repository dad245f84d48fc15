"""Chooses what CI runs of guests, clusters and programs in Go: what a change reaches, a smoke test a lane, and a turn.

    python -m scripts.reach [BASE | --passed]

Prints the choice for the commits since BASE, with reasons; --passed remembers that HEAD has passed. `make test-changed`
runs the choice, `make test-rest` all. The lanes run at the same time, and each has a budget of minutes. What the change
does not reach has its turn: the commit says where the turn begins, and the budget where it ends. So each test runs once
in a few landings, even if nobody changes what it shows.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cluster import gobuild

BUDGET = 8.0
"""Minutes of a lane's tests on a quiet machine: with five lanes on two cores, twice as many."""
_SAME_BUDGET = {"alone": "qemu"}
HOURS = 8
"""A landing's commits are at most so old."""
_ROOT = Path(__file__).resolve().parent.parent
_SOURCES = ("src/tonnage/", "src/")
_PASSED = "ci-passed"
"""A folder in the cache: a file for each commit that passed."""


@dataclass(frozen=True)
class Subject:
    """Tests that show one thing on one lane.

    tests: a file or a test of it. about: what they show, files and folders below src/tonnage, src or the root.
    minutes: what they take on a quiet machine of two cores, with what they start for themselves. is_smoke: in each
    run.
    """

    lane: str
    tests: str
    about: tuple[str, ...]
    minutes: float
    is_smoke: bool = False

    @property
    def file(self) -> str:
        """The file of its tests."""
        return self.tests.partition("::")[0]

    @property
    def budget(self) -> str:
        """The lane whose budget its minutes count in."""
        return _SAME_BUDGET.get(self.lane, self.lane)


@dataclass(frozen=True)
class Choice:
    """What runs, with the reason of each, and what the budget left out though the change reaches it."""

    chosen: Mapping[Subject, str]
    left_out: Sequence[Subject]

    def lanes(self) -> dict[str, list[str]]:
        """Lane -> its tests."""
        lanes: dict[str, list[str]] = {}
        for subject in self.chosen:
            lanes.setdefault(subject.lane, []).append(subject.tests)
        return lanes

    def lines(self) -> Iterator[str]:
        """The choice for people."""
        minutes = sum(subject.minutes for subject in self.chosen)
        yield f"Chosen: {len(self.chosen)} of {len(SUBJECTS)} subjects, {minutes:.0f} minutes of tests"
        for subject, reason in sorted(self.chosen.items(), key=lambda item: item[0].lane):
            yield f"  {subject.lane:9} {subject.tests}: {reason}"
        if self.left_out:
            yield f"Reached by the change, but beyond the budget (make test-rest runs them): {len(self.left_out)}"
            yield from (f"  {subject.lane:9} {subject.tests}" for subject in self.left_out)


def choose(changed: Collection[str], turn: int, *, budget: float = BUDGET) -> Choice:
    """What runs after a change of these files. turn: any number: where each lane begins. budget: minutes a lane."""
    in_turn = [subject for lane in _LANES.values() for subject in _turned(lane, turn)]
    reasons = {subject: reached(subject, changed) for subject in in_turn}
    chosen = {subject: "smoke" for subject in in_turn if subject.is_smoke}
    wanted = [subject for subject in in_turn if reasons[subject] and subject not in chosen]
    wanted.sort(key=lambda subject: subject.file not in changed)  # a test that was itself changed first
    rest = [subject for subject in in_turn if not reasons[subject] and subject not in chosen]
    spent: dict[str, float] = defaultdict(float)
    for subject in (*chosen, *wanted, *rest):
        if subject in chosen or spent[subject.budget] + subject.minutes <= budget:
            chosen.setdefault(subject, reasons[subject] or "its turn")
            spent[subject.budget] += subject.minutes
    return Choice(chosen, [subject for subject in wanted if subject not in chosen])


def _turned(lane: Sequence[Subject], turn: int) -> Sequence[Subject]:
    start = turn % len(lane)
    return [*lane[start:], *lane[:start]]


def reached(subject: Subject, changed: Iterable[str]) -> str:
    """The first changed file that these tests are about or are made of, "" for none."""
    parts = {*_paths(subject.about), *_made_of(subject.file)}
    return next((file for file in sorted(changed) if not parts.isdisjoint([file, *map(str, Path(file).parents)])), "")


@cache
def _paths(about: Sequence[str]) -> Sequence[str]:
    return [next((f"{at}{name}" for at in _SOURCES if (_ROOT / at / name).exists()), name) for name in about]


@cache
def _made_of(file: str) -> frozenset[str]:
    """A file of tests, what it imports of tests, and its folder's conftest.py."""
    made_of = {file, str(Path(file).with_name("conftest.py"))}
    for node in ast.walk(ast.parse((_ROOT / file).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            module = str(node.module).replace(".", "/")
            made_of |= {f"{module}.py", *(f"{module}/{name.name}.py" for name in node.names)}
    return frozenset(made_of)


def base(tree: Path = _ROOT) -> str:
    """The commit that the change began with: the newest that passed here, else the newest of another day's work."""
    for commit in _git(tree, "rev-list", "--max-count=1000", "--skip=1", "HEAD").split():
        if (gobuild.cache() / _PASSED / commit).exists():
            return commit
    head = int(_git(tree, "log", "-1", "--format=%ct"))
    before = _git(tree, "rev-list", "-1", f"--before={head - HOURS * 3600}", "HEAD")
    return before or _git(tree, "rev-list", "--max-parents=0", "HEAD").split()[0]


def note_passed(tree: Path = _ROOT) -> None:
    """Remember that HEAD has passed: the next change begins there. Idempotent."""
    place = gobuild.cache() / _PASSED
    place.mkdir(parents=True, exist_ok=True)
    (place / _git(tree, "rev-parse", "HEAD")).touch()


def changed_since(commit: str, tree: Path = _ROOT) -> list[str]:
    """The files that differ."""
    return _git(tree, "diff", "--name-only", commit, "HEAD").splitlines()


def since(commit: str) -> Choice:
    """What runs for the commits since that one."""
    return choose(changed_since(commit), int(_git(_ROOT, "rev-parse", "HEAD")[:8], 16))


def _git(tree: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


def _subjects(lane: str, *rows: tuple[str, tuple[str, ...], float]) -> Iterator[Subject]:
    for number, (tests, about, minutes) in enumerate(rows):
        yield Subject(lane, tests, about, minutes, is_smoke=number == 0 and lane != "alone")


_UML, _QEMU, _KILLS = "tests/vm/test_uml.py", "tests/vm/test_qemu.py", "tests/crash/kills/test_driver_kills.py"
_PARTY = "tests/integration/third_party"
_CONTRACT = ("storage/pools/core", "storage/pools/base", "storage/pools/fs", "tests/conformance")
_LIFE = ("tests/crash/kills/life.py", "tests/crash/kills/machine.py", "tests/crash/kills/recovery.py")
_CAMPAIGN = (*_CONTRACT, *_LIFE, "csi/driver", "tests/crash/kills/campaign.py", "tests/crash/kills/kinds.py")
_TEMPLATES = "tools/ops/install/templates"
_CAPACITY = "provisioning/capacity"
_INSTALL = (_TEMPLATES, "tools/ops/install", "tests/e2e/machines.py", "cluster", "deploy/image")
SUBJECTS = (
    *_subjects(
        "machine",
        (f"{_PARTY}/test_third_party.py", ("csi/client", "node/plain_driver.py", "tonnage_box/kubelet"), 1),
        (f"{_PARTY}/test_attach_drivers.py", ("controller/attach", "tonnage_box/controllers/attach_detach.py"), 1),
        (f"{_PARTY}/test_charts.py", ("tonnage_box/apiserver/rest", "tonnage_box/controllers/workloads"), 1),
        (f"{_PARTY}/test_clientgo.py", ("tonnage_box/apiserver",), 1),
        (
            f"{_PARTY}/test_distributed_sidecars.py",
            ("node/capacity", "provisioning/capacity", "tonnage_box/controllers/pv_binder"),
            1,
        ),
        (f"{_PARTY}/test_driver_alone.py", ("csi/driver", "csi/server", "storage/pools/image"), 0.5),
        (f"{_PARTY}/test_helm.py", (_TEMPLATES, "tools/ops/install", "deploy/helm", "scripts/gen_chart.py"), 1),
        (f"{_PARTY}/test_orchestrator.py", ("csi/driver", "csi/server"), 0.5),
        (f"{_PARTY}/test_promtool.py", (f"{_TEMPLATES}/rules.yaml", "base/observe/metrics.py"), 0.5),
        (
            f"{_PARTY}/test_protobuf.py",
            ("tonnage_box/apiserver/protobuf", "tonnage_box/apiserver/schema", "tonnage_box/apiserver/kinds"),
            1,
        ),
        (
            f"{_PARTY}/test_sidecars.py",
            ("tonnage_box/controllers/pv_binder", "csi/driver", "tonnage_box/apiserver/rest"),
            3,
        ),
        (f"{_PARTY}/test_snapshot_controller.py", ("controller/snapshots", "node/snapshots"), 1),
        ("tests/stories/test_third_party_driver.py", ("tonnage_box/kubelet", "csi/client"), 0.5),
        ("tests/docs/test_command_blocks.py::test_readme_with_helm", ("README.md", "examples/chart"), 0.5),
        ("tests/crash/kills/test_driver_fuzz.py", ("csi/server", "csi/driver", "csi/_proto"), 0.5),
        (f"{_KILLS}::test_a_driver_killed_in_any_call_is_as_one_that_was_not", (*_CAMPAIGN, "storage/pools"), 4),
        (
            "tests/crash/faults/test_box.py",
            ("tonnage_box/cluster.py", "tonnage_box/cleanup.py", "tonnage_box/apiserver/storage"),
            2,
        ),
        ("tests/unit/storage/registry/test_containerd.py", ("storage/registry",), 0.5),
        (
            "tests/crash/kills/test_power_loss.py",
            (*_CONTRACT, "storage/images", "storage/pools/image", "storage/pools/btrfs", "host"),
            3,
        ),
    ),
    *_subjects(
        "uml",
        (f"{_UML}::test_lvm[lvm]", ("storage/pools/lvm", "tests/vm/guest_lvm.py"), 1),
        (f"{_UML}::test_a_command_and_its_exit_code", ("tests/vm/rig.py", "tests/vm/uml.py"), 0.2),
        (f"{_UML}::test_a_command_that_is_not_there", ("tests/vm/rig.py", "tests/vm/uml.py"), 0.2),
        (f"{_UML}::test_time_is_up_and_no_process_is_left", ("tests/vm/rig.py", "tests/vm/uml.py"), 0.2),
        (f"{_UML}::test_contract_of_pools[thick]", ("storage/pools/lvm", *_CONTRACT), 1.5),
        (f"{_UML}::test_contract_of_pools[thin]", ("storage/pools/lvm", *_CONTRACT), 1.5),
        (f"{_UML}::test_lvm[lvm_copies]", ("storage/pools/lvm", "tests/vm/guest_lvm_copies.py"), 1),
        (f"{_UML}::test_lvm[lvm_groups]", ("storage/pools/lvm", "tests/vm/guest_lvm_groups.py"), 1),
        (f"{_UML}::test_lvm[lvm_health]", ("storage/pools/lvm", "tests/vm/guest_lvm_health.py"), 1),
        (f"{_UML}::test_lvm[lvm_stale]", ("storage/pools/lvm", "tests/vm/guest_lvm_stale.py"), 1),
        (
            f"{_UML}::test_lvm[lvm_trash]",
            ("storage/pools/lvm", "storage/pools/core/trash.py", "tests/vm/guest_lvm_trash.py"),
            1,
        ),
        (
            f"{_UML}::test_undelete_by_kubectl",
            ("storage/pools/lvm", "storage/pools/core/trash.py", "tests/vm/guest_box_trash.py"),
            1.5,
        ),
        (
            f"{_UML}::test_contract_over_quotas",
            ("storage/pools/quota", "storage/pools/directory", "host/quota.py", *_CONTRACT),
            1.5,
        ),
        (f"{_UML}::test_quotas", ("storage/pools/quota", "host/quota.py", "tests/vm/guest_quota.py"), 0.5),
        (
            f"{_UML}::test_content",
            ("storage/content", "storage/pools/lvm", "storage/pools/quota", "tests/vm/guest_content.py"),
            1,
        ),
        (
            f"{_UML}::test_pools_of_before",
            ("storage/pools/lvm", "storage/pools/quota", "storage/pools/base", "tests/upgrade"),
            1,
        ),
        (
            f"{_UML}::test_damage",
            ("storage/pools/base", "storage/pools/lvm", "storage/pools/quota", "tests/vm/guest_damage.py"),
            2,
        ),
        (f"{_UML}::test_sanity", ("csi/driver", "csi/server", "storage/pools/lvm"), 1.5),
        ("tests/vm/test_iolimits.py", ("host/iolimits.py", "csi/driver"), 0.5),
        (f"{_KILLS}::test_the_same_in_a_guest[quota xfs]", (*_LIFE, "storage/pools/quota", "storage/pools/base"), 1),
        (f"{_KILLS}::test_the_same_in_a_guest[quota ext4]", (*_LIFE, "storage/pools/quota", "storage/pools/base"), 1),
        (f"{_KILLS}::test_the_same_in_a_guest[lvm thick]", (*_LIFE, "storage/pools/lvm", "storage/pools/base"), 1),
        (f"{_KILLS}::test_the_same_in_a_guest[lvm thin]", (*_LIFE, "storage/pools/lvm", "storage/pools/base"), 1),
        (
            f"{_KILLS}::test_the_same_in_a_guest[lvm thick trash]",
            (*_LIFE, "storage/pools/lvm", "storage/pools/core/trash.py"),
            1,
        ),
        (
            f"{_KILLS}::test_the_same_in_a_guest[lvm thin trash]",
            (*_LIFE, "storage/pools/lvm", "storage/pools/core/trash.py"),
            1,
        ),
    ),
    *_subjects(
        "qemu",
        (f"{_QEMU}::test_contract_of_pools[sector]", ("storage/pools/pmem", *_CONTRACT), 1.5),
        (f"{_QEMU}::test_a_command_its_exit_code_and_its_memory", ("tests/vm/rig.py", "tests/vm/qemu.py"), 0.5),
        (f"{_QEMU}::test_time_is_up_and_no_process_is_left", ("tests/vm/rig.py", "tests/vm/qemu.py"), 0.5),
        (f"{_QEMU}::test_contract_of_pools[fsdax]", ("storage/pools/pmem", *_CONTRACT), 3),
        (f"{_QEMU}::test_contract_of_pools[lvm]", ("storage/pools/pmem", "storage/pools/lvm"), 2),
        (f"{_QEMU}::test_pmem", ("storage/pools/pmem", "tests/vm/guest_pmem.py"), 3),
        (f"{_QEMU}::test_content", ("storage/content", "storage/pools/pmem"), 1),
        (f"{_QEMU}::test_damage", ("storage/pools/base", "storage/pools/pmem"), 2),
        (f"{_QEMU}::test_sanity", ("csi/driver", "storage/pools/pmem"), 2),
        (
            f"{_QEMU}::test_selinux",
            (
                "host/selinux.py",
                "host/mount.py",
                "storage/pools/fs/mounts.py",
                "tests/vm/guest_selinux.py",
                "tests/vm/selinux.py",
                "tests/vm/selinux.cil",
            ),
            3,
        ),
        (f"{_KILLS}::test_the_same_in_a_guest[pmem]", (*_LIFE, "storage/pools/pmem", "storage/pools/base"), 2),
        (
            f"{_KILLS}::test_the_same_in_a_guest[pmem trash]",
            (*_LIFE, "storage/pools/pmem", "storage/pools/core/trash.py"),
            2,
        ),
    ),
    *_subjects(
        "clusters",
        ("tests/e2e/test_agent_writes.py", ("node", "kubernetes/client", _TEMPLATES, "provisioning/claims"), 1),
        ("tests/e2e/test_attach.py", ("controller/attach", _TEMPLATES), 1),
        ("tests/e2e/test_autoscaler.py", ("controller/node_templates.py", "provisioning/capacity"), 1),
        ("tests/e2e/test_certificates.py", ("controller/certificates", "csi/inline/cert"), 1.5),
        ("tests/e2e/test_controller.py", ("controller", "kubernetes/client"), 1.5),
        ("tests/e2e/test_data_gravity.py", ("controller/immediate.py", "provisioning/claims", "scheduler/plugins"), 1),
        ("tests/e2e/test_doctor.py", ("tools/ops",), 1),
        ("tests/e2e/test_empty_dir.py", (f"{_TEMPLATES}/empty-dir-policy.yaml", "tools/ops/install"), 0.5),
        ("tests/e2e/test_ephemeral_policy.py", (_TEMPLATES, "docs/security.md"), 0.5),
        ("tests/e2e/test_faults_agent.py", ("node", "kubernetes/client"), 2),
        ("tests/e2e/test_faults_claims.py", ("node/provisioner", "provisioning/claims"), 2),
        ("tests/e2e/test_faults_clock.py", ("node", "base/aio", "kubernetes/client"), 1),
        ("tests/e2e/test_faults_control.py", ("node", "kubernetes/client"), 2),
        ("tests/e2e/test_faults_objects.py", ("node", "controller"), 2),
        ("tests/e2e/test_least_power.py", (_TEMPLATES, "tools/ops/install"), 1),
        ("tests/e2e/test_node_groups.py", ("tools/ops/install", _TEMPLATES), 0.5),
        ("tests/e2e/test_policy_options.py", ("tools/ops/install", _TEMPLATES), 0.5),
        ("tests/e2e/test_same_answers.py", ("tonnage_box/apiserver",), 0.5),
        ("tests/e2e/test_scheduler.py", ("scheduler",), 1.5),
        ("tests/e2e/test_scoping.py", (f"{_TEMPLATES}/scope-policy.yaml", "node/watch_scope.py"), 0.5),
        ("tests/e2e/test_snapshot_controller.py", ("controller/snapshots", "node/snapshots"), 1),
        ("tests/e2e/test_snapshot_crds.py", (f"{_TEMPLATES}/snapshot-crds.yaml", "scripts/gen_snapshot_crds.py"), 0.5),
        (
            "tests/e2e/test_tiers.py",
            ("controller/tier_hints.py", "controller/tier_objects.py", _CAPACITY),
            1.5,
        ),
        (
            "tests/e2e/test_two_volume_storm.py",
            ("node/provisioner", "node/capacity", "provisioning"),
            3,
        ),
        ("tests/e2e/test_writes.py", ("node/provisioner", "kubernetes/client"), 1),
    ),
    *_subjects(
        "kubelets",
        ("tests/e2e/test_seed.py", ("csi", *_INSTALL), 2),
        ("tests/e2e/test_data_services.py", ("node/autogrow.py", "node/growth.py", "node/attributes.py"), 1),
        ("tests/e2e/test_faults_nodes.py", ("node/reclaim", "controller/node_loss.py", "controller/preassigned.py"), 3),
        ("tests/e2e/test_faults_upgrades.py", (_TEMPLATES, "csi/server", "node/process.py"), 1.5),
        ("tests/e2e/test_flexvolume.py", ("node/flexvolume",), 1.5),
        ("tests/e2e/test_give_back.py", ("node/provisioner", "provisioning/claims"), 1),
        ("tests/e2e/test_grow_volume.py", ("node/growth.py", "csi/driver"), 0.5),
        ("tests/e2e/test_hello_populator.py", ("node/provisioner", "controller/free_populators.py"), 1),
        ("tests/e2e/test_image_volumes.py", ("csi/inline/image", "storage/images", "storage/registry"), 1),
        ("tests/e2e/test_install_page.py", ("docs/install.md", "tools/ops/install"), 1.5),
        ("tests/e2e/test_kept_and_reclaimed.py", ("node/reclaim", "storage/pools/core/trash.py"), 1),
        ("tests/e2e/test_live_config.py", ("node/config", "node/reload.py"), 0.5),
        ("tests/e2e/test_other_driver.py", ("csi/client", "node/plain_driver.py"), 1),
        (
            "tests/e2e/test_restricted.py",
            (f"{_TEMPLATES}/controller.yaml", f"{_TEMPLATES}/scheduler.yaml", "deploy/image", "deploy/release"),
            1,
        ),
        ("tests/e2e/test_stories.py", ("csi", "node/provisioner"), 1),
    ),
    *_subjects("alone", ("tests/vm/test_pmem_cluster.py", ("storage/pools/pmem", "tests/vm/guest_node.py"), 4)),
)
"""All that `make test-rest` runs. A lane's first is its smoke test; the lane "alone" takes too long for one."""
_LANES: dict[str, list[Subject]] = {}
for _each in SUBJECTS:
    _LANES.setdefault(_each.budget, []).append(_each)

if __name__ == "__main__":
    if sys.argv[1:] == ["--passed"]:
        note_passed()
    else:
        print(*since(*sys.argv[1:2] or [base()]).lines(), sep="\n")

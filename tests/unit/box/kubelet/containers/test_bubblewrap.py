"""Containers as real processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import processes
from tests.programs import needs_containers
from tests.signal_masks import without_threads
from tests.unit.box.kubelet.machine import Eventually

from tonnage.base.aio.clock import RealClock
from tonnage.host import mount
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, PODS, SECRETS
from tonnage.kubernetes.api.pods import ContainerState
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime

pytestmark = [
    pytest.mark.real,
    needs_containers,
    pytest.mark.parametrize(
        "machine", [lambda root: BubblewrapRuntime(root, RealClock())], indirect=True, ids=["bwrap"]
    ),
]


@pytest.fixture(autouse=True)
def _leaves_nothing(folder: Path) -> Iterator[None]:
    yield
    left = processes.with_text(str(folder))
    processes.kill(left)
    targets = [m.target for m in mount.mounts() if m.target.startswith(f"{folder}/")]
    for target in reversed(targets):
        mount.umount(target, lazy=True)
    assert (left, targets) == ([], [])


def _shell(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "any", "command": ["/bin/sh", "-c", script], **more}


def _log(machine: Any, pod: Any, *, attempt: int = 0, container: str = "main") -> list[str]:
    meta = pod.metadata
    path = machine.root / "pods-logs" / f"{meta.namespace}_{meta.name}_{meta.uid}" / container / f"{attempt}.log"
    return [line.split(" ", 3)[3] for line in path.read_text().splitlines()]


def _state(pod: Any, index: int = 0) -> ContainerState:
    state: ContainerState = pod.status.container_statuses[index].state
    return state


async def test_runs_with_its_volume_and_ends_well(machine: Any) -> None:
    await machine.volume("a")
    script = 'echo hello > /data/file; cat /data/file; echo "$GREETING $HOSTNAME"; id -u; pwd; ls /; exit 0'
    await machine.pod(
        "p",
        restartPolicy="Never",
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}],
        containers=[
            _shell(
                script,
                args=["unused"],
                workingDir="/work/here",
                env=[{"name": "WHO", "value": "world"}, {"name": "GREETING", "value": "hi $(WHO) $$(WHO) $(NO)"}],
                volumeMounts=[{"name": "data", "mountPath": "/data"}],
            )
        ],
    )
    pod = await machine.phase("p", "Succeeded")
    lines = _log(machine, pod)
    assert lines[:4] == ["hello", "hi world $(WHO) $(NO) p", "0", "/work/here"]
    assert {"usr", "etc", "data", "work", "bin"} <= set(lines[4:])
    terminated = _state(pod).terminated
    assert terminated is not None
    assert (terminated["exitCode"], terminated["reason"]) == (0, "Completed")
    await machine.event("ImageNotPulled")
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")


async def test_user_groups_and_capabilities(machine: Any) -> None:
    await machine.pod(
        "p",
        restartPolicy="Never",
        securityContext={"runAsUser": 1234, "runAsGroup": 55, "fsGroup": 77, "supplementalGroups": [88]},
        volumes=[{"name": "e", "emptyDir": {}}],
        containers=[
            _shell(
                "id -u; id -g; id -G; grep CapEff /proc/self/status; touch /e/f; stat -c %g /e/f; "
                "touch /usr/x || echo read-only; ls /root || echo private",
                volumeMounts=[{"name": "e", "mountPath": "/e"}],
            )
        ],
    )
    pod = await machine.phase("p", "Succeeded")
    lines = [line for line in _log(machine, pod) if "denied" not in line and "system" not in line]
    assert lines == ["1234", "55", "55 77 88", "CapEff:\t0000000000000000", "77", "read-only", "private"]


@pytest.mark.parametrize(
    ("spec", "container", "reason", "message"),
    [
        ({"hostPID": True}, {}, "CreateContainerConfigError", "spec.hostPID: would let"),
        ({}, {"privileged": True}, "CreateContainerConfigError", "securityContext.privileged: would own"),
        ({}, {"capabilities": {"add": ["SYS_ADMIN"]}}, "CreateContainerConfigError", "CAP_SYS_ADMIN cannot be added"),
        (
            {},
            {"seccompProfile": {"type": "Localhost", "localhostProfile": "absent.json"}},
            "CreateContainerError",
            'cannot load seccomp profile "absent.json"',
        ),
    ],
)
async def test_what_cannot_be_done_is_rejected_by_name(
    machine: Any, spec: dict[str, Any], container: dict[str, Any], reason: str, message: str
) -> None:
    await machine.pod("p", containers=[_shell("echo ran", securityContext=container)], **spec)
    pod = await machine.until(
        "p", lambda p: p.status.container_statuses and (_state(p).waiting or {}).get("reason") == reason
    )
    assert message in (_state(pod).waiting or {})["message"]
    assert message in (await machine.event("Failed")).message
    assert not (machine.root / "pods-logs").exists() or not list((machine.root / "pods-logs").glob("*/main/0.log"))


async def test_a_crash_is_restarted_with_growing_waits(machine: Any) -> None:
    await machine.pod("p", containers=[_shell("echo once; exit 3")])
    pod = await machine.until("p", lambda p: p.status.container_statuses[:1] and _state(p).waiting is not None)
    pod = await machine.until("p", lambda p: (_state(p).waiting or {}).get("reason") == "CrashLoopBackOff")
    status = pod.status.container_statuses[0]
    assert status.restart_count == 1
    assert status.state.waiting["message"].startswith("back-off 10s restarting failed container=main pod=p")
    assert status.last_state.terminated["exitCode"] == 3
    assert _log(machine, pod, attempt=1) == ["once"]


async def test_init_containers_come_first_and_in_order(machine: Any) -> None:
    share = {"volumeMounts": [{"name": "e", "mountPath": "/e"}]}
    await machine.pod(
        "p",
        restartPolicy="Never",
        volumes=[{"name": "e", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
        initContainers=[
            {**_shell("echo one >> /e/f"), "name": "i1", **share},
            {**_shell("echo two >> /e/f"), "name": "i2", **share},
        ],
        containers=[
            _shell("cat /e/f; dd if=/dev/zero of=/e/big bs=64k count=100 2>&1 | grep -o 'No space left'", **share)
        ],
    )
    pod = await machine.phase("p", "Succeeded")
    assert _log(machine, pod) == ["one", "two", "No space left"]


async def test_a_failed_init_container_ends_a_pod_that_never_restarts(machine: Any) -> None:
    await machine.pod("p", restartPolicy="Never", initContainers=[{**_shell("exit 4"), "name": "i"}])
    pod = await machine.phase("p", "Failed")
    assert pod.status.init_container_statuses[0].state.terminated["exitCode"] == 4
    assert _state(pod).waiting == {"reason": "PodInitializing"}


async def test_files_of_configmaps_and_secrets_and_variables(machine: Any) -> None:
    await machine.client.create(CONFIG_MAPS, {"metadata": {"name": "cm"}, "data": {"k": "v", "n": "w"}}, "default")
    await machine.client.create(SECRETS, {"metadata": {"name": "s"}, "data": {"pw": "aHVudGVyMg=="}}, "default")
    await machine.pod(
        "p",
        restartPolicy="Never",
        volumes=[
            {"name": "c", "configMap": {"name": "cm", "items": [{"key": "k", "path": "sub/file"}]}},
            {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}},
            {"name": "d", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ],
        containers=[
            _shell(
                "cat /c/sub/file /s/pw /d/n; echo; stat -L -c %a /s/pw; stat -f -c %T /s; echo $N $PW $NODE; "
                "tr '\\0' ' ' < /proc/1/cmdline | grep -c 'hunter[2]'",
                envFrom=[{"configMapRef": {"name": "cm"}}],
                env=[
                    {"name": "N", "value": "$(n)"},
                    {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "s", "key": "pw"}}},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
                volumeMounts=[{"name": n, "mountPath": f"/{n}"} for n in "csd"],
            )
        ],
    )
    pod = await machine.until("p", lambda p: p.terminated)
    assert _log(machine, pod) == ["vhunter2p", "400", "tmpfs", "w hunter2 node-1", "0"]


async def test_a_container_cannot_write_what_the_kubelet_does(machine: Any) -> None:
    """Also where the mount says readOnly: false, and of a part of the volume; other volumes can be mounted in it."""
    await machine.client.create(CONFIG_MAPS, {"metadata": {"name": "cm"}, "data": {"k": "v"}}, "default")
    await machine.client.create(SECRETS, {"metadata": {"name": "s"}, "data": {"k": "aA=="}}, "default")
    downward = {"items": [{"path": "k", "fieldRef": {"fieldPath": "metadata.name"}}]}
    mounts = [{"name": name, "mountPath": f"/v/{name}", "readOnly": False} for name in "csdpe"]
    mounts += [{"name": "c", "mountPath": "/v/part", "subPath": "k"}, {"name": "e", "mountPath": "/v/c/inner"}]
    script = (
        "exec 2>&1; for v in c s d p; do touch /v/$v/new; rm /v/$v/k; done; touch /v/part; cat /v/part; "
        "touch /v/e/new && ls /v/c/inner"
    )
    await machine.pod(
        "p",
        restartPolicy="Never",
        volumes=[
            {"name": "c", "configMap": {"name": "cm"}},
            {"name": "s", "secret": {"secretName": "s"}},
            {"name": "d", "downwardAPI": downward},
            {"name": "p", "projected": {"sources": [{"configMap": {"name": "cm"}}]}},
            {"name": "e", "emptyDir": {}},
        ],
        containers=[_shell(script, volumeMounts=mounts)],
    )
    log = _log(machine, await machine.phase("p", "Succeeded"))
    rejected = [line for line in log if line.endswith("Read-only file system")]
    assert (len(rejected), log[-1]) == (9, "vnew"), log


async def test_volumes_where_real_manifests_mount_them(machine: Any) -> None:
    """An init container, a probe that joins the container, and a restart see the same."""
    await machine.client.create(CONFIG_MAPS, {"metadata": {"name": "cm"}, "data": {"index.html": "hello"}}, "default")
    html, data, token = "/usr/share/nginx/html", "/usr/share/elasticsearch/data", "/var/run/secrets/a"
    mounts: list[dict[str, Any]] = [
        {"name": "e", "mountPath": data},
        {"name": "s", "mountPath": f"{data}/nested/{'x' * 20}"},
    ]
    mounts += [{"name": "c", "mountPath": html, "readOnly": True}, {"name": "s", "mountPath": token, "readOnly": True}]
    await machine.client.create(SECRETS, {"metadata": {"name": "s"}, "data": {"pw": "aA=="}}, "default")
    await machine.pod(
        "p",
        securityContext={"runAsUser": 1000, "fsGroup": 2000},
        volumes=[
            {"name": "c", "configMap": {"name": "cm"}},
            {"name": "e", "emptyDir": {}},
            {"name": "s", "secret": {"secretName": "s"}},
        ],
        initContainers=[{**_shell(f"echo 1 > {data}/file"), "name": "i", "volumeMounts": mounts}],
        containers=[
            _shell(
                f"cat {html}/index.html {token}/pw; echo; test -e {data}/once && sleep 1000; touch {data}/once; exit 1",
                workingDir=data,
                volumeMounts=mounts,
                readinessProbe={"exec": {"command": ["/bin/cat", f"{html}/index.html", "file"]}, "periodSeconds": 1},
            )
        ],
    )
    pod = await machine.until("p", lambda p: any(s.restart_count and s.ready for s in p.status.container_statuses))
    assert _log(machine, pod) == _log(machine, pod, attempt=1) == ["helloh"]


async def test_a_subpath_cannot_leave_its_volume(machine: Any, eventually: Eventually) -> None:
    volumes = [{"name": "e", "emptyDir": {}}]
    await machine.pod(
        "maker",
        volumes=volumes,
        initContainers=[
            {
                **_shell("mkdir -p /e/in; ln -s in /e/good; ln -s /etc /e/bad"),
                "name": "i",
                "volumeMounts": [{"name": "e", "mountPath": "/e"}],
            }
        ],
        containers=[
            {
                **_shell("touch /g/made; sleep 100"),
                "name": n,
                "volumeMounts": [{"name": "e", "mountPath": "/g", "subPath": s}],
            }
            for n, s in (("good", "good"), ("bad", "bad"), ("new", "a/b"))
        ],
    )

    def settled(pod: Any) -> bool:
        states = {s.name: s.state for s in pod.status.container_statuses}
        return bool(states) and bool(states["good"].running and states["new"].running and states["bad"].waiting)

    pod = await machine.until("maker", settled)
    bad = next(s for s in pod.status.container_statuses if s.name == "bad").state.waiting
    assert bad["reason"] == "CreateContainerConfigError"
    assert "leads out of its volume" in bad["message"]
    await machine.client.delete(PODS, "maker", "default", grace_seconds=1)
    await machine.gone("maker")
    await eventually(lambda: machine.left() == [])


async def test_a_container_without_a_command_is_rejected(machine: Any) -> None:
    await machine.pod("p", containers=[{"name": "main", "image": "nginx"}])
    pod = await machine.until("p", lambda p: p.status.container_statuses and _state(p).waiting is not None)
    waiting = _state(pod).waiting
    assert waiting is not None
    assert "has no command: images are not pulled" in waiting["message"]
    assert pod.status.phase == "Pending"


async def test_a_command_that_the_machine_does_not_have_fails_with_what_to_do(machine: Any) -> None:
    await machine.pod(
        "p", containers=[{"name": "main", "image": "nginx", "command": ["no-such-program"]}], restartPolicy="Never"
    )
    pod = await machine.until("p", lambda p: p.status.phase == "Failed")
    ended = _state(pod).terminated
    assert ended is not None
    assert ended["message"].startswith('exec: "no-such-program": executable file not found in $PATH: ')


async def test_stop_ends_everything_and_the_next_start_goes_on(machine: Any) -> None:
    await machine.volume("a")
    await machine.pod(
        "p",
        volumes=[
            {"name": "data", "persistentVolumeClaim": {"claimName": "a"}},
            {"name": "e", "emptyDir": {}},
        ],
        containers=[
            _shell("ls /e; touch /e/kept; echo up; sleep 100", volumeMounts=[{"name": "e", "mountPath": "/e"}]),
        ],
    )
    pod = await machine.phase("p", "Running")
    await machine.until("p", lambda _: _log(machine, pod) == ["up"])
    await machine.stop()
    assert not processes.with_text(pod.metadata.uid)
    assert [m.target for m in mount.mounts() if m.target.startswith(str(machine.folder))] == []
    await machine.start()
    pod = await machine.until("p", lambda p: p.status.container_statuses[0].restart_count == 1)
    await machine.until("p", lambda _: _log(machine, pod, attempt=1) == ["kept", "up"])


async def _logs(machine: Any, **query: str) -> str:
    chunks = [chunk async for chunk in machine.kubelet.logs.read("default", "p", query)]
    return b"".join(chunks).decode()


async def test_logs_are_followed_to_the_end(machine: Any) -> None:
    await machine.pod(
        "p", restartPolicy="Never", containers=[_shell("for i in 1 2 3; do echo $i; sleep 0.1; done; printf x")]
    )
    await machine.phase("p", "Running")
    async with asyncio.timeout(60):
        assert await _logs(machine, follow="true") == "1\n2\n3\nx"
    assert await _logs(machine, tailLines="2") == "3\nx"
    assert await _logs(machine, limitBytes="3") == "1\n2"
    assert await _logs(machine, sinceSeconds="1000", stream="Stderr") == ""


async def test_logs_of_the_container_before(machine: Any) -> None:
    await machine.pod(
        "p",
        restartPolicy="OnFailure",
        containers=[
            _shell("cat /e/f && exit 0; echo was; touch /e/f; exit 1", volumeMounts=[{"name": "e", "mountPath": "/e"}])
        ],
        volumes=[{"name": "e", "emptyDir": {}}],
    )
    await machine.phase("p", "Succeeded")
    assert await _logs(machine, previous="true", stream="Stdout") == "was\n"
    assert await _logs(machine) == ""


async def test_a_container_that_nobody_noted_is_killed_and_started_anew(machine: Any, eventually: Eventually) -> None:
    await machine.pod("p", containers=[_shell("echo $$ up; sleep 1000")])
    pod = await machine.phase("p", "Running")
    uid = pod.metadata.uid
    old = processes.with_text(uid)
    await machine.kill()
    # As if killed after the process was made and before it was noted.
    (machine.root / f"pods/{uid}/containers/main/0/state.json").unlink()
    await machine.start()
    await eventually(lambda: not set(old) & set(processes.with_text(uid)))
    await eventually(lambda: processes.with_text(uid))
    await machine.until(
        "p", lambda p: p.status.container_statuses[0].container_id != pod.status.container_statuses[0].container_id
    )


async def test_a_container_says_why_it_ended(machine: Any) -> None:
    await machine.pod("p", restartPolicy="Never", containers=[_shell("printf because > /dev/termination-log; exit 1")])
    pod = await machine.phase("p", "Failed")
    terminated = _state(pod).terminated
    assert terminated is not None
    assert (terminated["message"], terminated["reason"], terminated["exitCode"]) == ("because", "Error", 1)


async def test_a_message_is_where_the_container_says_else_the_end_of_its_log(machine: Any) -> None:
    own = {"terminationMessagePath": "/var/run/why", "terminationMessagePolicy": "FallbackToLogsOnError"}
    containers = [
        {**_shell("echo log; printf because > /var/run/why; exit 1", **own), "name": "told"},
        {**_shell("seq 100; printf last; exit 1", **own), "name": "silent"},
        {**_shell("echo well", **own), "name": "well"},
        {**_shell("echo log; exit 1"), "name": "file"},
    ]
    await machine.pod("p", restartPolicy="Never", containers=containers)
    pod = await machine.phase("p", "Failed")
    messages = [(_state(pod, index).terminated or {}).get("message") for index in range(4)]
    assert messages == ["because", "".join(f"{number}\n" for number in range(22, 101)) + "last", None, None]


async def test_a_container_has_its_own_restart_policy_and_stop_signal(machine: Any) -> None:
    trap = "trap 'exit 7' USR1; echo up; while :; do sleep 0.05; done"
    containers = [
        {**_shell("exit 1"), "name": "once", "restartPolicy": "Never"},
        {**_shell(trap, lifecycle={"stopSignal": "SIGUSR1"}), "name": "other"},
    ]
    await machine.pod("p", containers=containers, terminationGracePeriodSeconds=30, os={"name": "linux"})
    pod = await machine.until("p", lambda p: p.status.container_statuses and _state(p).terminated is not None)
    assert (pod.status.phase, pod.status.container_statuses[0].restart_count) == ("Running", 0)
    await machine.until("p", lambda p: "up" in _log(machine, p, container="other"))
    (process,) = (run.process for run in machine.kubelet.workers.find("default", "p").containers.mains[1:])
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    assert process.ended.code == 7


async def test_a_pod_that_a_kubelet_does_not_admit_is_failed(machine: Any) -> None:
    sysctls = [{"name": "kernel.shm_rmid_forced", "value": "1"}]
    await machine.pod("p", containers=[_shell("echo ran")], securityContext={"sysctls": sysctls})
    pod = await machine.phase("p", "Failed")
    text = 'forbidden sysctl: "kernel.shm_rmid_forced" not allowlisted'
    assert (pod.status.reason, pod.status.message) == ("SysctlForbidden", f"Pod was rejected: {text}")
    assert pod.status.container_statuses == []
    assert (await machine.event("SysctlForbidden")).message == text
    await machine.restart()
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")


async def test_a_pod_ends_at_its_deadline(machine: Any) -> None:
    """Also when the deadline is set while it runs."""
    await machine.pod("p", containers=[_shell("trap 'exit 3' TERM; while :; do sleep 0.05; done")])
    await machine.phase("p", "Running")
    await machine.client.patch(PODS, "p", {"spec": {"activeDeadlineSeconds": 1}}, "default")
    pod = await machine.phase("p", "Failed")
    text = "Pod was active on the node longer than the specified deadline"
    assert (pod.status.reason, pod.status.message) == ("DeadlineExceeded", text)
    assert (_state(pod).terminated or {})["exitCode"] == 3
    assert (await machine.event("DeadlineExceeded")).type == "Normal"


async def test_names_of_a_pod_are_in_its_containers(machine: Any) -> None:
    await machine.pod(
        "p",
        restartPolicy="Never",
        subdomain="web",
        setHostnameAsFQDN=True,
        hostAliases=[{"ip": "192.0.2.7", "hostnames": ["db"]}],
        dnsPolicy="None",
        dnsConfig={"nameservers": ["192.0.2.9"]},
        containers=[_shell("hostname; echo $HOSTNAME; tail -n 1 /etc/hosts; cat /etc/resolv.conf")],
    )
    log = _log(machine, await machine.phase("p", "Succeeded"))
    assert log == ["p.web.default.svc.cluster.local"] * 2 + ["192.0.2.7\tdb", "nameserver 192.0.2.9"]


async def test_a_root_that_cannot_be_made_is_told(machine: Any) -> None:
    mounts = [{"name": "e", "mountPath": "/etc/hosts"}]
    await machine.pod("p", volumes=[{"name": "e", "emptyDir": {}}], containers=[_shell("true", volumeMounts=mounts)])
    pod = await machine.until("p", lambda p: p.status.container_statuses and _state(p).waiting is not None)
    waiting = _state(pod).waiting
    assert waiting is not None
    assert waiting["message"] == "mountPath '/etc/hosts': path '/etc/hosts' is no folder; choose another"


async def test_a_program_that_is_not_there_ends_the_container(machine: Any) -> None:
    await machine.pod(
        "p", restartPolicy="Never", containers=[{"name": "main", "image": "i", "command": ["/no/program"]}]
    )
    pod = await machine.phase("p", "Failed")
    terminated = _state(pod).terminated
    assert terminated is not None
    assert terminated["exitCode"] == 127
    assert 'exec: "/no/program": no such file or directory' in "".join(_log(machine, pod))


async def test_logs_between_two_starts(machine: Any) -> None:
    await machine.pod("p", containers=[_shell("echo once; exit 3")])
    await machine.until(
        "p", lambda p: ((p.status.container_statuses and _state(p).waiting) or {}).get("reason") == "CrashLoopBackOff"
    )
    assert await _logs(machine, previous="true") == "once\n"
    assert await _logs(machine, follow="true") == "once\n"


async def test_a_state_emptied_by_a_power_cut_is_a_container_that_never_ran(machine: Any) -> None:
    await machine.pod("p", terminationGracePeriodSeconds=0, containers=[_shell("echo again; sleep 100")])
    pod = await machine.phase("p", "Running")
    await machine.kill()
    state = machine.root / f"pods/{pod.metadata.uid}/containers/main/0/state.json"
    state.write_bytes(b"")
    await machine.start()
    containers = state.parents[1]
    await machine.until(
        "p", lambda p: _restarts(p) == 1 and any(f.stat().st_size for f in containers.glob("*/state.json"))
    )
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")


def _restarts(pod: Any) -> int:
    return sum(status.restart_count for status in pod.status.container_statuses)


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN], ids=["as usual", "started by nohup"])
async def test_what_the_machine_lacks_is_named(machine: Any, handler: signal.Handlers) -> None:
    machine.kubelet.runtime.program = "/nowhere/bwrap"
    before = signal.signal(signal.SIGHUP, handler)
    try:
        await machine.pod("p", containers=[_shell("true")])
        event = await machine.event("Failed")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert event.message == "Error: cannot start container main: this machine lacks /nowhere/bwrap (package bubblewrap)"


async def test_after_a_restart_without_its_driver_a_pod_is_not_ready(machine: Any) -> None:
    await machine.volume("a")
    await machine.pod(
        "p",
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}],
        containers=[_shell("sleep 1000", volumeMounts=[{"name": "data", "mountPath": "/data"}])],
    )
    await machine.phase("p", "Running")
    await machine.stop()
    await machine.endpoint.stop()

    await machine.start()

    def unready(pod: Any) -> bool:
        ready = [c.status for c in pod.status.conditions if c.type == "Ready"]
        return ready == ["False"] and not pod.status.container_statuses[0].ready

    await machine.until("p", unready)
    await machine.endpoint.start()
    await machine.until("p", lambda p: p.status.container_statuses[0].ready)


async def test_signals_are_at_their_defaults_in_a_box_that_ignores_some(machine: Any) -> None:
    """As one that nohup has started in the background of a script."""
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        script = "grep -E 'SigIgn|SigBlk' /proc/self/status; env | grep -c LC_"
        await machine.pod("p", restartPolicy="Never", containers=[_shell(script)])
        pod = await machine.phase("p", "Failed")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [without_threads(line) for line in _log(machine, pod)] == [
        f"SigBlk:\t{'0' * 16}",
        f"SigIgn:\t{'0' * 16}",
        "0",
    ]

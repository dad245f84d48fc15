"""A child that speaks the same lines as the one with Cinder's library: volumes are files in a folder, devices loop devices.

storage_child.py FOLDER. What the storage has is in FOLDER/state.json, so it outlives a kill. FOLDER/fault.json makes one
request fail: `{"call": ..., "when": "before" | "half" | "after", "do": "kill" | "hang" | "garbage" | "full" | "away"}`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GI = 1 << 30
SECRET = "chap-password-1"


class Rejected(Exception):
    """kind, text."""


class Fake:
    def __init__(self, folder: Path) -> None:
        self.folder, self.call = folder, ""
        file = folder / "state.json"
        self.state: dict[str, Any] = {"free": 100, "volumes": {}, "snapshots": {}}
        if file.exists():
            self.state = json.loads(file.read_text())
        self.volumes, self.snapshots = self.state["volumes"], self.state["snapshots"]

    def save(self) -> None:
        (self.folder / "state.new").write_text(json.dumps(self.state))
        (self.folder / "state.new").rename(self.folder / "state.json")

    def fault(self, when: str) -> None:
        file = self.folder / "fault.json"
        if not file.exists() or (fault := json.loads(file.read_text()))["call"] != self.call or fault["when"] != when:
            return
        file.unlink()
        if fault["do"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault["do"] == "hang":
            (self.folder / "grandchild").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
            time.sleep(1000)
        elif fault["do"] == "garbage":
            print(
                "Traceback (most recent call last):\n[1]\n{\n\0\xff", json.dumps({"id": 0, "result": "other"}), sep="\n"
            )
            print("x" * 100_000, flush=True)
        else:
            raise Rejected(
                {"full": "full", "away": "failed", "unfinished": "unfinished"}[fault["do"]],
                f"login failed with {SECRET}",
            )

    def answer(self, call: str, arguments: dict[str, Any]) -> Any:
        self.call = call
        self.fault("before")
        result = getattr(self, call.replace("-", "_"))(**arguments)
        self.save()
        self.fault("after")
        return result

    def half(self) -> None:
        self.save()
        self.fault("half")

    def setup(self, state: str, backends: Any = ()) -> None:
        Path(state).mkdir(parents=True, exist_ok=True)

    def get(self, name: str) -> Any:
        found = self.volumes.get(name)
        return found if found and found["done"] else None

    def needed(self, name: str) -> Any:
        if (found := self.get(name)) is None:
            raise Rejected("not-found", f"volume {name} does not exist")
        return found

    def create(self, name: str, size: int, source: str, backend: str, **about: Any) -> Any:
        assert name not in self.volumes or not self.volumes[name]["done"], "found by its name before"
        if self.state["free"] < size:
            raise Rejected("full", "insufficient free space")
        volume = {"name": name, "size": size, "backend": backend, "source": source, "nodes": [], "done": False}
        self.volumes[name] = volume | {"about": about}
        kind, _, of = source.partition("/")
        disk = self.folder / name
        disk.write_bytes(b"")
        if kind:
            subprocess.run(["cp", "--sparse=always", self.folder / of, disk], check=True)
        os.truncate(disk, size * GI)
        self.half()
        self.volumes[name]["done"] = True
        self.state["free"] -= size
        return self.volumes[name]

    def delete(self, name: str) -> None:
        if (found := self.volumes.get(name)) is None:
            return
        if found["nodes"] or any(snapshot["volume"] == name for snapshot in self.snapshots.values()):
            raise Rejected("in-use", f"volume {name} is attached or has snapshots")
        (self.folder / name).unlink(missing_ok=True)
        self.half()
        self.state["free"] += self.volumes.pop(name)["size"] if found["done"] else 0

    def extend(self, name: str, size: int) -> Any:
        volume = self.needed(name)
        os.truncate(self.folder / name, size * GI)
        self.half()
        self.state["free"] -= size - volume["size"]
        volume["size"] = size
        return volume

    def connect(self, name: str, connector: dict[str, Any]) -> Any:
        volume = self.needed(name)
        if set(volume["nodes"]) - {connector["node"]}:
            raise Rejected("in-use", f"volume {name} is attached to {volume['nodes'][0]}")
        self.half()
        volume["nodes"] = [connector["node"]]
        return {"driver_volume_type": "file", "data": {"volume": name, "auth_password": SECRET}}

    def disconnect(self, name: str, node: str) -> None:
        if (volume := self.volumes.get(name)) is not None:
            self.half()
            volume["nodes"] = [] if node in ("", *volume["nodes"]) else volume["nodes"]

    def list_volumes(self) -> Any:
        return [found for found in self.volumes.values() if found["done"]]

    def stats(self, backend: str) -> Any:
        return {"pool-1": self.state.get("word", self.state["free"]), "pool-2": 7.9}

    def get_snapshot(self, name: str) -> Any:
        return self.snapshots.get(name)

    def snapshot(self, name: str, volume: str) -> Any:
        of = self.needed(volume)
        subprocess.run(["cp", "--sparse=always", self.folder / volume, self.folder / name], check=True)
        self.half()
        return self.snapshots.setdefault(name, {"name": name, "volume": volume, "size": of["size"], "created": 1e9})

    def delete_snapshot(self, name: str) -> None:
        self.half()
        self.snapshots.pop(name, None)

    def list_snapshots(self) -> Any:
        return list(self.snapshots.values())

    def properties(self) -> Any:
        return {"host": "node-1", "ip": "10.0.0.1", "initiator": "iqn.2026-01.com.example:1", "multipath": False}

    def _loops(self, connection: Any) -> list[str]:
        found = subprocess.run(
            ["losetup", "-nO", "NAME", "-j", self.folder / connection["data"]["volume"]], capture_output=True, text=True
        )
        return found.stdout.split()

    def attach(self, connection: Any) -> Any:
        if not self._loops(connection):
            subprocess.run(["losetup", "-f", self.folder / connection["data"]["volume"]], check=True)
        self.half()
        return {"type": "block", "path": self._loops(connection)[0]}

    def detach(self, connection: Any, device: Any) -> None:
        for path in self._loops(connection):
            subprocess.run(["losetup", "-d", path], check=True)
        self.half()

    def grow(self, connection: Any) -> None:
        for path in self._loops(connection):
            subprocess.run(["losetup", "-c", path], check=True)


def main() -> None:
    fake = Fake(Path(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        number = request.pop("id")
        try:
            answer = {"result": fake.answer(request.pop("call"), request)}
        except Rejected as rejected:
            answer = {"error": rejected.args[0], "text": rejected.args[1]}
        print(json.dumps({"id": number, **answer}), flush=True)


if __name__ == "__main__":
    main()

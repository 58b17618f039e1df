"""A kubelet of the tests: it takes each pod of a namespace, runs it (`pods`), and says how it goes.

It binds pods to its two nodes in turn, as there is no scheduler.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.error import HTTPError

from tests.kubernetes.pods import Image, begin
from tests.kubernetes.server import ApiServer

NODES: Final = ("node-a", "node-b")
_PERIOD: Final = 0.1
_KILLED: Final = 128 + signal.SIGKILL


class Kubelet:
    """Runs the pods of one namespace, in a thread of its own.

    Args:
        server: the API.
        namespace: whose pods it runs.
        image: what each image is here.
        folder: for the pods' logs.
    """

    def __init__(self, server: ApiServer, namespace: str, image: Image, folder: Path) -> None:
        self._server, self._image, self._folder = server, image, folder
        self._namespace = f"/api/v1/namespaces/{namespace}"
        self._nodes = itertools.cycle(NODES)
        self._running: dict[str, tuple[dict[str, Any], subprocess.Popen[bytes]]] = {}
        self._reasons: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: Exception | None = None
        self.nodes: dict[str, str] = {}
        """The node of each pod that ever ran, by the pod's name."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=30)
        for _, process in self._running.values():
            process.kill()
            process.wait()

    def pods(self) -> list[dict[str, Any]]:
        """The namespace's pods, as the API has them."""
        return list(self._server.call("GET", f"{self._namespace}/pods")["items"])

    def kill(self, name: str, reason: str = "OOMKilled") -> None:
        """Kill all processes of a pod, as a node does that has no memory left.

        Args:
            name: the pod's.
            reason: what its status says then.
        """
        self._reasons[name] = reason
        self._running[name][1].kill()

    def evict(self, name: str) -> None:
        """Ask the API to evict a pod, as who drains a node does.

        Args:
            name: the pod's.
        """
        asked = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self._server.call("POST", f"{self._namespace}/pods/{name}/eviction", asked)

    def log(self) -> str:
        """The ends of the pods' logs."""
        return "\n".join(
            f"{path.parent.name}: {path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self._folder.glob("*/log"))
        )

    # -- how ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended.wait(_PERIOD):
                for pod in self.pods():
                    with suppress(HTTPError):  # changed meanwhile: the next look sees it
                        self._look_at(pod)
        except Exception as error:  # noqa: BLE001 (a test asks for it)
            self.error = error

    def _look_at(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if pod["metadata"].get("deletionTimestamp"):
            self._remove(name)
        elif name in self._running:
            self._watch(name)
        elif name not in self.nodes and pod["status"]["phase"] == "Pending":
            self._take(pod)

    def _take(self, pod: dict[str, Any]) -> None:
        name, node = pod["metadata"]["name"], next(self._nodes)
        target = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
        target["target"] = {"apiVersion": "v1", "kind": "Node", "name": node}
        self._server.call("POST", f"{self._namespace}/pods/{name}/binding", target)
        self.nodes[name] = node
        self._running[name] = (pod, begin(pod, self._image, self._read, self._folder / name))
        self._say(pod, "Running", {"running": {"startedAt": _now()}})

    def _watch(self, name: str) -> None:
        pod, process = self._running[name]
        code = process.poll()
        if code is not None:
            del self._running[name]
            code = _KILLED if code < 0 else code
            reason = self._reasons.get(name, "Completed" if code == 0 else "Error")
            state = {"exitCode": code, "reason": reason, "finishedAt": _now()}
            self._say(pod, "Succeeded" if code == 0 else "Failed", {"terminated": state})

    def _remove(self, name: str) -> None:
        """End a pod that is deleted: what runs is asked to end, and killed after five seconds."""
        if name in self._running:
            process = self._running.pop(name)[1]
            _ask_to_end(process)
            give_up = time.monotonic() + 5
            while process.poll() is None and time.monotonic() < give_up:
                time.sleep(0.05)
            process.kill()
            process.wait()
        now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        self._server.call("DELETE", f"{self._namespace}/pods/{name}", now)

    def _say(self, pod: dict[str, Any], phase: str, state: dict[str, Any]) -> None:
        (container,) = pod["spec"]["containers"]
        status = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        said = {**status, "ready": "running" in state, "state": state}
        path = f"{self._namespace}/pods/{pod['metadata']['name']}/status"
        self._server.call("PATCH", path, {"status": {"phase": phase, "containerStatuses": [said]}})

    def _read(self, kind: str, name: str) -> dict[str, Any]:
        return dict(self._server.call("GET", f"{self._namespace}/{kind}/{name}"))


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    done = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
    )
    for line in done.stdout.split():
        subprocess.run(["kill", "-TERM", line], check=False, capture_output=True)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

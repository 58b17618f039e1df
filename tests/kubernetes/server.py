"""Kubernetes' own API server with its etcd, built by Go from their modules, on loopback.

Nothing else of a cluster runs: no scheduler, no controllers.  `kubelet` binds pods and runs them.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import ssl
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from slotlake.infra.launch.folders import home
from slotlake.infra.local.process import end_group, free_port, start
from tests.e2e.certificates import Authority
from tests.go_programs import EMPTY_MODULE, run_go

VERSION: Final = "v1.34.4"
_PACKAGES: Final = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "etcd": "go.etcd.io/etcd/server/v3",  # of the version that Kubernetes' own module asks for
}
_START_SECONDS_MAX: Final = 90.0
_ADMIN: Final = "system:masters"


def programs() -> Path:
    """Return the folder with the programs; made once; without Go the test is skipped.

    Kubernetes' module replaces its parts by folders of its own tree, so `go install` refuses it.  A module
    that requires it, and replaces the same parts by their published versions, builds it.
    """
    folder = home() / "go" / f"kubernetes-{VERSION}"
    if all((folder / name).is_file() for name in _PACKAGES):
        return folder
    if shutil.which("go") is None:
        pytest.skip("no Go is here to build Kubernetes' API server")
    module = folder / "module"
    module.mkdir(parents=True, exist_ok=True)
    (module / "go.mod").write_text(EMPTY_MODULE)
    (module / "go.mod").write_text(_module(run_go(module, "mod", "download", "-json", _named())))
    for name, package in _PACKAGES.items():
        words = ("-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", str(folder / name), package)
        run_go(module, "build", *words)
    return folder


def _named() -> str:
    return f"k8s.io/kubernetes@{VERSION}"


def _module(downloaded: str) -> str:
    """Return the go.mod that requires Kubernetes, with its parts in their published versions."""
    text = Path(json.loads(downloaded)["GoMod"]).read_text()
    parts = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", text, re.MULTILINE)
    own = VERSION.replace("v1.", "v0.", 1)
    lines = "".join(f"\t{part} => {part} {own}\n" for part in parts)
    (language,) = re.findall(r"^go (\S+)$", text, re.MULTILINE)
    return (
        f"module slotlake/tests\n\ngo {language}\n\nrequire k8s.io/kubernetes {VERSION}\n\n"
        f"replace (\n{lines})\n"
    )


class ApiServer:
    """A Kubernetes API server, with nothing in it.

    Args:
        folder: its files.
        users: names of users without any right; each gets a token, as `admin` has one with all rights.
    """

    def __init__(self, folder: Path, users: tuple[str, ...] = ()) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._programs = programs()
        self._tokens = {user: secrets.token_urlsafe(24) for user in ("admin", *users)}
        self._authority = Authority(folder / "certificates", "slotlake test Kubernetes")
        self._running = ExitStack()
        self.port = free_port()
        trusted = ssl.create_default_context(cafile=self._authority.root)
        self._opener = build_opener(ProxyHandler({}), HTTPSHandler(context=trusted))

    def __enter__(self) -> Self:
        client, peer = free_port(), free_port()
        at, other = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        etcd = [
            f"--data-dir={self._folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--initial-cluster=default={other}",
        ]
        etcd += [f"--listen-client-urls={at}", f"--advertise-client-urls={at}"]
        etcd += [f"--listen-peer-urls={other}", f"--initial-advertise-peer-urls={other}"]
        self._start("etcd", *etcd)
        self._start("kube-apiserver", f"--etcd-servers={at}", *self._options())
        self._wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def call(self, method: str, path: str, body: Any = None, *, patch: str = "merge-patch") -> Any:
        """Call the API as `admin`; return its answer.

        Args:
            method: the HTTP method.
            path: with its query.
            body: what is sent as JSON.
            patch: the kind of a PATCH.
        """
        data = None if body is None else json.dumps(body).encode()
        kind = f"application/{patch}+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": kind, "Authorization": f"Bearer {self._tokens['admin']}"}
        url = f"https://127.0.0.1:{self.port}{path}"
        with self._opener.open(Request(url, data, headers, method=method), timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text[:1] == b"{" else text.decode()

    def refusal(self, document: Mapping[str, Any], namespace: str) -> str:
        """Return why the API would not take an object, unknown fields too; empty: it would.

        Args:
            document: the object; nothing is made.
            namespace: where it would be.
        """
        version, kind = document["apiVersion"], document["kind"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        known = self.call("GET", group)["resources"]
        names = [each["name"] for each in known if each["kind"] == kind and "/" not in each["name"]]
        if not names:
            return f"no {kind} in {version}"
        path = f"{group}/namespaces/{namespace}/{names[0]}?dryRun=All&fieldValidation=Strict"
        try:
            self.call("POST", path, document)
        except HTTPError as refused:
            return str(json.loads(refused.read())["message"])
        return ""

    def kubeconfig(self, user: str, namespace: str) -> Path:
        """Write a kubeconfig of a user, and return its path.

        Args:
            user: one of those that were named.
            namespace: the one that is meant where none is said.
        """
        server = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority": str(self._authority.root),
        }
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [
                {"name": "test", "context": {"cluster": "test", "user": user, "namespace": namespace}}
            ],
        }
        path = self._folder / f"{user}.kubeconfig"
        path.write_text(json.dumps(content))
        return path

    # -- how ----------------------------------------------------------------------------------------------

    def _options(self) -> list[str]:
        certificate, key = self._authority.issue("kube-apiserver", "127.0.0.1")
        signing, tokens = self._folder / "signing.pem", self._folder / "tokens.csv"
        signing.write_bytes(_private_key())
        groups = {user: _ADMIN if user == "admin" else "" for user in self._tokens}
        tokens.write_text(
            "".join(f'{token},{user},{user},"{groups[user]}"\n' for user, token in self._tokens.items())
        )
        return [
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--cert-dir={self._folder}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={signing}",
            f"--service-account-signing-key-file={signing}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",
        ]

    def _start(self, name: str, *options: str) -> None:
        log = self._folder / f"{name}.log"
        process = start([str(self._programs / name), *options], log)
        self._running.callback(process.wait)
        self._running.callback(end_group, process.pid, seconds_max=5.0)

    def _wait_ready(self) -> None:
        give_up = time.monotonic() + _START_SECONDS_MAX
        while True:
            try:
                if self.call("GET", "/readyz") == "ok":
                    return
            except (OSError, HTTPError):
                if time.monotonic() > give_up:
                    logs = [(self._folder / f"{name}.log").read_text()[-2000:] for name in _PACKAGES]
                    pytest.fail("\n".join(["Kubernetes' API server does not answer", *logs]))
            time.sleep(0.1)


def _private_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )

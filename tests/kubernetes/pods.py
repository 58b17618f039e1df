"""A pod as a process: its own mount, PID and host name namespace, its volumes, its user, no capability.

Its image is a root of its own, read-only: the system's programs, the environment of the tests, the checkout.
Nothing that another pod wrote is in it, and what it writes itself goes with it.
"""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slotlake.infra.launch.folders import home
from tests.sources import ROOT

_SYSTEM: Final = ("/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc")
_SETTINGS: Final = Path("/etc")
_NEW_ROOT: Final = Path("/mnt")
_DEVICES: Final = ("null", "zero", "random", "urandom")

Read = Callable[[str, str], dict[str, Any]]
"""Reads an object of the pod's namespace: kind (`configmaps`, `secrets`) and name."""


@dataclass(frozen=True)
class Image:
    """What a container has before its volumes are mounted.

    Args:
        environment: its variables.
        root: its root; without it, one is made of `folders`.
        entrypoint: what begins a command that names none.
        folders: folders of this machine that are seen in it, read-only.
        users: the file that is its /etc/passwd.
    """

    environment: Mapping[str, str]
    root: Path | None = None
    entrypoint: Sequence[str] = ()
    folders: Sequence[Path] = ()
    users: Path | None = None

    @classmethod
    def of_this_machine(cls, folder: Path, user: int, *packages: Path) -> Image:
        """Make an image of what the tests run with.

        Args:
            folder: for the files that it needs besides.
            user: a user without a name here, who gets one.
            packages: folders with more packages of Python.
        """
        kernels = folder / "numba"
        if (compiled := home() / "numba").is_dir():
            shutil.copytree(compiled, kernels, dirs_exist_ok=True)
        kernels.mkdir(exist_ok=True)
        for path in (kernels, *kernels.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        users = folder / "passwd"
        users.write_text(f"{Path('/etc/passwd').read_text()}pod:x:{user}:0::/tmp:/bin/sh\n")
        seen = {Path(name) for name in _SYSTEM if Path(name).exists()}
        seen |= {Path(sys.prefix), Path(sys.base_prefix), ROOT, *packages}
        whole = {
            path for path in seen if not any(path != other and path.is_relative_to(other) for other in seen)
        }
        environment = {
            "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT, *packages))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_DIR": str(kernels),
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
        }
        return cls(environment, folders=sorted({*whole, kernels}), users=users)


def pod_of(
    words: Sequence[str],
    user: tuple[int, int],
    mounts: Mapping[str, Path | None],
    variables: Mapping[str, str],
    **container: Any,
) -> dict[str, Any]:
    """Return a pod of one container with a read-only root.

    Args:
        words: its command, after the image's entry point.
        user: its user and group.
        mounts: the folder, or file, of this machine that is seen at a path; None: a folder of its own.
        variables: of its environment.
        container: more of the container.
    """
    volumes = [
        {"name": str(number), **({"emptyDir": {}} if folder is None else {"hostPath": {"path": str(folder)}})}
        for number, folder in enumerate(mounts.values())
    ]
    mounted = [{"name": str(number), "mountPath": path} for number, path in enumerate(mounts)]
    env = [{"name": name, "value": value} for name, value in variables.items()]
    own = {"name": "base", "args": list(words), "env": env, "volumeMounts": mounted, **container}
    rules = {"runAsUser": user[0], "runAsGroup": user[1], "readOnlyRootFilesystem": True}
    return {
        "metadata": {"name": "container"},
        "spec": {"securityContext": rules, "containers": [own], "volumes": volumes},
    }


def nothing(kind: str, name: str) -> dict[str, Any]:
    """Read for a pod that names no object.

    Args:
        kind: of the object.
        name: the object's.
    """
    raise AssertionError(f"no {kind} {name} is here")


def begin(pod: Mapping[str, Any], image: Image, read: Read, folder: Path) -> subprocess.Popen[bytes]:
    """Start a pod's only container; when the process is killed, all of the pod is.

    Args:
        pod: the object of the API.
        image: what each image is here.
        read: gives the objects that it names.
        folder: for the content of its ConfigMaps and Secrets, and its `log`.
    """
    folder.mkdir(parents=True)
    (container,) = pod["spec"]["containers"]
    variables = {**image.environment, **dict(_variables(container, read))}
    rules = {**pod["spec"].get("securityContext", {}), **container.get("securityContext", {})}
    lines = [*_root(image), *_volumes(pod["spec"].get("volumes", ()), container, read, folder)]
    if rules.get("readOnlyRootFilesystem"):
        lines.append(f"mount -o remount,bind,ro {_NEW_ROOT}")
    identity = f"setpriv --reuid={rules['runAsUser']} --regid={rules.get('runAsGroup', 0)} --clear-groups"
    # A change of the user ends what --kill-child asked for, so it is asked for again.
    identity += " --inh-caps=-all --bounding-set=-all --no-new-privs --pdeathsig=KILL"
    words = shlex.join([*(container.get("command") or image.entrypoint), *container["args"]])
    given = shlex.join(f"{name}={value}" for name, value in variables.items())
    inside = f"cd {container.get('workingDir', '/')} && exec env -i {given} {words}"
    lines += [f"hostname {shlex.quote(pod['metadata']['name'])}"]
    lines += [f"exec chroot {_NEW_ROOT} {identity} sh -c {shlex.quote(inside)}"]
    namespaces = ["unshare", "-m", "-p", "-u", "--fork", "--kill-child", "--propagation", "private"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*namespaces, "sh", "-c", "set -e\n" + "\n".join(lines)], stdout=log, stderr=log
        )


def _root(image: Image) -> Iterator[str]:
    """The image's root, or a new one with its folders; the rest of this machine is not in it."""
    if image.root is not None:
        yield f"mount --bind {shlex.quote(str(image.root))} {_NEW_ROOT}"
        yield f"touch {_NEW_ROOT}/etc/hosts && mount --bind /etc/hosts {_NEW_ROOT}/etc/hosts"
    else:
        yield f"mount -t tmpfs -o mode=755,size=64m none {_NEW_ROOT}"
    for here in image.folders:
        place = shlex.quote(f"{_NEW_ROOT}{here}")
        if here.is_symlink():
            yield f"ln -s {shlex.quote(str(here.readlink()))} {place}"
            continue
        if here == _SETTINGS:  # a volume may be in it
            yield f"cp -a {here} {place}"
            continue
        yield f"mkdir -p {place} && mount --bind {shlex.quote(str(here))} {place}"
        yield f"mount -o remount,bind,ro {place}"
    if image.users is not None:
        yield f"mount --bind {shlex.quote(str(image.users))} {_NEW_ROOT}/etc/passwd"
    yield f"mkdir -p {_NEW_ROOT}/proc {_NEW_ROOT}/dev && mount -t proc none {_NEW_ROOT}/proc"
    yield f"mount -t tmpfs -o mode=755,size=1m none {_NEW_ROOT}/dev"
    for name in _DEVICES:
        yield f"touch {_NEW_ROOT}/dev/{name} && mount --bind /dev/{name} {_NEW_ROOT}/dev/{name}"
    yield f"mkdir -m 1777 {_NEW_ROOT}/dev/shm && ln -s /proc/self/fd {_NEW_ROOT}/dev/fd"


def _volumes(
    volumes: Sequence[Mapping[str, Any]], container: Mapping[str, Any], read: Read, folder: Path
) -> Iterator[str]:
    named = {volume["name"]: volume for volume in volumes}
    for mount in container.get("volumeMounts", ()):
        volume = named[mount["name"]]
        place = shlex.quote(f"{_NEW_ROOT}{mount['mountPath']}")
        if "emptyDir" in volume:
            yield f"mkdir -p {place} && mount -t tmpfs -o mode=1777,size=2g none {place}"
            continue
        if "hostPath" in volume:
            here = Path(volume["hostPath"]["path"])
            made = "touch" if here.is_file() else "mkdir -p"
            yield f"{made} {place} && mount --bind {shlex.quote(str(here))} {place}"
            continue
        content = folder / mount["name"]
        content.mkdir()
        for name, data in _content(volume, read).items():
            (content / name).write_bytes(data)
        yield f"mkdir -p {place} && mount --bind {shlex.quote(str(content))} {place}"
        yield f"mount -o remount,bind,ro {place}"


def _content(volume: Mapping[str, Any], read: Read) -> dict[str, bytes]:
    if "configMap" in volume:
        data = read("configmaps", volume["configMap"]["name"])["data"]
        return {name: text.encode() for name, text in data.items()}
    data = read("secrets", volume["secret"]["secretName"])["data"]
    return {name: base64.b64decode(text) for name, text in data.items()}


def _variables(container: Mapping[str, Any], read: Read) -> Iterator[tuple[str, str]]:
    for source in container.get("envFrom", ()):
        data = read("secrets", source["secretRef"]["name"])["data"]
        yield from ((name, base64.b64decode(text).decode()) for name, text in data.items())
    for variable in container.get("env", ()):
        if "valueFrom" in variable:
            wanted = variable["valueFrom"]["secretKeyRef"]
            text = read("secrets", wanted["name"])["data"][wanted["key"]]
            yield variable["name"], base64.b64decode(text).decode()
        else:
            yield variable["name"], variable.get("value", "")

"""Chooses, from the lock file, the packages that an image needs: slotlake's own dependencies and some extras.

The lock file is for everybody: it has Airflow and the tests' tools too.  uv wrote behind each package which
others ask for it (``# via``).  Following these lines from the names in pyproject.toml gives a lock file of
fewer packages, in the same versions, with the same hashes.

``python -m slotlake.infra.launch.locked [--extra NAME]… [PACKAGE…]`` prints it.  With ``--beyond FILE`` it
prints what another lock file has that this one lacks: an image may have more (infra/deploy/executors.in).
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from slotlake.infra.launch.environment import REQUIREMENTS
from slotlake.infra.launch.errors import LaunchError
from slotlake.infra.launch.folders import CHECKOUT

_PACKAGE = re.compile(r"^([a-z0-9][a-z0-9._-]*)==", re.MULTILINE)
_NAME = re.compile(r"^[A-Za-z0-9._-]+")
_EXTRA = "--extra"


def locked(extras: Sequence[str] | None = (), packages: Sequence[str] = (), *, alone: bool = False) -> str:
    """Return the part of the lock file that has what slotlake needs.

    Args:
        extras: of pyproject.toml, as ``airflow``; None: without slotlake's own dependencies.
        packages: more packages of the lock file, with what they need.
        alone: only ``packages``, without slotlake's own dependencies and without what they need.

    Raises:
        LaunchError: there is no such extra, or the lock file lacks a package.
    """
    entries = _entries(REQUIREMENTS.read_text())
    users = {} if alone else {name: _users(lines) for name, lines in entries.items()}
    wanted = {*(() if alone or extras is None else _declared(extras)), *map(_normal, packages)}
    if missing := sorted(wanted - entries.keys()):
        raise LaunchError(f"the lock file does not have {', '.join(missing)}", where=str(REQUIREMENTS))
    grown = 0
    while grown != len(wanted):
        grown = len(wanted)
        wanted |= {name for name, asking in users.items() if asking & wanted}
    return "".join(entries[name] for name in sorted(wanted))


def beyond(path: Path) -> str:
    """Return the part of another lock file whose packages the lock file lacks.

    Args:
        path: of that file, compiled with the lock file's versions as constraints.
    """
    known = _entries(REQUIREMENTS.read_text())
    return "".join(lines for name, lines in _entries(path.read_text()).items() if name not in known)


def _entries(text: str) -> dict[str, str]:
    """Return the lines of each package of a lock file; one for some versions of Python may have several."""
    parts = _PACKAGE.split(text)[1:]
    entries: dict[str, str] = {}
    for name, rest in zip(parts[::2], parts[1::2], strict=True):
        entries[name] = f"{entries.get(name, '')}{name}=={rest}"
    return entries


def _users(lines: str) -> set[str]:
    """Return the packages that ask for the package of these lines."""
    notes = (note.strip() for note in re.findall(r"^    #(?: +via)?(.*)$", lines, re.MULTILINE))
    return {note for note in notes if note and not note.startswith("-r")}


def _declared(extras: Iterable[str]) -> set[str]:
    """Return the names that pyproject.toml has as slotlake's dependencies, and in extras."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"]]
    for extra in extras:
        if extra not in project["optional-dependencies"]:
            known = ", ".join(sorted(project["optional-dependencies"]))
            raise LaunchError(f"there is no extra {extra!r}", way_out=f"name one of {known}")
        lists.append(project["optional-dependencies"][extra])
    names = {match[0] for each in lists for line in each if (match := _NAME.match(line))}
    return {_normal(name) for name in names} - {"slotlake"}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: Sequence[str]) -> int:
    """Print the chosen part of the lock file; return the exit code."""
    words, extras = list(arguments), []
    while _EXTRA in words:
        at = words.index(_EXTRA)
        extras += words[at + 1 : at + 2]
        del words[at : at + 2]
    alone = "--only" in words
    try:
        if words[:1] == ["--beyond"]:
            print(beyond(Path(words[1])), end="")
            return 0
        print(locked(extras, [word for word in words if word != "--only"], alone=alone), end="")
    except LaunchError as error:
        print(f"slotlake: {error}", file=sys.stderr)
        return 10
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

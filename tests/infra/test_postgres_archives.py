"""An archive is unpacked alike by a Python with extraction filters (3.11.4) and by one without."""

from __future__ import annotations

import io
import stat
import tarfile
from pathlib import Path

import pytest

from slotlake.decoder.errors import SetupError
from slotlake.infra.local.postgres_archives import _extract

LINKS = {"lib/libpq.so": "libpq.so.5", "bin/postmaster": "postgres"}


def _archive(*extra: tarfile.TarInfo) -> tarfile.TarFile:
    """As a stream, as PostgreSQL's are read: two files, two links, of an owner that is not here."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as made:
        for name, mode in (("bin/postgres", 0o777), ("lib/libpq.so.5", 0o644)):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.uid, member.uname = 4, mode, 4242, "nobody-here"
            made.addfile(member, io.BytesIO(b"text"))
        for name, target in LINKS.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            made.addfile(member)
        for member in extra:
            made.addfile(member)
    content.seek(0)
    return tarfile.open(fileobj=content, mode="r|xz")


def _seen(folder: Path) -> dict[str, object]:
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return {
        str(path.relative_to(folder)): (
            path.read_bytes(),
            path.is_symlink() or stat.S_IMODE(path.stat().st_mode),
            path.lstat().st_uid,
        )
        for path in files
    }


def _older(patch: pytest.MonkeyPatch) -> None:
    """A Python before 3.11.4 knows neither the filters nor the argument."""
    whole = tarfile.TarFile.extractall
    patch.delattr(tarfile, "data_filter", raising=False)
    patch.setattr(tarfile.TarFile, "extractall", lambda self, path, members=None: whole(self, path, members))


def test_the_same_with_and_without_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(tarfile, "data_filter"):
        _extract(_archive(), tmp_path / "new")
        _older(monkeypatch)
    _extract(_archive(), tmp_path / "old")
    assert set(_seen(tmp_path / "old")) == {"bin/postgres", "lib/libpq.so.5", *LINKS}
    if (tmp_path / "new").exists():
        assert _seen(tmp_path / "old") == _seen(tmp_path / "new")


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../out", tarfile.REGTYPE, ""),
        ("/elsewhere/out", tarfile.REGTYPE, ""),
        ("bin/link", tarfile.SYMTYPE, "../../out"),
        ("bin/link", tarfile.LNKTYPE, "../out"),
        ("bin/pipe", tarfile.FIFOTYPE, ""),
    ],
)
def test_what_would_leave_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: bytes, target: str
) -> None:
    _older(monkeypatch)
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    with pytest.raises(SetupError, match="does not belong"):
        _extract(_archive(member), tmp_path / "target")

"""Certificates that change while a server runs: unusable files leave the last ones in use, until usable ones come."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from extender.entry.listening import Tls, reloaded_certificates
from extender.runtime.supervisor import Supervisor
from tests.worlds.certificates import NEEDS_OPENSSL, certificate, openssl, shown
from tests.worlds.eventually import eventually
from tests.worlds.http_worlds import LIMITS, listening

pytestmark = pytest.mark.loopback


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application without answers: these tests only shake hands."""


def of_another_key(folder: Path) -> None:
    (folder / "server.crt").write_bytes((folder / "other.crt").read_bytes())


def of_another_certificate(folder: Path) -> None:
    (folder / "server.key").write_bytes((folder / "other.key").read_bytes())


def no_certificate(folder: Path) -> None:
    (folder / "server.crt").write_bytes(b"garbage")


def absent(folder: Path) -> None:
    (folder / "server.key").unlink()


def encrypted(folder: Path) -> None:
    openssl(folder, "pkey", "-aes256", "-passout", "pass:abc", "-in", "other.key", "-out", "server.key")


def pipe(folder: Path) -> None:
    (folder / "server.crt").unlink()
    os.mkfifo(folder / "server.crt")


UNUSABLE = {
    of_another_key: "are no certificate and its key without a password",
    of_another_certificate: "are no certificate and its key without a password",
    no_certificate: "are no certificate and its key without a password",
    encrypted: "are no certificate and its key without a password",
    absent: "does not exist",
    pipe: "is not a regular file",
}


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[tuple[int, list[MutableMapping[str, Any]]]]:
    """(port, log) of a server with `server.crt` and `server.key` of the folder, which are read again."""
    for name in ("server", "other"):
        certificate(folder, name)
    tls, supervisor = Tls(folder / "server.crt", folder / "server.key"), Supervisor()
    with capture_logs() as lines:
        async with listening(nothing, LIMITS, tls) as (web, port):
            supervisor.start("certificates", reloaded_certificates([web], tls).run)
            try:
                yield port, lines
            finally:
                await supervisor.stop()


@NEEDS_OPENSSL
@pytest.mark.parametrize(("spoil", "words"), UNUSABLE.items())
async def test_unusable_files_leave_the_last_certificates_in_use(
    spoil: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    async with watched(tmp_path) as (port, lines):
        good = {name: (tmp_path / name).read_bytes() for name in ("server.crt", "server.key")}
        first = await shown(port)
        spoil(tmp_path)
        await eventually(lambda: any(words in line.get("problem", "") for line in lines))
        assert await shown(port) == first
        for name, content in good.items():
            (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / name).write_bytes(content)
        await eventually(lambda: "certificates read again" in [line["event"] for line in lines])
        assert await shown(port) == first


@NEEDS_OPENSSL
async def test_a_new_pair_is_used_also_if_its_files_change_one_after_the_other(tmp_path: Path) -> None:
    async with watched(tmp_path) as (port, lines):
        first = await shown(port)
        of_another_key(tmp_path)
        await eventually(
            lambda: "certificates rejected; the last valid content stays" in [line["event"] for line in lines]
        )
        of_another_certificate(tmp_path)
        await eventually(lambda: "certificates read again" in [line["event"] for line in lines])
        assert await shown(port) != first

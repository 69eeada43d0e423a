"""`berth serve` with TLS: it accepts the scheduler's certificate alone, and reads changed files without a restart.

Unusable files leave the last certificates in use, until usable ones come."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from extender.cluster.tls import tls_context
from extender.entry.listening import Tls, reloaded_certificates
from extender.runtime.supervisor import Supervisor
from extender.web.asgi import HttpLimits
from tests.worlds.certificates import NEEDS_OPENSSL, certificate, openssl, shown
from tests.worlds.eventually import HANG_SECONDS, answers, eventually
from tests.worlds.http_worlds import LIMITS, SOON, connected, hang_up, listening
from tests.worlds.process_worlds import served
from tests.worlds.running_berth import berthing


@NEEDS_OPENSSL
async def test_a_handshake_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    tls = Tls(tmp_path / "server.crt", tmp_path / "server.key")
    async with berthing({"n1": "t4-4"}) as b, listening(b.app, HttpLimits(handshake_seconds=SOON), tls) as (_, port):
        connection = await connected(port)
        assert await asyncio.wait_for(connection[0].read(), HANG_SECONDS) == b""
        await hang_up(connection)


@NEEDS_OPENSSL
async def test_only_the_scheduler_s_certificate_is_answered_and_ours_is_read_again(tmp_path: Path) -> None:
    """Attack: call the verbs."""
    for name in ("server", "scheduler", "other_client"):
        certificate(tmp_path, name)
    paths = [str(tmp_path / name) for name in ("server.crt", "server.key", "ca.crt")]
    async with served(
        tmp_path, "--tls-cert", paths[0], "--tls-key", paths[1], "--client-ca", paths[2], "--client-name", "scheduler"
    ) as (verbs, _):
        url = f"https://127.0.0.1:{verbs}/filter"
        plain = ssl.create_default_context(cafile=paths[2])
        async with httpx.AsyncClient(verify=plain) as client:
            with pytest.raises(httpx.HTTPError):
                await client.get(url)
        other_client = ssl.create_default_context(cafile=paths[2])
        other_client.load_cert_chain(tmp_path / "other_client.crt", tmp_path / "other_client.key")
        async with httpx.AsyncClient(verify=other_client) as client:
            with pytest.raises(httpx.HTTPError):
                await client.get(url)
        known = ssl.create_default_context(cafile=paths[2])
        known.load_cert_chain(tmp_path / "scheduler.crt", tmp_path / "scheduler.key")
        await answers(url, 405, verify=known)
        first = await shown(verbs, tmp_path / "scheduler")
        certificate(tmp_path, "server")

        async def renewed() -> bool:
            return await shown(verbs, tmp_path / "scheduler") != first

        await eventually(renewed, "the new certificate is used")


@NEEDS_OPENSSL
async def test_an_authority_that_changes_is_trusted_without_a_restart(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    (tmp_path / "other").mkdir()
    certificate(tmp_path / "other", "scheduler")
    paths = [str(tmp_path / name) for name in ("server.crt", "server.key", "ca.crt")]
    ours = ssl.create_default_context(cafile=paths[2])
    ours.load_cert_chain(tmp_path / "other" / "scheduler.crt", tmp_path / "other" / "scheduler.key")
    async with served(tmp_path, "--tls-cert", paths[0], "--tls-key", paths[1], "--client-ca", paths[2]) as (verbs, _):
        url = f"https://127.0.0.1:{verbs}/filter"
        async with httpx.AsyncClient(verify=ours) as client:
            with pytest.raises(httpx.HTTPError):
                await client.get(url)
        both = (tmp_path / "ca.crt").read_text() + (tmp_path / "other" / "ca.crt").read_text()
        (tmp_path / "ca.crt").write_text(both)
        await answers(url, 405, verify=ours)


def test_an_authority_without_the_key_usage_extension_is_accepted_as_by_kubectl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.13 verifies strictly by default and rejects such an authority."""
    default = ssl.create_default_context

    def strict(cafile: str | None) -> ssl.SSLContext:
        """As in Python 3.13."""
        context = default(cafile=cafile)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    found = tls_context(None)
    assert found.verify_mode is ssl.CERT_REQUIRED
    assert not found.verify_flags & ssl.VERIFY_X509_STRICT


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


@pytest.mark.loopback
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


@pytest.mark.loopback
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

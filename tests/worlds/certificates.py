"""Keys and certificates for tests of TLS, made by openssl."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.worlds.eventually import HANG_SECONDS

NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="install openssl: there is none on the PATH")
_NEW_KEY = ("-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")  # a key of RSA takes 0.1 s


def openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)


def certificate(folder: Path, name: str) -> None:
    """A key and a certificate signed by the folder's authority, which is made first."""
    days = ("-days", "2")
    if not (folder / "ca.crt").exists():
        openssl(
            folder, "req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.crt", *days, "-subj", "/CN=authority"
        )
    openssl(folder, "req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext", *days)
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signed)


async def shown(port: int, client: Path | None = None) -> bytes:
    """The certificate that a server shows, to a client with a certificate (CLIENT.crt and CLIENT.key) or without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if client is not None:
        context.load_cert_chain(f"{client}.crt", f"{client}.key")
    connecting = asyncio.open_connection("127.0.0.1", port, ssl=context)
    _, writer = await asyncio.wait_for(connecting, HANG_SECONDS)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert isinstance(found, bytes)
    return found

"""Keys and certificates for tests of TLS, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def certificate(folder: Path, name: str) -> None:
    """A key and a certificate signed by the folder's authority, which is made first."""
    ca = folder / "ca.crt"

    def run(*args: str) -> None:
        subprocess.run(["openssl", *args], check=True, capture_output=True)

    if not ca.exists():
        run(
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            str(folder / "ca.key"),
            "-out",
            str(ca),
            "-days",
            "2",
            "-subj",
            "/CN=authority",
        )
    run(
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(folder / f"{name}.key"),
        "-out",
        str(folder / f"{name}.csr"),
        "-subj",
        f"/CN={name}",
    )
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    run(
        "x509",
        "-req",
        "-in",
        str(folder / f"{name}.csr"),
        "-CA",
        str(ca),
        "-CAkey",
        str(folder / "ca.key"),
        "-CAcreateserial",
        "-out",
        str(folder / f"{name}.crt"),
        "-days",
        "2",
        "-extfile",
        str(folder / "ext"),
    )

"""What a client shows to an API server and accepts from it: TLS contexts, and the form of bearer tokens."""

from __future__ import annotations

import ssl


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """The context of a client that trusts the authorities of a file, or of the system if the file is None.

    From 3.13 on, Python's default context rejects authorities without the key usage extension. Some clusters have such
    authorities, and kubectl accepts them. Raises OSError and ValueError as ssl.create_default_context.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def is_token(text: str) -> bool:
    """Whether it can be sent in a header."""
    return bool(text) and text.isascii() and text.isprintable()

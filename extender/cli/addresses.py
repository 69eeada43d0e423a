"""Addresses and names that people give on the command line, checked before anything else is begun."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from extender.cel.library.network import FORMATS
from extender.model.claim import ObjectKey
from extender.model.errors import WireError
from extender.model.text import shown

PORTS = 65536
_DIGITS = 5
_NAME_BYTES = 253  # of a DNS-1123 subdomain


def parse_listen(text: str, option: str = "--listen") -> tuple[str, int]:
    """HOST:PORT. Raises WireError."""
    host, colon, port = text.rpartition(":")
    digits = port.isascii() and port.isdecimal() and len(port) <= _DIGITS
    brackets = host.startswith("[") == host.endswith("]") and not set("[]") & set(host[1:-1])
    if not colon or not digits or int(port) >= PORTS or not brackets:
        raise WireError(option, f"must be HOST:PORT with a port below {PORTS}, is {shown(text)}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - ':8888' means every interface


def parse_url(text: str, option: str) -> str:
    """An address to call, without a slash at its end. Raises WireError."""
    if "@" in text:
        raise WireError(option, "must not hold a user name or password")  # and they are not shown
    if not _is_url(text):
        wanted = f"http://HOST:PORT or https://HOST:PORT with a port from 1 to {PORTS - 1}"
        raise WireError(option, f"must be {wanted}, is {shown(text)}")
    return text.rstrip("/")


def _is_url(text: str) -> bool:
    try:
        found: SplitResult = urlsplit(text)
        host, port = found.hostname or "", found.port
    except ValueError:  # brackets or a port that are none
        return False
    plain = text.isascii() and text.isprintable() and " " not in text and not found.query and not found.fragment
    return plain and found.scheme in ("http", "https") and bool(host) and port != 0


def parse_node(text: str, option: str, room_bytes: int = 0) -> str:
    """The name of a node, to which so many bytes will be added. Raises WireError."""
    most = _NAME_BYTES - room_bytes
    if FORMATS["dns1123Subdomain"](text) or len(text) > most:
        wanted = f"a DNS-1123 name of at most {most} characters: lower-case letters, digits, '-' and '.'"
        raise WireError(option, f"must be {wanted}, is {shown(text)}")
    return text


def parse_key(text: str, option: str) -> ObjectKey:
    """NAMESPACE/NAME. Raises WireError."""
    namespace, slash, name = text.partition("/")
    if not slash or FORMATS["dns1123Label"](namespace) or FORMATS["dns1123Subdomain"](name):
        raise WireError(option, f"must be NAMESPACE/NAME, is {shown(text)}")
    return ObjectKey(namespace, name)


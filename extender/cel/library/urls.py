"""url() and its parts, as Go's net/url parses them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import quote, unquote, unquote_plus, unquote_to_bytes

from extender.cel import types as t
from extender.cel.errors import EvalError, shown
from extender.cel.overloads import function, member, plain
from extender.cel.prices import PARSE, Price, first_size
from extender.cel.values import Url, weighed

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(.*)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_USER = re.compile(r"[A-Za-z0-9._:~!$&'()*+,;=%@-]*")
_IN_HOST = r"[A-Za-z0-9._~!$&'()*+,;=:\[\]<>\"-]|[^\x00-\x7f]"
_HOST = re.compile(rf"(?:{_IN_HOST}|%[89a-fA-F][0-9a-fA-F]|%25)*")
_ZONE = re.compile(rf"(?:{_IN_HOST}|%[0-9a-fA-F]{{2}})*")
_PORT = re.compile(r"(?::[0-9]*)?")
_PATH = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@/\[\]%-]*")  # characters that stay as they are


class _Parts(NamedTuple):
    scheme: str = ""
    host: str = ""
    path: str = ""
    query: str = ""


def url(text: str) -> Url:
    """An absolute URL or absolute path. Raises EvalError."""
    url_of_request(text)
    text, _, fragment = text.partition("#")
    parts = _parsed(text, request=False)
    if _BAD_ESCAPE.search(fragment):
        raise _error(text, "invalid URL escape")
    hostname, port = _split_port(parts.host)
    return Url(text, parts.scheme, parts.host, hostname, port, _escaped(parts.path), _query(parts.query))


def url_of_request(text: str) -> object:
    """Check that the text is an absolute URL or path, maybe with a '#' in its path. Raises EvalError."""
    return _parsed(text, request=True)


def _is_url(text: str) -> bool:
    try:
        url_of_request(text)
    except EvalError:
        return False
    return True


def _error(text: str, problem: str) -> EvalError:
    return EvalError(f"URL parse error during conversion from string: parse {shown(text)}: {problem}")


def _parsed(text: str, *, request: bool) -> _Parts:
    """The parts of a text. The reference parses each twice: as the URL of a request, which has no fragment, and then
    without its fragment."""
    if not text or _CONTROL.search(text) or text.startswith(":"):
        raise _error(text, "no URL")
    if text == "*":
        return _Parts(path="*")
    match = _SCHEME.fullmatch(text)
    scheme, rest = match.groups() if match else ("", text)
    scheme = scheme.lower()
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if not match:
            raise _error(text, "invalid URI for request")
        return _Parts(scheme, query=query)
    host = ""
    if rest.startswith("//") and (match or not (request or rest.startswith("///"))):
        authority, slash, tail = rest[2:].partition("/")
        host, rest = _host(text, scheme, authority), slash + tail
    if _BAD_ESCAPE.search(rest):
        raise _error(text, "invalid URL escape")
    return _Parts(scheme, host, rest, query)


def _host(text: str, scheme: str, authority: str) -> str:
    user, _, host = authority.rpartition("@")
    if not _USER.fullmatch(user) or _BAD_ESCAPE.search(user):
        raise _error(text, "invalid userinfo")
    bracket = host.rfind("[")
    if bracket > 0:
        raise _error(text, "invalid IP-literal")
    if bracket == 0:
        return _literal(text, host)
    colon = host.find(":") if scheme in ("http", "https") else host.rfind(":")
    if colon >= 0 and not _PORT.fullmatch(host[colon:]):
        raise _error(text, "invalid port")
    if not _HOST.fullmatch(host):
        raise _error(text, "invalid character in host name")
    return unquote(host)


def _literal(text: str, host: str) -> str:
    """An IPv6 address in brackets, with its port."""
    inner, bracket, port = host[1:].rpartition("]")
    address, _, zone = inner.partition("%25")
    if not (bracket and _PORT.fullmatch(port) and _HOST.fullmatch(address) and _ZONE.fullmatch(zone)):
        raise _error(text, "invalid IP-literal")
    inner = unquote(inner)
    try:
        ipaddress.IPv6Address(inner)
    except ValueError as error:
        raise _error(text, "invalid IP-literal") from error
    return f"[{inner}]{port}"


def _split_port(host: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    if not colon or not _PORT.fullmatch(colon + port):
        name, port = host, ""
    return (name[1:-1] if name.startswith("[") and name.endswith("]") else name), port


def _escaped(path: str) -> str:
    return path if _PATH.fullmatch(path) else quote(unquote_to_bytes(path), safe="/$&+,:;=@")


def _query(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    for part in text.split("&"):
        key, _, value = part.partition("=")
        if part and ";" not in part and not _BAD_ESCAPE.search(part):
            found.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    return tuple((key, tuple(values)) for key, values in found.items())


_S = t.STRING
_PARTS = Price(overhead=60)
OVERLOADS = [
    *function(
        "url",
        plain((_S,), t.URL, url),
        price=replace(PARSE, size=first_size, overhead=200, slowness=100),
        pure=True,
    ),
    *function("isURL", plain((_S,), t.BOOL, _is_url), price=Price(overhead=100, slowness=80)),
    *function("getScheme", member((t.URL,), _S, lambda u: u.scheme), price=_PARTS),
    *function("getHost", member((t.URL,), _S, lambda u: u.host), price=_PARTS),
    *function("getHostname", member((t.URL,), _S, lambda u: u.hostname), price=_PARTS),
    *function("getPort", member((t.URL,), _S, lambda u: u.port), price=_PARTS),
    *function("getEscapedPath", member((t.URL,), _S, lambda u: u.path), price=_PARTS),
    *function(
        "getQuery",
        member((t.URL,), t.map_of(_S, t.list_of(_S)), lambda u: {k: weighed(v) for k, v in u.query}),
        price=Price(overhead=60, slowness=20),
    ),
]

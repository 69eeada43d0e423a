"""What k8s.io/apiserver adds: quantity() and semver(), ip() and cidr(), url() and the named formats."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import math
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, unquote, unquote_plus, unquote_to_bytes

from extender.api.object_meta import LABEL, MAX_LABEL, MAX_SUBDOMAIN, SUBDOMAIN
from extender.api.quantity import Quantity, add, from_int, parse_quantity
from extender.api.semver import Semver, parse_semver
from extender.cel import types as t
from extender.cel.errors import EvalError, shown
from extender.cel.library.time import parse_timestamp
from extender.cel.types import Overload, function, member, plain, succeeds
from extender.cel.values import INT_MAX, NONE, Cidr, Format, Optional, Url, weighed

_DIGITS = tuple("0123456789")
_NO_DIGITS = re.compile(r"^([+-]?)(?![-+0-9]|\.[0-9]|\.?[PE]i$)")


def quantity(text: str) -> Quantity:
    """As the reference parses it: a text without digits, such as 'Gi', is 0."""
    try:
        return parse_quantity(_NO_DIGITS.sub(r"\g<1>0", text) if text else text)
    except ValueError as error:
        raise EvalError(str(error)) from error


def _approximate(quantity: Quantity) -> float:
    """As the reference computes it: 0.3 gives 0.30000000000000004."""
    places = -9 if quantity.scale is None else quantity.scale
    try:
        return float(quantity.nanos // 10 ** (9 + places)) * 10.0**places
    except OverflowError:
        return math.inf if quantity.nanos > 0 else -math.inf


def _as_integer(value: Quantity) -> int:
    exact = value.int64()
    if exact is None:
        raise EvalError("cannot convert value to integer")
    return exact


def _sub(left: Quantity, right: Quantity) -> Quantity:
    return add(left, Quantity(-right.nanos, right.form, right.scale))


def _compare(left: Quantity | Semver, right: Quantity | Semver) -> int:
    return (left > right) - (left < right)  # type: ignore[operator] # both of one type, by the overload


def semver(text: str, normalize: bool = False) -> Semver:  # noqa: FBT001,FBT002 - positional in CEL
    try:
        return parse_semver(_normalized(text) if normalize else text)
    except ValueError as error:
        raise EvalError(str(error)) from error


def _without_zeros(part: str) -> str:
    """'02' to '2'; also '-rc' to '0-rc', as the reference does."""
    rest = part.lstrip("0")
    return part if len(part) < 2 else rest if rest.startswith(_DIGITS) else f"0{rest}"  # noqa: PLR2004 - '0' stays


def _normalized(text: str) -> str:
    """'v1.02' to '1.2.0': no v, no leading zeros, three numbers."""
    parts = [_without_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and ("-" in parts[-1] or "+" in parts[-1]):  # noqa: PLR2004 - major.minor.patch
        raise ValueError("short version cannot contain PreRelease/Build meta data")
    return ".".join([*parts, "0", "0"][: max(3, len(parts))])


def _int64(number: int) -> int:
    """As Go converts an unsigned number: from 2**63 on it becomes negative."""
    return number - (1 << 64) if number > INT_MAX else number


# -- ip() and cidr() -------------------------------------------------------------------------------------------------

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LONGEST_ADDRESS = 64  # characters; the longest valid form has 45
_PREFIX = re.compile(r"(0|[1-9]\d{0,2})", re.ASCII)


def ip(text: str) -> Address:
    if len(text) > _LONGEST_ADDRESS:
        raise EvalError(
            f"IP Address {text[:_LONGEST_ADDRESS]!r}... parse error during conversion from string: too long"
        )
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise EvalError(f"IP Address {shown(text)} parse error during conversion from string: {error}") from error
    if "%" in text:
        raise EvalError(f"IP address {shown(text)} with zone value is not allowed")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise EvalError(f"IPv4-mapped IPv6 address {shown(text)} is not allowed")
    return address


def cidr(text: str) -> Cidr:
    address, slash, prefix = text.partition("/")
    parsed = ip(address)
    if not slash or _PREFIX.fullmatch(prefix) is None or int(prefix) > parsed.max_prefixlen:
        raise EvalError(f"network address parse error during conversion from string: {shown(text)}")
    return Cidr(parsed, int(prefix))


def _contains_cidr(block: Cidr, other: Cidr) -> bool:
    return (
        block.address.version == other.address.version
        and block.prefix <= other.prefix
        and other.address in block.network()
    )


def _is_global_unicast(address: Address) -> bool:
    """As Go's IsGlobalUnicast: not unspecified, loopback, multicast, link-local or the broadcast address."""
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
        or address == ipaddress.IPv4Address("255.255.255.255")
    )


def _is_link_local_multicast(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return address in ipaddress.IPv4Network("224.0.0.0/24")
    return address.packed[0] == 0xFF and address.packed[1] % 16 == 2  # noqa: PLR2004 - any flags, the scope link-local


# -- url() and its parts, as Go's net/url parses them ---------------------------------------------------------------

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


# -- named formats: name to (longest text or None, pattern, whether a trailing dash is allowed as for prefixes) ----

_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _bounded(pattern: re.Pattern[str], limit: int, *, prefix: bool = False) -> Callable[[str], list[str]]:
    def problems(text: str) -> list[str]:
        body = text[:-1] if prefix and text.endswith("-") else text
        found = [] if pattern.fullmatch(body) else [f"{shown(text)} must match {pattern.pattern}"]
        return found if len(text) <= limit else [*found, f"must be no more than {limit} characters"]

    return problems


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    problems = _bounded(_QUALIFIED, MAX_LABEL)(name)
    if slash:
        problems = _bounded(SUBDOMAIN, MAX_SUBDOMAIN)(prefix) + problems
    return problems


def _byte(text: str) -> list[str]:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ["invalid base64"]
    return []


def _parses(apply: Callable[[str], object], problem: str) -> Callable[[str], list[str]]:
    return lambda text: [] if succeeds(apply)(text) else [problem]


def _date(text: str) -> list[str]:
    good = _DATE.fullmatch(text) is not None and succeeds(parse_timestamp)(f"{text}T00:00:00Z")
    return [] if good else ["invalid date"]


FORMATS: dict[str, Callable[[str], list[str]]] = {
    "dns1123Label": _bounded(LABEL, MAX_LABEL),
    "dns1123Subdomain": _bounded(SUBDOMAIN, MAX_SUBDOMAIN),
    "dns1035Label": _bounded(_LABEL_1035, MAX_LABEL),
    "qualifiedName": _qualified_name,
    "dns1123LabelPrefix": _bounded(LABEL, MAX_LABEL, prefix=True),
    "dns1123SubdomainPrefix": _bounded(SUBDOMAIN, MAX_SUBDOMAIN, prefix=True),
    "dns1035LabelPrefix": _bounded(_LABEL_1035, MAX_LABEL, prefix=True),
    "labelValue": _bounded(_LABEL_VALUE, MAX_LABEL),
    "uri": _parses(url_of_request, "invalid URI for request"),
    "uuid": lambda text: [] if _UUID.fullmatch(text) else ["does not match the UUID format"],
    "byte": _byte,
    "date": _date,
    "datetime": _parses(parse_timestamp, "invalid datetime"),
}


def _validate(form: Format, text: str) -> Optional:
    problems = FORMATS[form.name](text)
    return Optional(problems) if problems else NONE


def _named(name: str) -> Optional:
    return Optional(Format(name)) if name in FORMATS else NONE


_S, _IP, _CIDR = t.STRING, t.IP, t.CIDR


def _formats() -> list[Overload]:
    found: list[Overload] = []
    for name in FORMATS:
        found += function(f"format.{name}", plain((), t.FORMAT, lambda name=name: Format(name)))
    problems = t.optional_of(t.list_of(_S))
    return [
        *found,
        *function("format.named", plain((_S,), t.optional_of(t.FORMAT), _named)),
        *function("validate", member((t.FORMAT, _S), problems, _validate)),
    ]


def _addresses() -> list[Overload]:
    tests: dict[str, Callable[[Address], object]] = {
        "isUnspecified": lambda a: a.is_unspecified,
        "isLoopback": lambda a: a.is_loopback,
        "isLinkLocalMulticast": _is_link_local_multicast,
        "isLinkLocalUnicast": lambda a: a.is_link_local,
        "isGlobalUnicast": _is_global_unicast,
    }
    return [
        *function("ip", plain((_S,), _IP, ip), member((_CIDR,), _IP, lambda block: block.address), pure=True),
        *function("isIP", plain((_S,), t.BOOL, succeeds(ip))),
        *function("ip.isCanonical", plain((_S,), t.BOOL, lambda text: str(ip(text)) == text)),
        *function("family", member((_IP,), t.INT, lambda a: a.version)),
        *(overload for name, test in tests.items() for overload in function(name, member((_IP,), t.BOOL, test))),
        *function(
            "string",
            plain((_IP,), _S, str),
            plain((_CIDR,), _S, lambda block: f"{block.address}/{block.prefix}"),
            conversion=True,
        ),
    ]


def _blocks() -> list[Overload]:
    return [
        *function("cidr", plain((_S,), _CIDR, cidr), pure=True),
        *function("isCIDR", plain((_S,), t.BOOL, succeeds(cidr))),
        *function(
            "containsIP",
            member((_CIDR, _IP), t.BOOL, lambda block, address: address in block.network()),
            member((_CIDR, _S), t.BOOL, lambda block, text: ip(text) in block.network()),
        ),
        *function(
            "containsCIDR",
            member((_CIDR, _CIDR), t.BOOL, _contains_cidr),
            member((_CIDR, _S), t.BOOL, lambda block, text: _contains_cidr(block, cidr(text))),
        ),
        *function("masked", member((_CIDR,), _CIDR, lambda block: Cidr(block.network().network_address, block.prefix))),
        *function("prefixLength", member((_CIDR,), t.INT, lambda block: block.prefix)),
    ]


_URLS = [
    *function("url", plain((_S,), t.URL, url), pure=True),
    *function("isURL", plain((_S,), t.BOOL, succeeds(url_of_request))),
    *function("getScheme", member((t.URL,), _S, lambda u: u.scheme)),
    *function("getHost", member((t.URL,), _S, lambda u: u.host)),
    *function("getHostname", member((t.URL,), _S, lambda u: u.hostname)),
    *function("getPort", member((t.URL,), _S, lambda u: u.port)),
    *function("getEscapedPath", member((t.URL,), _S, lambda u: u.path)),
    *function("getQuery", member((t.URL,), t.map_of(_S, t.list_of(_S)), lambda u: {k: weighed(v) for k, v in u.query})),
]

_Q, _V = _KINDS = t.QUANTITY, t.SEMVER
_AMOUNTS = [
    *function("quantity", plain((t.STRING,), _Q, quantity), pure=True),
    *function("isQuantity", plain((t.STRING,), t.BOOL, succeeds(quantity)), pure=True),
    *function("sign", plain((_Q,), t.INT, lambda q: (q.nanos > 0) - (q.nanos < 0))),
    *function("isInteger", member((_Q,), t.BOOL, lambda q: q.int64() is not None)),
    *function("asInteger", member((_Q,), t.INT, _as_integer)),
    *function("asApproximateFloat", member((_Q,), t.DOUBLE, _approximate)),
    *function("add", member((_Q, _Q), _Q, add), member((_Q, t.INT), _Q, lambda q, n: add(q, from_int(n)))),
    *function("sub", member((_Q, _Q), _Q, _sub), member((_Q, t.INT), _Q, lambda q, n: _sub(q, from_int(n)))),
    *function("semver", plain((t.STRING,), _V, semver), plain((t.STRING, t.BOOL), _V, semver), pure=True),
    *function(
        "isSemver",
        plain((t.STRING,), t.BOOL, succeeds(semver)),
        plain((t.STRING, t.BOOL), t.BOOL, succeeds(semver)),
        pure=True,
    ),
    *function("major", member((_V,), t.INT, lambda v: _int64(v.major))),
    *function("minor", member((_V,), t.INT, lambda v: _int64(v.minor))),
    *function("patch", member((_V,), t.INT, lambda v: _int64(v.patch))),
    *function("isGreaterThan", *(member((k, k), t.BOOL, lambda a, b: a > b) for k in _KINDS)),
    *function("isLessThan", *(member((k, k), t.BOOL, lambda a, b: a < b) for k in _KINDS)),
    *function("compareTo", *(member((k, k), t.INT, _compare) for k in _KINDS)),
]

OVERLOADS = [*_AMOUNTS, *_addresses(), *_blocks(), *_formats(), *_URLS]

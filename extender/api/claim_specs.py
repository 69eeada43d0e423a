"""The spec of a ResourceClaim (resource.k8s.io/v1): requests, constraints, and parameters for drivers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from extender.api.fields import Json, amount, dumped, flag, get, inner, many, need, present, quantities, string, strings
from extender.api.nodes import Toleration, decode_toleration
from extender.api.quantity import Quantity
from extender.base.berth_errors import WireError
from extender.base.text_limits import cut

MAX_ALTERNATIVES = 512  # of all requests of one pod's claims; a request without alternatives counts as one


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One way to satisfy a request: the `exactly` form, or one alternative of `firstAvailable`.

    `name` is the name that allocation results use: 'req', or 'req/sub' for an alternative.
    """

    name: str
    class_name: str
    selectors: tuple[str, ...] = ()
    mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: Mapping[str, Quantity] | None = None
    derived: tuple[tuple[str, str], ...] = ()  # (attribute name, CEL expression) for the claim's constraints (KEP-6080)


@dataclass(frozen=True, slots=True)
class Request:
    """A named request. Only the `firstAvailable` form has more than one alternative."""

    name: str
    alternatives: tuple[DeviceRequest, ...]
    prioritized: bool = False


def _covers(names: tuple[str, ...], request: str) -> bool:
    """Whether a list of requests names this request or its parent. An empty list names all."""
    return not names or request in names or request.partition("/")[0] in names


@dataclass(frozen=True, slots=True)
class Constraint:
    """A matchAttribute or distinctAttribute constraint. Empty `requests` means all requests of the claim."""

    kind: str  # "match", "distinct", "both" (the API server rejects it), or "" for a kind that is not supported
    attribute: str = ""
    requests: tuple[str, ...] = ()

    def covers(self, request: str) -> bool:
        """Whether the constraint applies to this request ('req' or 'req/sub')."""
        return _covers(self.requests, request)


@dataclass(frozen=True, slots=True)
class Config:
    """Opaque driver parameters as canonical JSON text, so that the value is hashable."""

    driver: str
    parameters: str
    requests: tuple[str, ...] = ()
    source: str = ""  # FromClass or FromClaim in an allocation, else empty
    known: bool = True  # False: the entry has no `opaque` form

    def covers(self, request: str) -> bool:
        """Whether the parameters are for this request ('req' or 'req/sub')."""
        return _covers(self.requests, request)


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The spec of a claim. `content` is its JSON; specs with equal content share one evaluation result."""

    requests: tuple[Request, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    config: tuple[Config, ...] = ()
    domains: tuple[tuple[str, str], ...] = ()  # (driver, `domainID` in the claim's parameters for it)
    content: bytes = b""
    estimated_bytes: int = 0  # of memory, for the JSON and its decoded texts


def decode_claim_spec(spec: Json, path: str) -> ClaimSpec:
    """Decode the spec of a ResourceClaim or ResourceClaimTemplate. Raises WireError."""
    devices = inner(spec, "devices", path)
    where = f"{path}.devices"
    return ClaimSpec(
        requests=many(devices, "requests", where, _request),
        constraints=many(devices, "constraints", where, _constraint),
        config=many(devices, "config", where, decode_config),
        domains=tuple(_domains(devices.get("config"))),
    )


def _domains(config: object) -> Iterator[tuple[str, str]]:
    """Each driver with the `domainID` in the parameters for it. `compute_domain` of extender.vendors chooses one."""
    for entry in config if type(config) is list else ():
        opaque = entry.get("opaque") if type(entry) is dict else None
        if type(opaque) is dict and type(driver := opaque.get("driver")) is str:
            parameters = opaque.get("parameters")
            found = parameters.get("domainID") if type(parameters) is dict else None
            if type(found) is str and found:
                yield cut(driver), cut(found)


def _request(obj: Json, path: str) -> Request:
    name = need(obj, "name", path)
    alternatives = many(
        obj, "firstAvailable", path, lambda one, at: _device_request(one, at, f"{name}/{need(one, 'name', at)}")
    )
    if alternatives:
        return Request(name, alternatives, prioritized=True)
    exactly = inner(obj, "exactly", path)
    if not exactly:
        raise WireError(path, "needs `exactly` or `firstAvailable` (unsupported request type?)")
    return Request(name, (_device_request(exactly, f"{path}.exactly", name),))


def _device_request(obj: Json, path: str, name: str) -> DeviceRequest:
    mode = string(obj, "allocationMode", path) or "ExactCount"
    amounts = quantities(inner(obj, "capacity", path), "requests", f"{path}.capacity", amount)
    return DeviceRequest(
        name,
        string(obj, "deviceClassName", path),
        selectors=many(obj, "selectors", path, decode_selector),
        mode=mode,
        count=get(obj, "count", int, path, 1) or 1 if mode == "ExactCount" else 0,
        admin_access=flag(obj, "adminAccess", path),
        tolerations=many(obj, "tolerations", path, decode_toleration),
        derived=many(
            obj, "derivedAttributes", path, lambda one, at: (need(one, "name", at), need(one, "expression", at))
        ),
        capacity=None if obj.get("capacity") is None else _Frozen(amounts),
    )


class _Frozen(dict[str, Quantity]):
    """A hashable map of quantities. The code must not change it after decoding."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override] # dict declares None
        return hash(frozenset(self.items()))


def decode_selector(obj: Json, path: str) -> str:
    """The CEL expression of a selector. Raises WireError."""
    cel = inner(obj, "cel", path)
    expression = cel.get("expression")
    if type(expression) is not str:
        raise WireError(f"{path}.cel.expression", "must be a CEL expression (unsupported selector type?)")
    return expression


def _constraint(obj: Json, path: str) -> Constraint:
    requests = tuple(strings(obj, "requests", path))
    match, distinct = string(obj, "matchAttribute", path), string(obj, "distinctAttribute", path)
    if match and distinct:
        return Constraint("both", requests=requests)
    return Constraint("match" if match else "distinct" if distinct else "", match or distinct, requests)


def decode_config(obj: Json, path: str) -> Config:
    """The parameters for a driver, of a class, a claim or an allocation. Raises WireError."""
    opaque = obj.get("opaque")
    source = string(obj, "source", path)
    requests = tuple(strings(obj, "requests", path))
    if type(opaque) is not dict:
        return Config("", "", requests, source, known=False)
    parameters = dumped(opaque.get("parameters"), f"{path}.opaque.parameters").decode()
    return Config(string(opaque, "driver", path), parameters, requests, source)


def encode_config(config: Config) -> Json:
    """One entry of status.allocation.devices.config."""
    opaque = {"driver": config.driver, "parameters": orjson.loads(config.parameters)} if config.known else None
    return {"source": config.source} | present({"requests": list(config.requests), "opaque": opaque})


def encode_simple_spec(spec: ClaimSpec) -> Json:
    """The spec of a special claim: class, mode and count of each request."""
    requests = [
        {"name": r.name, "exactly": {"deviceClassName": a.class_name, "allocationMode": a.mode, "count": a.count}}
        for r in spec.requests
        for a in r.alternatives
    ]
    return {"devices": {"requests": requests}}


def merged_specs(specs: Sequence[Json]) -> Json:
    """The requests and constraints of several claims of one pod in one spec, without parameters of drivers.

    If there are several claims, each one's requests get its number in their names.
    """
    requests, constraints = list[Json](), list[Json]()
    for number, spec in enumerate(specs):
        devices, prefix = inner(spec, "devices", "spec"), f"c{number}-" if len(specs) > 1 else ""
        asked = devices.get("requests") or []
        requests += [{**one, "name": prefix + one["name"]} for one in asked]
        for one in devices.get("constraints") or []:  # one without names is about all requests of its claim
            names = one.get("requests") or [request["name"] for request in asked]
            constraints.append({**one, "requests": [prefix + name for name in names]})
    return {"devices": {"requests": requests, **({"constraints": constraints} if constraints else {})}}

"""Writes the generated parts of docs/: the policy, reasons, metrics, commands and the HTTP API. See `make reference`.

A part stands between two comments: `<!-- NAME: written by make reference -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin
from unittest.mock import Mock

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from typer.main import get_command

from extender.api.reasons import Code
from extender.cli import console_client
from extender.cli.explain_command import ExplanationReply
from extender.cli.main import commands
from extender.explain import GangExplanation
from extender.policy import Override, Policy
from extender.web.console.console_metrics import METRICS as OF_CONSOLE
from extender.web.console.console_routes import Question, routes
from extender.web.metrics import COMMON
from extender.web.serve_metrics import METRICS as OF_SERVE

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH = 120  # columns of running text


def row(*cells: str) -> str:
    """One row of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") if cell else "" for cell in cells) + " |\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table with its head."""
    return row(*head) + "|" + "---|" * len(head) + "\n" + "".join(row(*cells) for cells in rows)


def wrapped(text: str) -> str:
    """Paragraphs of running text."""
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(one.split()), WIDTH, break_on_hyphens=False) for one in paragraphs)


def listed(lines: Iterable[str]) -> str:
    """A list with an entry for each line."""
    wide = (textwrap.fill(f"* {line}", WIDTH, subsequent_indent="  ", break_on_hyphens=False) for line in lines)
    return "".join(f"{line}\n" for line in wide)


# -- the policy --------------------------------------------------------------------------------------------------


def policy() -> str:
    """The fields of the policy."""
    return table(("field", "default", "range", "effect"), _settings(Policy, ""))


def overrides() -> str:
    """The fields of one entry of `overrides`."""
    rows = ((f"`overrides[].{name}`", field.description or "") for name, field in Override.model_fields.items())
    return table(("field", "effect"), rows)


def _settings(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _settings(inner, f"{prefix}{name}.")
        else:
            yield f"`{prefix}{name}`", _default(field.default), _range(field), field.description or ""


def _default(value: object) -> str:
    if isinstance(value, tuple | dict):
        return ", ".join(f"`{item}`" for item in value) or "none"
    return _number(value) if isinstance(value, float | int) else str(value)


def _range(field: FieldInfo) -> str:
    words = [word for word in get_args(field.annotation) if isinstance(word, str)]
    if words:
        return ", ".join(words)
    limits = {name: getattr(one, name) for one in field.metadata for name in ("ge", "gt", "le") if hasattr(one, name)}
    if not limits:
        lengths = [one.max_length for one in field.metadata if getattr(one, "max_length", None)]
        kind = "a map" if get_origin(field.annotation) is dict else "a list"
        return f"{kind} of at most {lengths[0]}" if lengths else kind
    most = _number(limits["le"])
    return (
        f"more than {_number(limits['gt'])}, at most {most}" if "gt" in limits else f"{_number(limits['ge'])} to {most}"
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:g}"


# -- reasons and metrics -----------------------------------------------------------------------------------------


def reasons() -> str:
    """Every reason with its text and meaning."""
    head = ("code", "what kube-scheduler shows", "what it means")
    return table(head, ((f"`{code.name}`", code.text, code.description) for code in Code))


def metrics(of: Iterable[Any]) -> str:
    """The metrics of one process or of both."""
    head = ("metric", "meaning", "labels")
    return table(head, ((f"`{one.name}`", one.help, ", ".join(f"`{name}`" for name in one.labels)) for one in of))


# -- commands ----------------------------------------------------------------------------------------------------


WAY = ("server", "token", "kubeconfig", "context", "berth_namespace")  # the way to a console


def cli() -> str:
    """Every command with its arguments and options. Those that all commands with a console share come last."""
    command: Any = get_command(commands())
    shared = [one for one in command.commands["nodes"].params if one.name in WAY]
    last = f"## The way to a console\n\n{_list(map(_parameter, shared))}"
    return "\n".join([*_command("berth", command), last]).rstrip("\n") + "\n"


def _list(rows: Iterable[tuple[str, str, str]]) -> str:
    """A line for each argument or option: its forms, its default, and its meaning."""
    return listed(f"{names}{f' ({said})' if said else ''}: {meaning}" for names, said, meaning in rows)


def _command(name: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        help_ = re.sub(r"^Example: (.+)", r"Example: `\1`", command.help or "", flags=re.MULTILINE)
        yield f"## {name}\n\n{wrapped(help_)}\n"
        asks = any(one.name == "server" for one in command.params)
        hidden = ("help", *(WAY if asks else ()))
        rows = [_parameter(one) for one in command.params if one.name not in hidden]
        if asks:
            rows.append(("`--server …`", "", "[the way to a console](#the-way-to-a-console)"))
        if rows:
            yield _list(rows)
        return
    for word in sorted(inner):
        yield from _command(f"{name} {word}", inner[word])


def _parameter(one: Any) -> tuple[str, str, str]:
    """The cells of an argument or an option of typer."""
    value = "" if getattr(one, "is_flag", False) else _value(one)
    if one.param_type_name == "argument":
        return f"`{value}`", "", one.help or ""
    names = ", ".join(f"`{name} {value}`" if value else f"`{name}`" for name in [*one.opts, *one.secondary_opts])
    default = "" if one.default is None or one.default is False or one.default == "" else f"`{one.default}`"
    said = " or ".join(filter(None, (f"`${one.envvar}`" if one.envvar else "", default)))
    return names, "required" if one.required else said, (one.help or "").replace("\\[", "[")


def _value(one: Any) -> str:
    words = get_args(one.type_descriptor.annotation)
    if words and all(isinstance(word, str) for word in words):
        return "|".join(words)
    return one.metavar or str(one.name).upper().replace("_", "-")


# -- the HTTP API ------------------------------------------------------------------------------------------------


class Links(BaseModel):
    """The GPUs of a node and their links. Lists have one entry per GPU; bandwidths are in GB/s."""

    source: str
    link: str
    links: list[list[int]]
    switch_links: list[int]
    link_gbps: float
    numa: list[int]
    distance: list[list[str]]


class DeviceDetail(console_client.DeviceReply):
    """A device of a node. `state` is one letter, as in `gpus` of a node; memory is in bytes."""

    driver: str
    pool: str
    memory: int
    live_free: int | None
    note: str


class NodeDetail(console_client.NodeDetailReply):
    """The reply to GET /v1/nodes/{name}. `fabric` is absent if the node has no GPU. In `devices` the GPUs come first,
    in the order of `gpus`; then at most 64 devices of each other driver.
    """

    devices: list[DeviceDetail]  # type: ignore[assignment] # the CLI reads fewer fields of each
    largest_free_set: int
    fabric: Links | None = None


class ClaimKey(BaseModel):
    """The name of a claim."""

    namespace: str
    name: str


class Finding(BaseModel):
    """An inconsistency, with all claims that are part of it. metrics.md lists the checks (`berth_audit_…`)."""

    check: str
    about: str
    claims: list[ClaimKey]
    sentence: str


class Version(BaseModel):
    """The release of Berth."""

    version: str


REPLIES: Mapping[str, Any] = {
    "GET /version": Version,
    "GET /v1/explain/{namespace}/{pod}": ExplanationReply,
    "GET /v1/explain/group/{namespace}/{name}": list[GangExplanation],
    "GET /v1/restarts/{namespace}/{pod}": None,  # that of a command
    "GET /v1/restarts/group/{namespace}/{name}": None,
    "POST /v1/explain": list[ExplanationReply | GangExplanation],
    "GET /v1/fleet": console_client.FleetReply,
    "GET /v1/nodes/{name}": NodeDetail,
    "GET /v1/claims": list[console_client.ClaimReply],
    "GET /v1/jobs.jsonl": None,
    "GET /v1/audit": list[Finding],
    "GET /v1/policy": console_client.PolicyStatusReply,
}


def http() -> str:
    """Every path of the console with its parameters and the shape of the reply."""
    paths = routes(Mock()).openapi()["paths"]  # the routes read the console only when they answer
    shapes: dict[str, Any] = {}
    text = "## Paths\n"
    for path, methods in paths.items():
        for method, about in methods.items():
            name = f"{method.upper()} {path}"
            queries = [one["name"] for one in about.get("parameters", ()) if one["in"] == "query"]
            text += _path(name, about.get("description", ""), queries, shapes)
    asked = f"The body is a [Question](#question). {(Question.__doc__ or '').partition('. ')[2]}"
    text += _path("POST /v1/explain", f"Explain pods that exist, or that do not exist yet. {asked}", [], shapes)
    _shape(TypeAdapter(Question), shapes)
    return text + "\n## Shapes\n" + "".join(_model(name, shape) for name, shape in sorted(shapes.items()))


def _path(name: str, about: str, queries: list[str], shapes: dict[str, Any]) -> str:
    parameters = f" Query parameters: {', '.join(f'`{one}`' for one in queries)}." if queries else ""
    shape = REPLIES[name]
    reply = f" Reply: {_shape(TypeAdapter(shape), shapes)}." if shape is not None else ""
    return f"\n### {name}\n\n{wrapped(about + parameters + reply)}\n"


def _shape(adapter: TypeAdapter[Any], shapes: dict[str, Any]) -> str:
    """The type as a link or in words. Notes the models that it has in `shapes`."""
    schema = adapter.json_schema(mode="serialization")
    shapes.update(schema.pop("$defs", {}))
    if schema.get("type") == "object":
        shapes[schema["title"]] = schema
        return _link(schema["title"])
    return _type(schema)


def _model(name: str, schema: dict[str, Any]) -> str:
    """The fields with their meanings; without any, the fields of each type in one line."""
    fields = schema["properties"]
    about = wrapped(schema.get("description", ""))
    if any("description" in one for one in fields.values()):
        rows = [(f"`{field}`", _type(one), one.get("description", "")) for field, one in fields.items()]
        text = table(("field", "type", "meaning"), rows)
    else:
        of_type: dict[str, list[str]] = {}
        for field, one in fields.items():
            of_type.setdefault(_type(one), []).append(f"`{field}`")
        text = listed(f"{kind}: {', '.join(names)}" for kind, names in of_type.items())
    return f"\n### {_short(name)}\n\n" + (f"{about}\n\n" if about else "") + text


def _type(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": ref}:
            return _link(ref.rpartition("/")[2])
        case {"anyOf": [*some]}:
            return " or ".join(map(_type, some))
        case {"prefixItems": [*some]}:
            return f"[{', '.join(map(_type, some))}]"
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": kind}:
            return str(kind)
    return "any"


def _short(name: str) -> str:
    return name.removesuffix("Reply")


def _link(name: str) -> str:
    return f"[{_short(name)}](#{_short(name).lower()})"


# -- the pages ---------------------------------------------------------------------------------------------------

PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "policy.md": {"policy": policy, "overrides": overrides},
    "reasons.md": {"reasons": reasons},
    "metrics.md": {
        "metrics of both": lambda: metrics(COMMON),
        "metrics of serve": lambda: metrics(one for one in OF_SERVE if one not in COMMON),
        "metrics of console": lambda: metrics(one for one in OF_CONSOLE if one not in COMMON),
    },
    "cli.md": {"commands": cli},
    "http-api.md": {"http": http},
}


def written(page: str) -> str:
    """A page of docs/ with its parts as the code has them."""
    text = (DOCS / page).read_text()
    for name, make in PARTS[page].items():
        begin, end = f"<!-- {name}: written by make reference -->\n", f"<!-- end of {name} -->\n"
        before, rest = text.split(begin)
        text = before + begin + "\n" + make() + "\n" + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    for page in PARTS:
        (DOCS / page).write_text(written(page))

"""`berth lint`: what is wrong with classes, claims and slices before a pod meets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import orjson
import typer

from extender.cel.errors import BudgetExceeded, CompileError, EvalError
from extender.cel.selector import Environment, Selector, check_cost, compile_selector
from extender.cli.objects import Objects, load_objects
from extender.cli.select import environment_of
from extender.model.device import Device


class Finding(NamedTuple):
    """One thing to look at. Errors keep pods from running; warnings may be meant."""

    severity: str  # "error" or "warning"
    where: str  # the object and the field
    problem: str


def lint_command(
    files: Annotated[list[Path], typer.Argument(help="Kubernetes objects in YAML or JSON.")],
    as_new: Annotated[str | None, typer.Option(help="Also check what the API server of this version would refuse, e.g. 1.36.", metavar="VERSION")] = None,
    output: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table",
) -> None:
    """Check selectors of classes and claims against the slices at hand. Exit code 1 where there is an error.

    Example: berth lint classes.yaml claims.yaml slices.yaml
    """
    found = list(findings(load_objects(files), environment_of(as_new)))
    for finding in found:
        line = orjson.dumps(finding._asdict()).decode() if output == "json" else f"{finding.severity}: {finding.where}: {finding.problem}"
        typer.echo(line)
    if output == "table":
        typer.echo(f"{len(found)} {'finding' if len(found) == 1 else 'findings'}")
    if any(finding.severity == "error" for finding in found):
        raise typer.Exit(1)


def findings(objects: Objects, environment: Environment) -> Iterator[Finding]:
    """All findings, in the order of the files' objects."""
    for slice_ in objects.slices:
        if slice_.problem:
            yield Finding("error", f"ResourceSlice {slice_.name}", slice_.problem)
    devices = [(device, s.pool.driver) for s in objects.slices if not s.problem for device in s.devices]
    for class_ in objects.classes.values():
        if class_.problem:
            yield Finding("error", f"DeviceClass {class_.name}", class_.problem)
    for where, expression in _selectors(objects):
        yield from _selector(where, expression, environment, devices)
    yield from _unknown_classes(objects)


def _selectors(objects: Objects) -> Iterator[tuple[str, str]]:
    for class_ in objects.classes.values():
        for i, expression in enumerate(class_.selectors):
            yield f"DeviceClass {class_.name}, spec.selectors[{i}]", expression
    for claim in objects.claims:
        for request in claim.spec.requests:
            for option in request.alternatives:
                for i, expression in enumerate(option.selectors):
                    yield f"ResourceClaim {claim.key}, request {option.name}, selectors[{i}]", expression


def _selector(where: str, expression: str, environment: Environment, devices: list[tuple[Device, str]]) -> Iterator[Finding]:
    try:
        selector = compile_selector(expression, environment)
        if not environment.stored:
            check_cost(expression, environment)
    except CompileError as error:
        yield Finding("error", where, str(error))
        return
    if not devices:
        return
    for read in sorted(selector.reads):
        kind, _, name = read.partition(":")
        if name and not name.endswith("*") and not any(_publishes(device, kind, name, driver) for device, driver in devices):
            yield Finding("warning", where, f"`{name}` is published by 0 of {len(devices)} devices")
    matched, problem = _outcome(selector, devices)
    if not matched:
        yield Finding("warning", where, f"matches 0 of {len(devices)} devices" + (f" (first error: {problem})" if problem else ""))


def _publishes(device: Device, kind: str, name: str, driver: str) -> bool:
    if kind == "attributes":
        return name in device.attributes.schema.index
    domain, _, bare = name.partition("/")
    return name in device.capacity or (domain == driver and bare in device.capacity)


def _outcome(selector: Selector, devices: list[tuple[Device, str]]) -> tuple[int, str]:
    """How many devices match, and the first error."""
    matched, problem = 0, ""
    for device, driver in devices:
        try:
            matched += selector.match(device, driver)
        except (EvalError, BudgetExceeded) as error:
            problem = problem or f"{driver} device {device.name}: {error}"
    return matched, problem


def _unknown_classes(objects: Objects) -> Iterator[Finding]:
    """Only where classes were given at all: claims alone may be meant."""
    if not objects.classes:
        return
    for claim in objects.claims:
        for request in claim.spec.requests:
            for option in request.alternatives:
                if option.class_name not in objects.classes:
                    yield Finding("error", f"ResourceClaim {claim.key}, request {option.name}, deviceClassName", f"no DeviceClass {option.class_name!r} in these files")

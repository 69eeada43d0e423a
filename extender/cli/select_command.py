"""`berth select`: shows which devices a selector matches, and the term that failed for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from extender.api.documents import json_value
from extender.api.fields import Json, inner, many, need, string, strings
from extender.api.resource_slices import Device, SliceDecoder
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted, shown
from extender.cel import BudgetExceeded, CompileError, EvalError
from extender.cel.dra import Dialect, Selector, check_cost, compile_selector
from extender.cel.dra.terms import failed_term
from extender.cli.object_files import checked_files
from extender.cli.options import Output
from extender.cli.output import Screen, say, say_json
from extender.files import name_of, read_file
from extender.lint import one_sentence
from extender.manifests import decoded_objects

_MAX_DIGITS = 4  # of a part of a version


def select_command(
    expression: Annotated[str | None, typer.Argument(help="The CEL expression.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option("-f", "--file", help="ResourceSlices in YAML or JSON; - for standard input.")
    ] = None,
    cases: Annotated[Path | None, typer.Option(help="A file of cases. Prints one line of JSON per case.")] = None,
    as_new: Annotated[
        str | None, typer.Option(help="Check as the API server of this version does, e.g. 1.36.", metavar="VERSION")
    ] = None,
    output: Output = "table",
) -> None:
    """Evaluate a device selector.

    Example: berth select 'device.driver == "gpu.nvidia.com"' -f slices.yaml
    """
    if cases is not None:
        found = json_value(read_file(cases), name_of(cases))
        if type(found) is not list:
            raise WireError(name_of(cases), "must hold a list of cases")
        for line in many({"cases": found}, "cases", name_of(cases), lambda case, where: answer(case, where)):
            say_json(line)
        return
    if expression is None:
        raise WireError("EXPRESSION", "is missing: give it, or --cases FILE")
    dialect = dialect_of(as_new)
    try:
        selector = compile_selector(expression, dialect)
        if as_new is not None:
            check_cost(expression, dialect)
    except CompileError as error:
        raise WireError("EXPRESSION", one_sentence(error)) from error
    if not file:
        say("compiles")
        return
    _evaluate(selector, dialect, file, output)


def dialect_of(as_new: str | None) -> Dialect:
    """Return the dialect of stored expressions, or of new ones in version MAJOR.MINOR. Raises WireError."""
    if as_new is None:
        return Dialect()
    major, _, minor = as_new.partition(".")
    if not all(part.isascii() and part.isdecimal() and len(part) <= _MAX_DIGITS for part in (major, minor)):
        raise WireError("--as-new", f"must be a version such as 1.36, is {shown(as_new)}")
    # DRAConsumableCapacity is beta and on by default from 1.36; DRAListTypeAttributes is alpha in every version.
    version = (int(major), int(minor))
    return Dialect(version, stored=False, list_types=False, consumable_capacity=version >= (1, 36))


def answer(case: Json, where: str) -> Json:
    """Return the answer to one case: `name`, `match`, `compile_error`, `runtime_error`. Raises WireError."""
    gates = strings(case, "features", where)
    dialect = Dialect(
        stored=case.get("environment") != "NewExpressions",
        list_types="DRAListTypeAttributes" in gates,
        consumable_capacity="DRAConsumableCapacity" in gates,
    )
    found: Json = {"name": need(case, "name", where), "match": None, "compile_error": None, "runtime_error": None}
    try:
        selector = compile_selector(string(case, "expression", where), dialect)
        found["match"] = selector.match(_device(case, where), string(case, "driver", where))
    except CompileError as error:
        found["compile_error"] = str(error)
    except (EvalError, BudgetExceeded) as error:
        found["runtime_error"] = str(error)
    return found


def _device(case: Json, where: str) -> Device:
    driver = string(case, "driver", where)
    device = {
        "name": "device",
        "attributes": inner(case, "attributes", where),
        "capacity": inner(case, "capacity", where),
        "allowMultipleAllocations": bool(case.get("allowMultipleAllocations")),
    }
    spec = {"driver": driver or "none", "pool": {"name": "pool"}, "nodeName": "node", "devices": [device]}
    slice_ = SliceDecoder().decode({"metadata": {"name": "slice"}, "spec": spec})
    if slice_.problem:
        raise EvalError(slice_.problem)
    return slice_.devices[0]


def _evaluate(selector: Selector, dialect: Dialect, paths: list[Path], output: str) -> None:
    found = decoded_objects(checked_files(paths))
    slices = [*found.slices, *found.agent_slices]
    if not slices:
        raise WireError("--file", "the files hold no ResourceSlice")
    console = Screen(soft_wrap=True)
    matched = total = 0
    for slice_ in slices:
        for device in slice_.devices:
            total += 1
            line = _line(selector, dialect, device, slice_.pool.driver)
            matched += line["match"] is True
            name = f"{slice_.pool.driver}/{slice_.pool.name}/{device.name}"
            if output == "json":
                say_json({"device": name, **line})
            else:
                console.print(
                    f"{'match   ' if line['match'] else 'no match'} {name}"
                    + (f"  {line['why']}" if line["why"] else ""),
                    highlight=False,
                )
    if output == "table":
        console.print(f"the selector matches {matched} of {counted(total, 'device')}")


def _line(selector: Selector, dialect: Dialect, device: Device, driver: str) -> Json:
    try:
        match = selector.match(device, driver)
    except (EvalError, BudgetExceeded) as error:
        return {"match": None, "why": f"error: {error}"}
    return {"match": match, "why": "" if match else failed_term(selector.expression, dialect, device, driver)}

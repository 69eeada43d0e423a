"""`berth lint`: finds mistakes in classes, claims, slices and pods before they reach a cluster."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
import yaml

from extender.allocation import Snapshot
from extender.api.fields import Json
from extender.api_schema import LintFinding
from extender.base.berth_errors import WireError
from extender.cli.cluster_objects import snapshot_of
from extender.cli.object_files import documents, print_findings, read_manifests
from extender.cli.options import Output
from extender.cli.output import say
from extender.cli.select_command import dialect_of
from extender.files import name_of
from extender.lint import check_devices, check_manifests

_SUPPLY = ("DeviceClass", "ResourceSlice")


def lint_command(
    files: Annotated[list[Path], typer.Argument(help="Kubernetes objects in YAML or JSON.")],
    *,
    as_new: Annotated[
        str | None,
        typer.Option(help="Check selectors as the API server of this version does, e.g. 1.36.", metavar="VERSION"),
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="A file made by `berth snapshot`, for the classes and slices of a cluster.")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Print the corrected manifests; findings go to standard error.")
    ] = False,
    output: Output = "table",
) -> None:
    """Check classes, claims and pods against the schema and slices.

    Exit code 1 for an error or a warning, also one that --fix corrects; notes do not count. Exit code 2 if a file or
    document cannot be read; the others are checked all the same.

    Example: berth lint classes.yaml claims.yaml slices.yaml
    """
    raw, found, unreadable = read_manifests(files)
    prints_manifests = fix and not unreadable and not found
    cluster = list(documents(snapshot)) if snapshot is not None else []
    supply = [obj for obj in cluster if obj.get("kind") in _SUPPLY]
    checked = check_manifests(raw, supply)
    found += checked.findings
    if snapshot is not None and not supply:
        found.append(_without_devices(cluster, snapshot))
    given = [(str(snapshot), obj) for obj in supply]
    world, knows_nodes = _world([*cluster, *(obj for _, obj in checked.objects)])
    found += check_devices(checked, given, dialect_of(as_new), world, knows_nodes=knows_nodes)
    found = list(dict.fromkeys(found))  # several pods may use one template
    if found or not unreadable:
        print_findings(found, output, to_stderr=fix, fixing=prints_manifests)
    for error in unreadable:
        say(f"berth: {error}", err=True)
    if fix and not prints_manifests:
        say("berth: --fix prints no manifests, because they would lack what it cannot read", err=True)
    elif fix:
        say(yaml.safe_dump_all([obj for _, obj in checked.objects], sort_keys=False), nl=False)
    if unreadable:
        raise typer.Exit(2)
    if any(finding.severity != "note" for finding in found):
        raise typer.Exit(1)


def _without_devices(cluster: list[Json], snapshot: Path) -> LintFinding:
    """A note about the snapshot of a cluster without DRA. Raises WireError if it is no snapshot."""
    if not any(obj.get("kind") == "Node" for obj in cluster):
        raise WireError(name_of(snapshot), f"holds none of {', '.join(_SUPPLY)}: `berth snapshot` makes such files")
    problem = f"the cluster has no {' and no '.join(_SUPPLY)}"
    return LintFinding("note", name_of(snapshot), problem, "install the DRA driver of your devices")


def _world(objects: list[Json]) -> tuple[Snapshot | None, bool]:
    """As `snapshot_of`, with all devices free; None without nodes, or if an object cannot be decoded."""
    with suppress(WireError):  # other checks name the fault
        found, knows_nodes = snapshot_of([obj for obj in objects if obj.get("kind") != "ResourceClaim"])
        return found if found.node_infos else None, knows_nodes
    return None, False

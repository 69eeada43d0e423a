"""Reads the files that users name: manifests, which are checked and corrected as by `berth lint`, and policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import orjson
import typer

from extender.api.documents import Document, documents_of, text_of
from extender.api.fields import Json, inner, need
from extender.api_schema import LintFinding
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted, one_line
from extender.cli.output import say
from extender.files import name_of, read_file
from extender.lint import Placed, check_manifests
from extender.manifests import objects_of_document, objects_or_faults
from extender.policy import MAX_POLICY_BYTES, Policy, PolicyError, load_policy

_LINE_BYTES = 4096
_PRINTED = ("severity", "where", "problem", "correction", "fixed")  # of a finding as JSON
_MAX_MANIFEST_BYTES = 4 * MAX_POLICY_BYTES  # of a manifest with a policy in it


class Manifests(NamedTuple):
    """The contents of files."""

    objects: list[Placed]  # (document, object)
    findings: list[LintFinding]  # about what is no Kubernetes object
    unreadable: list[WireError]  # a file or a document each


def checked_files(paths: Iterable[Path]) -> list[Placed]:
    """Return (document, object) of all objects of the files, corrected. Findings go to standard error.

    Raises WireError for a file that cannot be read, and typer.Exit(1) if an error needs the user.
    """
    read = read_manifests(paths)
    if read.unreadable:
        raise read.unreadable[0]
    checked = check_manifests(read.objects)
    if read.findings or checked.findings:
        print_findings(read.findings + checked.findings, "table", to_stderr=True)
    if read.findings or not checked.is_usable:
        raise typer.Exit(1)
    if any(finding.fixed for finding in checked.findings):
        say("berth: the answer is for the corrected objects, which berth lint --fix prints", err=True)
    return checked.objects


def read_manifests(paths: Iterable[Path]) -> Manifests:
    """Read files. A fault in one document hides no other document."""
    raw: list[Placed] = []
    found: list[LintFinding] = []
    unreadable: list[WireError] = []
    for path in paths:
        before = len(raw) + len(found) + len(unreadable)
        try:
            pieces = _documents(path)
        except WireError as error:
            unreadable.append(error)
            continue
        for document in pieces:
            try:
                for item in objects_or_faults(document):
                    if isinstance(item, WireError):
                        found.append(LintFinding("error", item.path, item.problem))
                    else:
                        raw.append((document.where, item))
            except WireError as error:
                unreadable.append(error)
        if before == len(raw) + len(found) + len(unreadable):
            unreadable.append(WireError(name_of(path), "holds no Kubernetes objects"))
    return Manifests(raw, found, unreadable)


def print_findings(found: list[LintFinding], output: str, *, to_stderr: bool, fixing: bool = False) -> None:
    """Print findings and, in a table, their number without notes. `fixing` marks those that `--fix` corrects."""
    for finding in found:
        severity = "fixed" if fixing and finding.fixed else finding.severity
        line = (
            orjson.dumps({name: getattr(finding, name) for name in _PRINTED}).decode()
            if output == "json"
            else one_line(f"{severity}: {finding.where}: {finding.problem}", _LINE_BYTES)
        )
        say(line, err=to_stderr)
        if finding.correction and output == "table":
            say(one_line(f"  correction: {finding.correction}", _LINE_BYTES), err=to_stderr)
    if output == "table":
        count, fixed = sum(finding.severity != "note" for finding in found), sum(finding.fixed for finding in found)
        left = f", {fixed} fixed, {count - fixed} left" if fixing and count else ""
        say(counted(count, "finding") + left, err=to_stderr)


def documents(path: Path) -> Iterator[Json]:
    """Yield the objects of a file and the items of its lists. Raises WireError if it is unreadable or has none."""
    is_empty = True
    for document in _documents(path):
        for obj in objects_of_document(document):
            is_empty = False
            yield obj
    if is_empty:
        raise WireError(name_of(path), "holds no Kubernetes objects")


def _documents(path: Path) -> list[Document]:
    """Return the documents of a file; a fault in one leaves the others readable. Raises WireError."""
    where = name_of(path)
    return documents_of(text_of(read_file(path), where), where)


def policy_of(path: Path) -> Policy:
    """Return the policy of a file. Raises WireError or PolicyError that names the file."""
    try:
        return load_policy(policy_text(path))
    except PolicyError as error:
        raise type(error)(f"{name_of(path)}: {error}") from error


def policy_text(path: Path) -> str:
    """Return the text of a policy file, or of the ConfigMap that contains the policy. Raises WireError."""
    where = name_of(path)
    text = text_of(read_file(path, _MAX_MANIFEST_BYTES), where)
    found = [text]
    if "ConfigMap" in text:
        objects = [obj for document in documents_of(text, where) for obj in objects_of_document(document)]
        data = [inner(obj, "data", where) for obj in objects if obj.get("kind") == "ConfigMap"]
        found = [need(one, "policy.yaml", f"{where}: data") for one in data] or found
    if len(found) > 1:
        raise WireError(where, f"holds {len(found)} ConfigMaps where one policy is expected")
    return found[0]

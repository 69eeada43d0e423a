"""The parts of a release: a CycloneDX bill of materials and the licences, from the installed distributions."""

from __future__ import annotations

import json
import re
import sys
import uuid
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parents[1]


def needed(name: str, found: dict[str, metadata.Distribution]) -> None:
    """The distribution and what it needs at run time, extras aside but for the one that the image has."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    try:
        found[key] = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return  # a requirement of another platform or Python version
    for line in found[key].requires or ():
        if "extra ==" not in line or (key == "berth" and re.search(r"extra == .traces.", line)):
            needed(re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0], found)


def licence(one: metadata.Distribution) -> str:
    fields = cast("Message[str, str]", one.metadata)
    named = fields.get("License-Expression", "")
    named = named or ", ".join(
        c.rpartition(" :: ")[2] for c in fields.get_all("Classifier") or () if c.startswith("License ::")
    )
    text = fields.get("License", "")
    return named or next(iter(text.strip().splitlines()), "")


def bill(components: list[dict[str, object]]) -> dict[str, object]:
    """The bill of materials. Its serial number, without which it could not be signed, comes from its content."""
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(components))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": number.urn, "version": 1}
    return {**head, "components": components}


def main() -> int:
    found: dict[str, metadata.Distribution] = {}
    needed("berth", found)
    pins = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pins = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    problems, rows = [], []
    components: list[dict[str, object]] = []
    for name, one in sorted(found.items()):
        kind = licence(one)
        if name != "berth" and pins.get(name) != one.version:
            problems.append(f"{name} {one.version} is installed, constraints.txt says {pins.get(name, 'nothing')}")
        if not kind:
            problems.append(f"{name}: its licence is unknown")
        rows.append(f"{name} {one.version}: {kind}")
        components.append(
            {
                "type": "library",
                "name": name,
                "version": one.version,
                "purl": f"pkg:pypi/{name}@{one.version}",
                "licenses": [{"license": {"name": kind}}],
            }
        )
    folder = ROOT / "dist"
    folder.mkdir(exist_ok=True)
    (folder / "licences.txt").write_text("\n".join(rows) + "\n")
    (folder / "sbom.json").write_text(json.dumps(bill(components), indent=1))
    print(f"{len(rows)} distributions; dist/licences.txt, dist/sbom.json")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes the krew plugin of a release beside its wheel: the archive, and the manifest krew/berth.yaml.

`python .ci/make_krew.py dist URL`: krew downloads the archive from URL/kubectl-berth-VERSION.tar.gz.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "manifests" / "krew"
PROGRAM = "kubectl-berth"


def write_plugin(dist: Path, url: str) -> Path:
    """Write both files, and return the path of the manifest. The same wheel gives the same bytes."""
    wheels = sorted(dist.glob("berth-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"{dist}: holds {len(wheels)} wheels where one is expected; python -m build --wheel makes one")
    if not url.startswith("https://"):
        sys.exit(f"URL: must begin with https://, is {url!r}")
    version = wheels[0].name.split("-")[1]
    archive = dist / f"{PROGRAM}-{version}.tar.gz"
    archive.write_bytes(_archive([SOURCE / PROGRAM, ROOT / "constraints.txt", ROOT / "LICENSE", wheels[0]]))
    manifest = yaml.safe_load((SOURCE / "berth.yaml").read_text())
    manifest["spec"]["version"] = f"v{version}"
    (platform,) = manifest["spec"]["platforms"]
    platform["uri"] = f"{url.rstrip('/')}/{archive.name}"
    platform["sha256"] = hashlib.sha256(archive.read_bytes()).hexdigest()
    path = dist / "krew" / "berth.yaml"  # krew wants the name of the plugin; dist/berth.yaml has the objects to apply
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(manifest, sort_keys=False, width=100))
    return path


def _archive(paths: list[Path]) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in paths:
            content = path.read_bytes()
            member = tarfile.TarInfo(path.name)
            member.size, member.mode = len(content), 0o755 if path.name == PROGRAM else 0o644
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


if __name__ == "__main__":
    print(write_plugin(Path(sys.argv[1]), sys.argv[2]))

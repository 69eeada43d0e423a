"""Writes the diagrams of docs/img: concepts.svg, and cpu.svg from a table of the documents.

See `make picture`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[1] / "docs"
INK, GREY, BLUE, GREEN, AMBER = "#1f2937", "#6b7280", "#2563eb", "#15803d", "#b45309"


def svg(width: int, height: int, inner: str) -> str:
    """A picture with a white background, which is readable on light and dark pages."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="13" fill="{INK}"><rect width="{width}" height="{height}" fill="white"/>\n{inner}</svg>\n'
    )


def text(x: float, y: float, words: str, more: str = "") -> str:
    """One line of text."""
    return f'<text x="{x:g}" y="{y:g}"{" " if more else ""}{more}>{html.escape(words)}</text>\n'


# -- concepts ----------------------------------------------------------------------------------------------------


class Box(NamedTuple):
    """A process or an object, with a title and lines below it."""

    x: int
    y: int
    width: int
    height: int
    colour: str
    title: str
    lines: tuple[str, ...]

    def draw(self) -> str:
        """The box as SVG."""
        found = (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6" fill="white" '
            f'stroke="{self.colour}" stroke-width="2"/>\n'
        )
        found += text(self.x + 10, self.y + 20, self.title, f'font-weight="bold" fill="{self.colour}"')
        return found + "".join(text(self.x + 10, self.y + 40 + 17 * i, line) for i, line in enumerate(self.lines))


BOXES = (
    Box(20, 40, 270, 130, GREY, "You", ("Pod: schedulerName: berth-scheduler", "ResourceClaim: 4 GPUs, selectors",
        "annotation: topology: required", "", "questions: berth explain, the page")),
    Box(370, 40, 270, 130, GREY, "API server", ("Pods, Nodes", "ResourceClaims: devices asked for",
        "ResourceSlices: devices that exist", "", "no CRD of Berth")),
    Box(720, 40, 290, 130, GREEN, "GPU node", ("DRA driver: which devices exist", "berth agent: links, memory, health",
        "", "0━1 2━3   4━5 6━7")),
    Box(20, 270, 270, 110, BLUE, "berth console", ("why a pod waits, what would help", "the fleet, the audit",
        "changes no pod and no claim")),
    Box(370, 270, 270, 110, BLUE, "berth serve", ("a cache of the cluster", "which nodes have devices that fit",
        "which set of devices is the best")),
    Box(720, 270, 290, 110, GREY, "kube-scheduler", ("CPU, memory, affinity, priorities", "asks Berth about devices")),
)  # fmt: skip
# From the caller to the called, and the words with their place.
ARROWS: tuple[tuple[tuple[int, int], tuple[int, int], str, int, int], ...] = (
    ((290, 100), (370, 100), "1 create", 304, 92),
    ((720, 100), (640, 100), "slices", 664, 92),
    ((430, 270), (430, 170), "watch", 390, 225),
    ((800, 270), (640, 170), "2 watch", 735, 215),
    ((720, 300), (640, 300), "3 filter", 658, 292),
    ((720, 330), (640, 330), "4 prioritize", 646, 322),
    ((720, 365), (640, 365), "5 bind", 660, 357),
    ((490, 270), (490, 170), "6 devices and Binding", 498, 225),
    ((290, 290), (380, 170), "watch", 290, 245),
    ((150, 170), (150, 270), "ask", 158, 225),
)


def concepts() -> str:
    """The steps of kube-scheduler, Berth and the driver when a pod with a claim is placed."""
    inner = (
        f'<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{GREY}"/></marker></defs>\n'
    )
    for (x1, y1), (x2, y2), words, x, y in ARROWS:
        inner += (
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{GREY}" stroke-width="1.5" marker-end="url(#a)"/>\n'
        )
        inner += text(x, y, words, f'font-size="12" fill="{GREY}"')
    inner += "".join(box.draw() for box in BOXES)
    return svg(1030, 400, text(20, 22, "How a pod gets its GPUs", 'font-size="15"') + inner)


# -- CPU per pod -------------------------------------------------------------------------------------------------

PROCESSES = {"API server": "#94a3b8", "etcd": "#64748b", "controller manager": "#475569",
             "kube-scheduler": AMBER, "Berth": BLUE}  # fmt: skip
_CPU = re.compile(r"CPU per pod in ms, ([^:]+): (.+)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def rows_of(page: str, first: str) -> list[list[str]]:
    """The rows of the table whose first head is `first`, with the head."""
    lines = (DOCS / page).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    found = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return [cells for cells in found if not set(cells[0]) <= set("-")]


def cpu_rows() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """CPU per pod by fleet and pods, system, and process (`all`: of all processes), in ms.

    A cell with several numbers, such as those of two runs, counts with their mean; a cell without a number is left out.
    """
    head, *rows = rows_of("performance.md", "figure")
    found: dict[str, dict[str, dict[str, float]]] = {}
    for cells in rows:
        about = _CPU.fullmatch(cells[0])
        if about is None:
            continue
        for system, cell in zip(head[1:-1], cells[1:-1], strict=True):
            numbers = [float(number) for number in _NUMBER.findall(cell.partition("(")[0])]
            if numbers:
                found.setdefault(about[1], {}).setdefault(system, {})[about[2]] = mean(numbers)
    return found


def cpu() -> str:
    """Stacked bars: CPU per pod by process, the in-tree plugin beside Berth, of the fleets with a row per process."""
    fleets = {fleet: systems for fleet, systems in cpu_rows().items() if len(systems["in-tree"]) > 1}
    most = max(of["all"] for systems in fleets.values() for of in systems.values())
    inner, y = text(20, 24, "CPU per pod in milliseconds, all processes", 'font-size="15"'), 40
    for fleet, systems in fleets.items():
        inner += text(20, y + 18, fleet, 'font-weight="bold"')
        y += 26
        for system, of in systems.items():
            inner += text(150, y + 16, system, 'text-anchor="end"')
            x = 160.0
            for name, colour in PROCESSES.items():
                width = of.get(name, 0.0) / most * 480
                inner += f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="22" fill="{colour}"/>\n'
                x += width
            inner += text(round(x + 6, 1), y + 16, f"{of['all']:.0f}")
            y += 28
        y += 8
    return svg(720, y + 34, inner + "".join(_legend(y)))


def _legend(y: int) -> Iterator[str]:
    x = 20.0
    for name, colour in PROCESSES.items():
        yield f'<rect x="{x:g}" y="{y}" width="12" height="12" fill="{colour}"/>\n' + text(x + 17, y + 11, name)
        x += 40 + 6.4 * len(name)


PICTURES: Mapping[str, Callable[[], str]] = {"concepts.svg": concepts, "cpu.svg": cpu}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (DOCS / "img" / name).write_text(draw())

"""Reading of the attributes that an agent publishes, within the bounds of real hardware.

A value out of bounds is ignored and reported as a problem. The upper bounds leave room for the next generation of
hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from extender.model import Device

DRIVER = "fabric.berth.dev"
MAX_GPUS = 16  # the API's limits allow no more in one slice
MAX_NODE_GPUS = 64  # whole GPUs that a driver publishes for a node; the cost of a graph grows with their square
MAX_LINKS = 36  # NVLinks of one GPU; NVLink 5 has 18
MAX_PROBLEMS = 8  # problems reported per node
MAX_TEXT = 64  # characters; the API server's limit for a string attribute
_SHOWN = 40  # characters of a value that a problem quotes
_DOMAIN = f"{DRIVER}/"
_LINK = re.compile(r"([0-9]{1,2}):([0-9]{1,2})")  # [0-9]: str.isdigit also accepts digits that int() rejects

BOUNDS: Mapping[str, tuple[int, int]] = {
    "switchLinks": (0, MAX_LINKS),
    "linkMBps": (0, 200_000),  # one link, one direction; NVLink 5 has 50,000
    "nvlinkVersion": (0, 16),
    "pcieGeneration": (0, 16),
    "numaNode": (0, 1023),  # Linux supports at most 1,024 NUMA nodes
    "memoryTotalMiB": (0, 4 << 20),
    "memoryFreeMiB": (0, 4 << 20),  # and at most the total
    "memoryReservedMiB": (0, 4 << 20),  # and at most the total
}
"""Integer attributes of a GPU: name to (smallest, largest) possible value."""


class AgentFacts:
    """The attributes of one GPU as its agent publishes them, without those of other domains.

    Impossible values add a sentence to `problems`.
    """

    def __init__(self, device: Device, problems: list[str]) -> None:
        self._device = device.name
        self._values = {
            name.removeprefix(_DOMAIN): value for name, value in device.attributes.items() if name.startswith(_DOMAIN)
        }
        self._problems = problems

    def wrong(self, name: str, why: str) -> None:
        """Add a problem: the attribute has an impossible value."""
        shown = repr(str(self._values.get(name)))  # cut after escaping, which can turn one character into ten
        shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
        problem = f"device {self._device[:_SHOWN]}: {name} {shown} {why}"
        if len(self._problems) < MAX_PROBLEMS and problem not in self._problems:
            self._problems.append(problem)

    def text(self, name: str) -> str:
        """The string attribute, or '' if it is absent or too long."""
        value = self._values.get(name, "")
        if isinstance(value, str) and len(value) <= MAX_TEXT:
            return value
        self.wrong(name, f"is not text of at most {MAX_TEXT} characters")
        return ""

    def says(self, name: str, value: bool) -> bool:  # noqa: FBT001 - the value that the attribute is compared with
        """Whether the attribute is present and equals `value`."""
        return self._values.get(name) is value

    def count(self, name: str) -> int:
        """The integer attribute, or 0 if it is absent or outside BOUNDS."""
        least, most = BOUNDS[name]
        value = self._values.get(name, 0)
        if type(value) is int and least <= value <= most:
            return value
        self.wrong(name, f"is not an integer from {least} to {most}")
        return 0

    def memory_mib(self, name: str, total: int) -> int | None:
        """An amount of memory in MiB, or None if it is absent or above `total` MiB."""
        value = self._values.get(name)
        if value is None or (type(value) is int and 0 <= value <= total):
            return value
        self.wrong(name, f"is not an integer from 0 to memoryTotalMiB ({total})")
        return None

    def peers(self, own: int, gpus: int) -> list[int]:
        """Working links to each GPU of the node, by position. All 0 if the list is not valid or above MAX_LINKS."""
        found = [0] * gpus
        text = self.text("links")
        for entry in text.split(",", MAX_GPUS) if text else ():
            link = _LINK.fullmatch(entry)
            if link is None or int(link[1]) >= gpus or int(link[1]) == own:
                self.wrong("links", "is not a list of peer:count for other GPUs of this node")
                return [0] * gpus
            found[int(link[1])] = int(link[2])
        if sum(found) + self.count("switchLinks") > MAX_LINKS:
            self.wrong("links", f"gives the GPU more than {MAX_LINKS} links")
            return [0] * gpus
        return found

    def distances(self, own: int, gpus: int, unknown: int) -> tuple[int, ...]:
        """The distance to each GPU as a position in DISTANCES; `unknown` if it is absent or not valid."""
        text = self.text("distances")
        if len(text) > gpus or any(c not in "-0123456789" for c in text):
            self.wrong("distances", "is not one ASCII digit or '-' per GPU")
            text = ""
        digits = [unknown if c == "-" or int(c) >= unknown else int(c) for c in text]
        digits += [unknown] * (gpus - len(digits))
        digits[own] = 0
        return tuple(digits)

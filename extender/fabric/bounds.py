"""Reading what an agent says, within what hardware can be.

An agent speaks for one node. A value that no machine can have is left out and named, so that a broken or hostile agent
changes nothing but the NodeInfo of its own node. Upper bounds leave room for the next generation of hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from extender.model import Device

MAX_GPUS = 16  # what one slice can carry within the API's limits
MAX_LINKS = 36  # NVLinks of one GPU; NVLink 5 has 18
MAX_PROBLEMS = 8  # named per node; the rest only repeats them
MAX_TEXT = 64  # characters, as the API server admits
_SHOWN = 40  # characters of a value that a problem quotes
_LINK = re.compile(r"([0-9]{1,2}):([0-9]{1,2})")  # [0-9]: str.isdigit also accepts digits that int() refuses

BOUNDS: Mapping[str, tuple[int, int]] = {
    "switchLinks": (0, MAX_LINKS),
    "linkMBps": (0, 200_000),  # one link, one direction; NVLink 5 has 50,000
    "nvlinkVersion": (0, 16),
    "pcieGeneration": (0, 16),
    "numaNode": (0, 1023),  # Linux builds at most 1,024
    "memoryTotalMiB": (0, 4 << 20),
}
"""Integer attributes of a GPU, with the least and the largest value that a machine can have."""


class AgentFacts:
    """The attributes of one GPU as its agent says them. Values that cannot be are noted in `problems`."""

    def __init__(self, device: Device, problems: list[str]) -> None:
        self._device = device.name
        self._values = {name.partition("/")[2]: value for name, value in device.attributes.items()}
        self._problems = problems

    def wrong(self, name: str, why: str) -> None:
        """Note that an attribute cannot be as it is said."""
        shown = repr(str(self._values.get(name)))  # bounded after escaping: ten characters may show one
        shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
        problem = f"device {self._device[:_SHOWN]}: {name} {shown} {why}"
        if len(self._problems) < MAX_PROBLEMS and problem not in self._problems:
            self._problems.append(problem)

    def text(self, name: str) -> str:
        """A string; '' where it is not said."""
        value = self._values.get(name, "")
        if isinstance(value, str) and len(value) <= MAX_TEXT:
            return value
        self.wrong(name, f"is not text of at most {MAX_TEXT} characters")
        return ""

    def says(self, name: str, value: bool) -> bool:  # noqa: FBT001 - the value that the attribute is compared with
        """Whether the attribute is this boolean."""
        return self._values.get(name) is value

    def count(self, name: str) -> int:
        """An integer within BOUNDS; 0 where it is not said or cannot be."""
        least, most = BOUNDS[name]
        value = self._values.get(name, 0)
        if type(value) is int and least <= value <= most:
            return value
        self.wrong(name, f"is not an integer from {least} to {most}")
        return 0

    def memory_mib(self, name: str, total: int) -> int | None:
        """MiB of a part of the memory; None where it is not said or is more than `total`."""
        value = self._values.get(name)
        if value is None or (type(value) is int and 0 <= value <= total):
            return value
        self.wrong(name, f"is not an integer from 0 to memoryTotalMiB ({total})")
        return None

    def peers(self, own: int, gpus: int) -> list[int]:
        """Working links to each of the node's GPUs, by position; none at all where the GPU would have more than exist."""
        found = [0] * gpus
        text = self.text("links")
        for entry in text.split(",", MAX_GPUS) if text else ():
            said = _LINK.fullmatch(entry)
            if said is None or int(said[1]) >= gpus or int(said[1]) == own:
                self.wrong("links", "is not a list of peer:count for other GPUs of this node")
                return [0] * gpus
            found[int(said[1])] = int(said[2])
        if sum(found) + self.count("switchLinks") > MAX_LINKS:
            self.wrong("links", f"gives the GPU more than {MAX_LINKS} links")
            return [0] * gpus
        return found

    def distances(self, own: int, gpus: int, unknown: int) -> tuple[int, ...]:
        """The distance to each GPU as a position in DISTANCES; `unknown` where it is not said."""
        text = self.text("distances")
        if len(text) > gpus or any(c not in "-0123456789" for c in text):
            self.wrong("distances", "is not one ASCII digit or '-' per GPU")
            text = ""
        digits = [unknown if c == "-" or int(c) >= unknown else int(c) for c in text]
        digits += [unknown] * (gpus - len(digits))
        digits[own] = 0
        return tuple(digits)

"""The nodes that kube-scheduler keeps a pod from, whatever devices they have: what does, and which would else serve it.

kube-scheduler says of a pod without a toleration that a taint excludes some nodes, and that others have no devices.
Which of both has to change, it does not say. Here it is known which of the excluded nodes have the devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from extender.allocation import NodeInfo, tolerates
from extender.api.nodes import CORDONED, Taint
from extender.api.pods import Pod
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.base.text_limits import counted, first_few, one_line
from extender.explain.fleet_rows import CONDITIONS

_MAX_TOLD = 3  # obstacles, or ways to open nodes
_SELECTOR, _CORDON = "node selector or node affinity", "cordon"


class Obstacles(NamedTuple):
    """What keeps a pod from a node. `selector`: its node selector or affinity does."""

    selector: bool
    taints: tuple[Taint, ...]  # that it does not tolerate; a cordon is one

    @property
    def names(self) -> Iterator[str]:
        """Each in words."""
        yield from [_SELECTOR] * self.selector
        yield from (_CORDON if taint == CORDONED else f"taint {_text(taint)}" for taint in self.taints)


def excluded_nodes(
    pod: Pod, node_infos: Mapping[str, NodeInfo], deadline: Deadline = NO_DEADLINE
) -> dict[str, Obstacles]:
    """The nodes on which the pod may not run. Without node selectors only nodes with taints are compared.

    Raises DeadlineExceeded.
    """
    found = dict[str, Obstacles]()
    for name, node in ((name, node_info.node) for name, node_info in node_infos.items()):
        if pod.node_selectors or node.taints:
            deadline.check_time()  # an affinity may have thousands of conditions
            selector = not all(one.matches(node.name, node.labels) for one in pod.node_selectors)
            taints = tuple(taint for taint in node.taints if not any(tolerates(one, taint) for one in pod.tolerations))
            if selector or taints:
                found[name] = Obstacles(selector, taints)
    return found


def counted_obstacles(excluded: Iterable[Obstacles]) -> str:
    """What excludes nodes, and how many, the most first. One node may have several obstacles."""
    found = Counter(name for obstacles in excluded for name in obstacles.names)
    rows = sorted(found.items(), key=lambda one: (-one[1], one[0]))
    return first_few([f"{name} {count:,}" for name, count in rows], _MAX_TOLD)


def kept_from(usable: Mapping[str, Obstacles]) -> str:
    """What keeps a pod from the nodes that would else serve it: from those to which the least is in the way."""
    obstacles, names = _ways(usable)[0]
    what = " and ".join(f"its {name}" if name == _SELECTOR else f"the {name}" for name in obstacles.names)
    verb = "keep" if len(obstacles.taints) + obstacles.selector > 1 else "keeps"
    return f"{what} {verb} it from {_where(names)}, which {'have' if len(names) > 1 else 'has'} free devices for it"


def remedies(usable: Mapping[str, Obstacles]) -> tuple[str, ...]:
    """What would open nodes with devices for a pod, as near misses: the least first."""
    return tuple(
        f"fits on {_where(names)} if {' and '.join(_changes(obstacles, is_one=len(names) == 1))}"
        for obstacles, names in _ways(usable)[:_MAX_TOLD]
    )


def _ways(usable: Mapping[str, Obstacles]) -> list[tuple[Obstacles, list[str]]]:
    """Nodes by their obstacles: first those without a selector, then those without a cordon, then the fewest taints."""
    found: dict[Obstacles, list[str]] = {}
    for name in sorted(usable):
        found.setdefault(usable[name], []).append(name)
    return sorted(
        found.items(),
        key=lambda one: (one[0].selector, any(map(_is_condition, one[0].taints)), len(one[0].taints), -len(one[1])),
    )


def _is_condition(taint: Taint) -> bool:
    """Whether it says how the node is, as a cordon does: no pod is meant to tolerate it."""
    return taint.key.startswith(CONDITIONS)


def _changes(obstacles: Obstacles, *, is_one: bool) -> Iterator[str]:
    if obstacles.selector:
        yield f"its {_SELECTOR} admitted {'the node' if is_one else 'them'}"
    for taint in obstacles.taints:
        if taint == CORDONED:
            yield "the cordon ended" if is_one else "their cordons ended"
        elif _is_condition(taint):
            yield f"the taint {_text(taint)} ended"
        else:
            yield f"it tolerated the taint {_text(taint)}"


def _where(names: Sequence[str]) -> str:
    return names[0] + (f" and {counted(len(names) - 1, 'more node')}" if len(names) > 1 else "")


def _text(taint: Taint) -> str:
    """A taint as kubectl writes it."""
    return one_line(f"{taint.key}{'=' * bool(taint.value)}{taint.value}:{taint.effect}")

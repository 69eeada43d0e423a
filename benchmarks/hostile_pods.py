"""Pods whose evaluation is costly, or whose searches are in vain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.worlds.running_berth import claim, pod

Json = dict[str, Any]
NAMESPACE = "hostile"  # with a number if an attack has several


@dataclass(frozen=True)
class Attack:
    """Pods that are waiting at the same time."""

    gangs: int
    members: int  # of a gang; 1 for pods without a gang
    selectors: int = 32  # of a claim; 0 for pods without claims
    length: int = 240  # of the list in a selector, whose cost grows with its square
    attribute: str = "uuid"  # that a selector reads: nodes share no status if it reads the UUID
    requests: int = 1  # of a claim; the last two of several want the same GPU, so that every search is in vain
    verb: str = "filter"  # what else the pods cause: "bind", "preempt" or "console"
    namespaces: int = 1


ATTACKS = {
    "100 pods": Attack(100, 1),
    "100 pods in 20 namespaces": Attack(100, 1, namespaces=20),
    "a gang of 400 pods": Attack(1, 400),
    "100 gangs of 10 pods": Attack(100, 10),
    "100 gangs of 10 pods without devices": Attack(100, 10, selectors=0),
    "100 pods that end in time, scored": Attack(100, 1, selectors=4, length=60, attribute="productName"),
    "100 pods that end just in time, in 20 namespaces": Attack(
        100, 1, selectors=3, length=150, attribute="productName", namespaces=20
    ),
    "100 pods without room, with victims": Attack(100, 1, selectors=1, length=1, requests=3, verb="preempt"),
    "100 pods whose claims become costly before their bind": Attack(100, 1, verb="bind"),
    "100 pods without room while nodes change": Attack(100, 1, selectors=1, length=1, requests=3),
    "100 pods that users ask about": Attack(100, 1, verb="console"),
}
MAX_KINDS = 64  # different claims in one gang: Berth rejects a gang with more at once


def selector(attack: Attack, kind: str, number: int) -> str:
    """With the default attack, about 1,020 characters that take some 50 ms on one device."""
    long = f"[{','.join('1' * attack.length)}]"
    read = f'device.attributes["gpu.nvidia.com"].{attack.attribute}'
    return f'{long}.all(a,{long}.all(b,a<=b))&&{read}!="{kind}-{number}"'


def hostile(attack: Attack, phase: int) -> Iterator[Json]:
    """The claims and pods of one phase. No claim is like one of an earlier phase."""
    for gang in range(attack.gangs):
        for member in range(attack.members):
            name = f"p{phase}-{gang}-{member}"
            notes = {"berth.dev/group": f"p{phase}-{gang}", "berth.dev/group-min": str(attack.members)}
            waiting = pod(name, *[name] * bool(attack.selectors), annotations=notes if attack.members > 1 else None)
            kind = f"{phase}-{gang}-{member % MAX_KINDS}"
            asked = costly_claim(attack, name, kind) if attack.verb != "bind" else claim(name)
            for one in (asked, waiting)[not attack.selectors :]:
                number = gang % attack.namespaces
                one["metadata"]["namespace"] = f"{NAMESPACE}-{number}" if number else NAMESPACE
                yield one


def costly_claim(attack: Attack, name: str, kind: str) -> Json:
    texts = [selector(attack, kind, i) for i in range(attack.selectors)]
    asked = claim(name, selectors=[{"cel": {"expression": text}} for text in texts])
    asked["metadata"]["namespace"] = NAMESPACE
    devices = asked["spec"]["devices"]
    names = [f"gpu-{i}" for i in range(attack.requests)]
    devices["requests"] = [{**devices["requests"][0], "name": one} for one in names]
    if attack.requests > 1:
        devices["constraints"] = [{"matchAttribute": "gpu.nvidia.com/uuid", "requests": names[-2:]}]
    return asked


def is_hostile(pod: Json) -> bool:
    return pod["metadata"]["namespace"].startswith(NAMESPACE)

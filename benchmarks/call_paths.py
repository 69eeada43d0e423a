"""How many functions and files each request passes through, in a process with serve, the console and a small cluster.

`sys.setprofile` notes each function of `extender` that is entered, except lambdas, comprehensions, and the sandbox with
what it calls: it is the cluster. A file visit is a step from one file to another. The counts with `own` are of the
tasks that began with the request, and are the ones that are judged; of a gang, those of its filter, because its bind
is that of three pods. The others are of watches and background tasks, too, which the request wakes: a background task
may run in one measurement and not in the next. No count depends on the machine's speed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

import extender
from tests.worlds.running_berth import Berthing, berthing, claim, pod

_ROOT = f"{Path(extender.__file__).parent}/"
_NODES = {"n1": "a100-pcie-8-bridged", "n2": "t4-4", "n3": "a100-pcie-8-bridged"}
_SELECTOR = "device.attributes['gpu.nvidia.com'].productName.contains('A100')"
_COLUMNS = ("calls", "functions", "files", "visits", "own functions", "own files", "own visits")
_JUDGED = "Judged are the columns `own`, of a gang its filter; the others count watches and background tasks, too."
_QUIET_SECONDS = 0.2  # until the tasks that an earlier request woke rest again


class CallPath:
    """The functions that one request entered, in order, as (file, qualified name); `own` has those of its own tasks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[tuple[str, str]] = []
        self.own: list[tuple[str, str]] = []
        self._earlier = asyncio.all_tasks()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_filename.startswith(_ROOT) and not code.co_name.startswith("<")
        if event == "call" and is_function and not _is_of_sandbox(frame):
            self.calls.append((code.co_filename.removeprefix(_ROOT), code.co_qualname))
            with suppress(RuntimeError):  # a child that answers a question has no event loop
                if asyncio.current_task() not in {None, *self._earlier}:
                    self.own.append(self.calls[-1])

    @property
    def row(self) -> str:
        counts = len(self.calls), *_sizes(self.calls), *_sizes(self.own)
        return f"{self.name:28}" + "".join(f"{count:>14}" for count in counts)

    @property
    def functions(self) -> str:
        """Each function with the number of its calls; + marks those that only other tasks enter."""
        own = set(self.own)
        counts = Counter(self.calls).items()
        return "\n".join(f"{' ' if call in own else '+'} {':'.join(call)} x{count}" for call, count in counts)


def _is_of_sandbox(frame: FrameType | None) -> bool:
    """Whether the sandbox is among the callers, nearer than Berth's own applications: its server runs them, too."""
    while frame is not None and not frame.f_code.co_filename.startswith(f"{_ROOT}web/"):
        if frame.f_code.co_filename.startswith(f"{_ROOT}sandbox/"):
            return True
        frame = frame.f_back
    return False


def _sizes(calls: list[tuple[str, str]]) -> tuple[int, int, int]:
    """The number of functions, of files and of file visits."""
    visits = [file for file, _ in groupby(file for file, _ in calls)]
    return len(set(calls)), len(set(visits)), len(visits)


@contextmanager
def followed(name: str) -> Iterator[CallPath]:
    path = CallPath(name)
    sys.setprofile(path.note)
    try:
        yield path
    finally:
        sys.setprofile(None)


async def follow(name: str, request: Awaitable[Any], show: bool) -> Any:
    """Print the row of a request, and with `show` each function with the number of its calls."""
    await asyncio.sleep(_QUIET_SECONDS)
    with followed(name) as path:
        answer = await request
    print(path.row)
    if show:
        print(path.functions)
    return answer


def wait(b: Berthing, name: str, count: int = 2, selector: str = "", **annotations: str) -> None:
    b.cluster.apply(claim(name, count, selector))
    b.cluster.apply(pod(name, name, annotations={f"berth.dev/{key}": text for key, text in annotations.items()}))


async def requests(b: Berthing, show: bool) -> None:
    """One pod alone, and a gang of three. Berth knows the first pod's requirements from an earlier pod."""
    nodes = list(_NODES)
    for name in ("earlier", "known"):
        wait(b, name)
    await b.settled()
    await b.bind("earlier", (await b.filter_once("earlier", nodes))["NodeNames"][0])
    fits = (await follow("filter, known requirements", b.filter_once("known", nodes), show))["NodeNames"]
    await follow("prioritize", b.prioritize("known", fits), show)
    error = await follow("bind", b.bind("known", fits[0]), show)
    assert not error, error
    wait(b, "new", selector=_SELECTOR)
    await b.settled()
    await follow("filter, new requirements", b.filter_once("new", nodes), show)
    await follow("claim event", change_claim(b), show)
    await follow("slice event", change_slice(b), show)
    await follow("filter after a slice event", b.filter_once("new", nodes), show)
    await follow("explain", b.client.get("/v1/explain/default/new"), show)
    members = [f"member-{number}" for number in range(3)]
    for name in members:
        wait(b, name, 1, group="gang", **{"group-min": "3"})
    await b.settled()
    found = await follow("filter, gang of three", b.filter_once(members[0], nodes), show)
    places = [found["NodeNames"][0], *[(await b.filter_once(name, nodes))["NodeNames"][0] for name in members[1:]]]
    errors = await follow("bind, gang of three", bind_all(b, members, places), show)
    assert not any(errors), errors


async def bind_all(b: Berthing, pods: list[str], nodes: list[str]) -> list[str]:
    return await asyncio.gather(*(b.bind(name, node) for name, node in zip(pods, nodes, strict=True)))


async def change_claim(b: Berthing) -> None:
    b.cluster.apply(claim("unused"))
    await b.settled()


async def change_slice(b: Berthing) -> None:
    found = next(one for one in b.cluster.store.all("resourceslices") if one["spec"]["driver"] == "gpu.nvidia.com")
    first, *others = found["spec"]["devices"]
    first = {**first, "attributes": {**first["attributes"], "changed": {"int": 1}}}
    changed = {**found, "spec": {**found["spec"], "devices": [first, *others]}}
    async with httpx.AsyncClient(base_url=b.api, verify=False) as client:  # the sandbox's own certificate
        path = f"/apis/resource.k8s.io/v1/resourceslices/{found['metadata']['name']}"
        (await client.put(path, json=changed)).raise_for_status()
    await b.settled()


async def measure(show: bool) -> None:
    print(_JUDGED)
    print(f"{'':28}" + "".join(f"{column:>14}" for column in _COLUMNS))
    async with berthing(_NODES) as b:
        await requests(b, show)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", action="store_true", help="list the functions, too")
    asyncio.run(measure(parser.parse_args().functions))


if __name__ == "__main__":
    main()

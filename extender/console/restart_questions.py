"""Users' questions which pods to restart, so that a pod or a group that waits fits.

The advice itself is made by a `RestartAdvisor`, which proves it with the code of serve. The console loads none of that:
the command that starts the console passes the function that makes an advisor.

The cache has nodes, slices, claims and waiting pods. What running pods are, what nodes offer besides devices, and the
PodDisruptionBudgets are read from the API server for each question.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.base.berth_errors import BerthError
from extender.base.text_limits import one_line
from extender.cache import ClusterCache
from extender.cluster import ApiClient, ClusterError, pages
from extender.console.explainer import Explainer
from extender.console.forked_call import forked
from extender.console.questions import PacedLock, Wait
from extender.policy import Policy

NO_BUDGETS = "which pods they protect is not known, and kubectl delete does not ask them"
BUDGETS_PATH = "/apis/policy/v1/poddisruptionbudgets"
_PODS_PATH = "/api/v1/pods"
_NODES_PATH = "/api/v1/nodes"
_RUNNING = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_PAGE_OBJECTS = 250
_MAX_WAITING = 2  # questions: each reads all pods
_SEARCH_SECONDS = 8.0
_MORE_SECONDS = 12.0  # for the proof, which a page waits for
_MORE_BYTES = 512 << 20  # of memory, beyond that of the console


class RestartAdvisor(Protocol):
    """Makes one advice. `advise` only computes: it runs in a child process."""

    def add(self, objects: Sequence[Json]) -> None:
        """Note some Pods, Nodes or PodDisruptionBudgets. Runs in a thread. Raises WireError that names the object."""

    def advise(self, key: ObjectKey, policy: Policy, now: datetime, seconds: float, *, is_group: bool) -> Json:
        """The advice for a pod or a group as JSON. Raises WireError if it does not wait."""


class RestartQuestions:
    """Answers one question at a time. `advisor` makes an advisor that reads the cache; None: there is no advice."""

    def __init__(self, client: ApiClient, explainer: Explainer, refreshed: Wait) -> None:
        self.advisor: Callable[[ClusterCache], RestartAdvisor] | None = None
        self._client = client
        self._explainer = explainer
        self._refreshed = refreshed
        self._lock = PacedLock(_MAX_WAITING, "questions wait for their advice")

    async def advice(self, key: ObjectKey, *, is_group: bool) -> Json:
        """What to restart, as `berth defrag --output json` prints it.

        Raises TooManyQuestions, ClusterError if pods or nodes cannot be listed, WireError for a question that is none,
        or as `forked`.
        """
        if self.advisor is None:
            raise BerthError("this console gives no advice on restarts: berth defrag does")
        async with self._lock.one():
            advisor = self.advisor(self._explainer.cache)
            unknown = await self._read(advisor)
            await self._refreshed()
            policy, now = self._explainer.policy, datetime.now(UTC)
            work = partial(advisor.advise, key, policy, now, _SEARCH_SECONDS, is_group=is_group)
            found = await forked(work, _SEARCH_SECONDS + _MORE_SECONDS, _MORE_BYTES)
            return {"advice": [found], "not_known": unknown}

    async def _read(self, advisor: RestartAdvisor) -> list[str]:
        """Tell the advisor all pods, nodes and budgets. Returns what is not known. Raises ClusterError."""
        await _add_all(advisor, pages(self._client, _PODS_PATH, "PodList", _PAGE_OBJECTS, _RUNNING))
        await _add_all(advisor, pages(self._client, _NODES_PATH, "NodeList", _PAGE_OBJECTS))
        try:
            await _add_all(advisor, pages(self._client, BUDGETS_PATH, "PodDisruptionBudgetList", _PAGE_OBJECTS))
        except ClusterError as error:
            return [f"PodDisruptionBudgets could not be listed ({one_line(str(error))}): {NO_BUDGETS}"]
        return []


async def _add_all(advisor: RestartAdvisor, listed: AsyncGenerator[Json, None]) -> None:
    async with aclosing(listed):
        async for page in listed:
            kind = str(page["kind"]).removesuffix("List")
            await asyncio.to_thread(advisor.add, [{**one, "kind": kind} for one in page.get("items") or ()])

"""Users' questions to the explainer: read, queued, completed by reads from the API server, and answered one at a time.

A question passes these steps, and none of them blocks the event loop for long:

1. `read` parses its body in a thread.
2. `PacedLock` lets one question in at a time. The next one starts after a pause, as long as this one blocked the loop.
3. What the cache lacks is read from the API server: the bound members of a group (`_BoundMembers`), or a bound pod.
4. The Explainer answers with a small limit of work in the event loop; its results stay for later questions. If that is
   not enough, it answers again in a forked child process, on a copy of the cache.

`RestartQuestions` answers which pods to restart, so that a pod or a group that waits fits. The advice itself is made by
a `RestartAdvisor`, which proves it with the code of serve. The console loads none of that: the command that starts the
console passes the function that makes an advisor. The cache has nodes, slices, claims and waiting pods. What running
pods are, what nodes offer besides devices, and the PodDisruptionBudgets are read from the API server for each question.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, TypeVar

from extender.api.fields import Json
from extender.api.object_meta import ObjectKey, is_label, is_subdomain
from extender.api.pod_groups import GroupKey, Membership
from extender.api.pods import Pod
from extender.base.berth_errors import BerthError
from extender.base.text_limits import one_line
from extender.cache import ClusterCache
from extender.cluster import ApiClient, ClusterError, NotFound, pages
from extender.console.decision_history import DecisionHistory
from extender.console.explainer import Brief, Explainer, UnknownPod, WhatIf
from extender.console.forked_call import forked
from extender.explain import groups_named
from extender.explain.scenario import Scenario
from extender.gangs.gang import gang_minimum, is_incomplete, may_terminate, placed_members
from extender.manifests import Hypothetical
from extender.policy import Policy

T = TypeVar("T")
Wait = Callable[[], Awaitable[None]]
WORK_SECONDS = 2.0  # of one question
_MAX_WAITING = 6  # questions; the last is answered within the 30 s for which `berth explain` waits
_LOOP_SECONDS = 0.05  # of one question in the event loop
_MORE_SECONDS = 1.0  # that a child may take beyond its work

NO_BUDGETS = "which pods they protect is not known, and kubectl delete does not ask them"
BUDGETS_PATH = "/apis/policy/v1/poddisruptionbudgets"
_PODS_PATH = "/api/v1/pods"
_NODES_PATH = "/api/v1/nodes"
_RUNNING = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_PAGE_OBJECTS = 250
_MAX_RESTART_QUESTIONS = 2  # questions: each reads all pods
_SEARCH_SECONDS = 8.0
_PROOF_SECONDS = 12.0  # for the proof, which a page waits for
_PROOF_BYTES = 512 << 20  # of memory, beyond that of the console


class TooManyQuestions(BerthError):
    """The queue of questions is full."""


class Reads(Protocol):
    """What questions read from the API server. Raises ClusterError."""

    async def read_pod(self, key: ObjectKey) -> Pod: ...

    async def read_bound_members(self, namespace: str) -> Mapping[GroupKey, Mapping[str, str]]:
        """For each group of a namespace, UID to node of its bound pods."""


class PacedLock:
    """One caller runs at a time, and at most `most` others wait. An error says their number and `what` they are.

    After a caller, other work has the event loop for `blocked` seconds: the caller writes how long it blocked the loop.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._lock = asyncio.Lock()
        self._waiting = 0
        self.blocked = 0.0

    @property
    def full(self) -> str:
        """Why no further caller may wait; '' if one may."""
        return f"{self._waiting} {self._what} already: try again" if self._waiting >= self._most else ""

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for the lock. Raises TooManyQuestions."""
        if self.full:
            raise TooManyQuestions(self.full)
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        with self._running():
            yield

    @asynccontextmanager
    async def one_of_berth(self) -> AsyncIterator[None]:
        """Wait for the lock, however many wait: no user asks, so it takes no place of a user."""
        await self._lock.acquire()
        with self._running():
            yield

    @contextmanager
    def _running(self) -> Iterator[None]:
        self.blocked = 0.0
        try:
            yield
        finally:  # the pause begins after the answer
            asyncio.get_running_loop().call_later(self.blocked, self._lock.release)


class Questions:
    """Answers questions of users, as JSON. See CacheRefresh.wait for `refreshed`."""

    def __init__(
        self,
        explainer: Explainer,
        history: DecisionHistory,
        reads: Reads,
        refreshed: Wait,
    ) -> None:
        self.explainer = explainer
        self._history = history
        self._reads = reads
        self._refreshed = refreshed
        self._bound_members = _BoundMembers(explainer.cache, reads, refreshed)
        self._lock, self._parsing = (PacedLock(_MAX_WAITING, "questions wait for their explanation") for _ in range(2))

    async def read(self, parse: Callable[[], T]) -> T:
        """The result of `parse`, which reads a question. It runs in a thread, one question at a time.

        A body of 1 MiB may take 40 MB and a second. Raises TooManyQuestions if too many questions wait to be read.
        """
        async with self._parsing.one():
            return await asyncio.to_thread(parse)

    async def in_turn(self, work: Callable[[], T]) -> T:
        """The result of a function that blocks the event loop for a moment. Raises TooManyQuestions."""
        async with self._lock.one():
            return await self._answer(lambda _: work(), WORK_SECONDS)

    async def pod(self, key: ObjectKey, what_if: WhatIf) -> Json:
        """Explain a pod that exists. Raises UnknownPod, TooManyQuestions, or as `forked`."""
        async with self._lock.one():
            await self._refreshed()
            pod = self.explainer.waiting_pod(key)
            membership = pod.membership if pod is not None else None
            groups = {membership.key: [pod]} if pod is not None and membership is not None else {}
            async with self._bound_members.known(groups):
                found = await self._answer(partial(self.explainer.waiting, key, what_if), WORK_SECONDS)
            return found or await self._of_bound(key)

    async def _of_bound(self, key: ObjectKey) -> Json:
        """Explain a bound pod from its object and its claims. Raises UnknownPod."""
        unknown = UnknownPod(f"pod {one_line(str(key))} does not wait for Berth, and is not bound")
        if not (is_label(key.namespace) and is_subdomain(key.name)):
            raise unknown
        try:
            pod = await self._reads.read_pod(key)
        except NotFound as error:
            raise UnknownPod(f"pod {one_line(str(key))} does not exist") from error
        except ClusterError as error:
            raise unknown from error
        if not pod.node_name:
            raise unknown
        await self._refreshed()
        return self.explainer.bound(pod, self._history.entry(pod.uid))

    async def group(self, key: ObjectKey, scenario: Scenario) -> list[Json]:
        """Explain the groups of this name. Raises UnknownGroup, TooManyQuestions, or as `forked`."""
        async with self._lock.one():
            await self._refreshed()
            groups = groups_named(self.explainer.cache.snapshot(), key.namespace, key.name)
            async with self._bound_members.known(groups) as members:
                return await self._answer(
                    lambda seconds: self.explainer.groups(key, scenario, members, seconds=seconds), WORK_SECONDS
                )

    async def hypothetical(self, given: Hypothetical, what_if: WhatIf) -> list[Json]:
        """The list of Explainer.hypothetical. Raises TooManyQuestions, WireError, or as `forked`."""
        async with self._lock.one():
            return await self._answer(
                lambda seconds: list(self.explainer.hypothetical(given, what_if, seconds)), WORK_SECONDS
            )

    async def brief(self, uid: str, seconds: float) -> Brief | None:
        """See Explainer.brief."""
        async with self._lock.one_of_berth():
            return await self._answer(partial(self.explainer.brief, uid), seconds)

    async def _answer(self, explain: Callable[[float], T], work_seconds: float) -> T:
        """The result of `explain`, a function without side effects that takes its time limit in seconds.

        Only within a turn. Raises as `forked`.
        """
        await self._refreshed()
        clock, seconds = self.explainer.clock, min(_LOOP_SECONDS, work_seconds)
        began = clock()
        try:
            found = explain(seconds)
        finally:
            self._lock.blocked = clock() - began
        if self._lock.blocked < seconds or seconds == work_seconds:
            return found
        return await forked(partial(explain, work_seconds), work_seconds + _MORE_SECONDS)


class _BoundMembers:
    """Reads the bound members of groups from the API server: the cache has only their claims.

    A member without devices has no claim, so a gang of which some members are bound may seem incomplete. A claim does
    not show that its pod terminates. And if no pod of a group waits, only a bound pod has the minimum.
    """

    def __init__(self, cache: ClusterCache, reads: Reads, refreshed: Wait) -> None:
        self._cache = cache
        self._reads = reads
        self._refreshed = refreshed

    @asynccontextmanager
    async def known(self, groups: Mapping[GroupKey, Sequence[Pod]]) -> AsyncIterator[dict[GroupKey, Membership]]:
        """Read the bound members of those groups whose claims may not show all. The cache has them until the exit.

        `groups` has the pods of each group without a node. Yields, for each group with no such pod, the membership of
        a bound pod.
        """
        lacking = [key for key, pods in groups.items() if not pods or self._must_read(pods[0])]
        known, used = self._cache.store.bound_members, dict[GroupKey, Mapping[str, str]]()
        earlier = {key: known.get(key) for key in lacking}  # serve may share the cache, and may have read them
        if lacking:
            with suppress(ClusterError):
                snapshot = self._cache.snapshot()
                # A pod that has a claim before the list, and that is not in the list, is gone or terminates.
                before = {key: dict.fromkeys(snapshot.users_of_group(key), "") for key in lacking}
                read = await self._reads.read_bound_members(lacking[0].namespace)
                placed = self._cache.store.members_in_trees(read)
                used = {key: {**before[key], **placed.get(key, {})} for key in lacking}
                for key, members in used.items():
                    self._cache.store.use_bound_members(key, members)
        try:
            yield {key: found for key, pods in groups.items() if not pods and (found := await self._membership(key))}
        finally:
            for key, members in used.items():
                if known.get(key) is members:
                    self._cache.store.use_bound_members(key, earlier[key])

    def _must_read(self, pod: Pod) -> bool:
        snapshot, membership = self._cache.snapshot(), pod.membership
        minimum = gang_minimum(membership, snapshot) if membership is not None else 0
        if membership is None or not minimum:
            return False
        placed = placed_members(membership.key, snapshot)
        return is_incomplete(membership, minimum, snapshot) or may_terminate(membership.key, placed, minimum, snapshot)

    async def _membership(self, key: GroupKey) -> Membership | None:
        """The membership of a bound pod of the group that runs; None if no such pod can be read."""
        await self._refreshed()
        snapshot = self._cache.snapshot()
        running = placed_members(key, snapshot)
        claims = [snapshot.claims[claim] for claim in snapshot.claims_of_group(key)]
        users = [(one.name, one.uid) for claim in claims for one in claim.reserved_for if one.uid in running]
        if not users:
            return None
        name, uid = min(users)
        try:
            pod = await self._reads.read_pod(ObjectKey(key.namespace, name))
        except ClusterError:
            return None
        found = self._cache.store.in_tree(pod).membership
        return found if found is not None and (found.key, pod.uid) == (key, uid) else None


# -- which pods to restart ------------------------------------------------------------------------------------------


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
        self._lock = PacedLock(_MAX_RESTART_QUESTIONS, "questions wait for their advice")

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
            found = await forked(work, _SEARCH_SECONDS + _PROOF_SECONDS, _PROOF_BYTES)
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

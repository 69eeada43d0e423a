"""Runs the reader in a process of its own: a crash of NVML is a log line, a metric and the next try.

A call of NVML may also hang. Then the process is killed. `AgentApp` answers kubelet's liveness probe and Prometheus.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from signal import Signals
from typing import Any, NamedTuple, NoReturn

import structlog

from extender.api.gpu_topology import UNKNOWN_DISTANCE
from extender.base.berth_errors import BerthError
from extender.cluster import Backoff, Delays
from extender.runtime.supervisor import Supervisor
from extender.topology.agent_slices import Reading
from extender.web.asgi import TEXT, Answer, GetApp
from extender.web.metrics import TASK_FAILURES, MetricSource, Scrapes, counter

_COMMAND = (sys.executable, "-X", "faulthandler", "-m", "extender.agent.reader")  # names the call that crashed
_DEADLINE_SECONDS = 20.0  # the first call after a boot may take 8 s; a call that takes longer hangs
_DELAYS = Delays(first=5.0, most=60.0, reset=600.0)
_END_SECONDS = 5.0  # a killed process that has not ended is blocked in the driver
_MAX_ANSWER = 1 << 20  # bytes of the readings of all GPUs


class ReadFailed(BerthError):
    """There is no reading; the text says why."""


class _Failure(NamedTuple):
    cause: str  # "crash", "hang" or "nvml": NVML itself answers with an error
    why: str


class ReaderProcess:
    """Reads by a child process, which `stop` ends. `failures` counts by cause: crash, hang, nvml.

    `command` starts the process, and `delays` are those before the next start after a failure. `clock` returns seconds.
    """

    def __init__(
        self,
        command: Sequence[str] = _COMMAND,
        delays: Delays = _DELAYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._backoff = Backoff(delays, clock)
        self._clock = clock
        self._next_start = float("-inf")
        self._process: Process | None = None
        self._killed: Process | None = None
        self._xids: dict[str, int] = {}  # those that the processes before have read
        self._log = structlog.get_logger("berth.agent")
        self.failures: Counter[str] = Counter(crash=0, hang=0, nvml=0)
        self.problem = ""  # of the last try, if it failed

    @property
    def pid(self) -> int | None:
        """The id of the child process, None without one."""
        return self._process.pid if self._process is not None else None

    async def read(self) -> tuple[Reading, ...]:
        """The readings of all GPUs in PCI order. Raises ReadFailed, also while the next try has to wait."""
        process = self._process or await self._start()
        answer: list[dict[str, Any]] | _Failure
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                answer = await self._ask(process)
        except TimeoutError:
            answer = _Failure("hang", f"NVML did not answer within {_DEADLINE_SECONDS:g} s")
        if isinstance(answer, _Failure):
            await self._end(process)
            self._failed(answer)
        self.problem = ""
        readings = tuple(as_reading(gpu) for gpu in answer)
        self._xids |= {reading.uuid: reading.xid for reading in readings if reading.xid}
        return readings

    async def stop(self) -> None:
        """End the child process."""
        if self._process is not None:
            await self._end(self._process)

    async def _start(self) -> Process:
        if self._clock() < self._next_start:
            raise ReadFailed(self.problem)
        if self._killed is not None and self._killed.returncode is None:
            raise ReadFailed(f"process {self._killed.pid}, which reads NVML, is blocked in the driver and does not end")
        self._killed = None
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, limit=_MAX_ANSWER
            )
        except OSError as error:
            self._failed(_Failure("crash", f"the process that reads NVML cannot be started: {error}"))
        return self._process

    async def _ask(self, process: Process) -> list[dict[str, Any]] | _Failure:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError, ValueError):  # it has ended; or its answer is too long, or ends in the middle
            process.stdin.write(json.dumps(self._xids).encode() + b"\n")
            await process.stdin.drain()
            answer = json.loads(await process.stdout.readline())
            return _Failure("nvml", answer["problem"]) if "problem" in answer else list(answer["gpus"])
        process.stdin.close()
        return _Failure("crash", _end_of(await process.wait()))

    def _failed(self, failure: _Failure) -> NoReturn:
        """Log and count the failure, and raise ReadFailed."""
        self.failures[failure.cause] += 1
        seconds = self._backoff.next()
        self._next_start = self._clock() + seconds
        if failure.cause != "nvml" or failure.why != self.problem:  # a node without a driver says so once
            self._log.warning("NVML could not be read", problem=failure.why, next_try_seconds=round(seconds, 1))
        self.problem = failure.why
        raise ReadFailed(failure.why)

    async def _end(self, process: Process) -> None:
        self._process, self._killed = None, process
        with suppress(ProcessLookupError):
            process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()


def as_reading(gpu: dict[str, Any]) -> Reading:
    """A reading from what the reader process wrote about a GPU."""
    links = tuple((int(peer), int(count)) for peer, count in gpu["links"])
    distances = tuple(UNKNOWN_DISTANCE if distance is None else int(distance) for distance in gpu["distances"])
    return Reading(**{**gpu, "links": links, "distances": distances})


def _end_of(code: int) -> str:
    """A sentence about the exit code of the reader process."""
    end = f"ended with exit code {code}" if code >= 0 else f"crashed with {Signals(-code).name}"
    return f"the process that reads NVML {end}"


# -- the answers to kubelet and Prometheus -------------------------------------------------------------------


READ_FAILURES: MetricSource[AgentApp] = counter(
    "berth_nvml_failures_total",
    "Failed readings of NVML by cause: crash, hang, or nvml (NVML answered with an error)",
    lambda app: {(cause,): float(count) for cause, count in app.reader.failures.items()},
    "cause",
)


class AgentApp(GetApp):
    """GET /livez: 200 with the tasks that keep failing and why NVML cannot be read. GET /metrics: failures.

    Neither is a reason to restart the agent: the supervisor restarts the task, the next try has a new reader process.
    """

    reader: ReaderProcess

    def __init__(self, reader: ReaderProcess, supervisor: Supervisor) -> None:
        self.reader = reader
        self.supervisor = supervisor
        answers = {"/livez": self._live, "/metrics": Scrapes((TASK_FAILURES, READ_FAILURES), self).answer}
        super().__init__(answers, "berth agent has only /livez and /metrics")

    def _live(self) -> Answer:
        failing = [f"task {name} keeps failing: {problem}" for name, problem in self.supervisor.failing.items()]
        return Answer(200, "; ".join(["ok", *failing, *filter(None, [self.reader.problem])]).encode(), TEXT)

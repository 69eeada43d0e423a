"""The ASGI applications of `berth serve`: the verbs, the probes and the metrics, without a framework.

A verb that fails is 200 with `Error`, as kube-scheduler's extender protocol has it; only a request outside the protocol
gets 4xx.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from extender.api.extender_v1 import (
    NameOffsets,
    decode_args,
    decode_bind,
    encode_bind,
    encode_filter,
    encode_filter_error,
    encode_passed,
    encode_preempt,
    encode_scores,
)
from extender.base.berth_errors import BerthError, WireError
from extender.serve import Service, TracedService, Traces
from extender.web.asgi import (
    PROBE_PATHS,
    TEXT,
    VERBS,
    Answer,
    BodyReader,
    GetApp,
    HttpLimits,
    Receive,
    RejectionLog,
    Scope,
    Send,
    TooLarge,
    TooManyBodies,
    is_json,
    not_json,
    probe,
    problem,
)
from extender.web.metrics import Scrapes
from extender.web.serve_metrics import METRICS

MAX_BODY = 16 * 1024 * 1024  # bytes; 15,000 names have 0.6 MB, 1,000 complete Node objects 14 MB


class Probes(GetApp):
    """GET /livez, /readyz and /metrics."""

    def __init__(self, service: Service) -> None:
        super().__init__(
            {
                **{path: partial(probe, path, service.informers) for path in PROBE_PATHS},
                "/metrics": Scrapes(METRICS, service).answer,
            },
            "berth serve has only the extender's verbs, probes and metrics; berth console has the rest",
        )


def _rejection(scope: Scope) -> Answer | None:
    """The error answer to a request that cannot come from kube-scheduler; None if it can.

    kube-scheduler sends application/json and no Origin, as a page in a browser does.
    """
    headers = dict(scope["headers"])  # the server rejects a request that repeats one of these
    if b"origin" in headers:
        return problem(403, "the extender's verbs are not for web pages: the request has an Origin")
    return None if is_json(headers.get(b"content-type", b"")) else not_json()


class ServeApp:
    """Answers POST /filter, /prioritize, /bind and /preempt. All else is for `probes`, unless they have an address of
    their own (None). `limits` are those of the bodies."""

    def __init__(
        self,
        service: Service,
        probes: Probes | None,
        traces: Traces | None = None,
        limits: HttpLimits = VERBS,
        rejections: RejectionLog | None = None,
    ) -> None:
        self.service = service
        self._verbs = service if traces is None else TracedService(service, traces)
        self._probes = probes
        self._bodies = BodyReader(limits)
        self._rejections = rejections or RejectionLog()
        self._offsets = NameOffsets()
        self._log = structlog.get_logger("berth.web")
        self._routes: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/bind": self._bind,
            "/preempt": self._preempt,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path in self._routes:
            start = time.perf_counter()
            answer = await self._reply(scope, receive)
            self.service.calls.observe(path[1:], answer.status, time.perf_counter() - start)
            await answer.to(send)
        elif self._probes is not None:
            await self._probes(scope, receive, send)
        else:
            await Answer(404, b"this address only serves the extender's verbs", TEXT).to(send)

    async def _reply(self, scope: Scope, receive: Receive) -> Answer:
        method, path = scope["method"], scope["path"]
        if method != "POST":
            return problem(405, f"{path} takes POST, not {method}")
        rejected = _rejection(scope)
        if rejected is not None:
            self._rejections.note("not from kube-scheduler", path=path, status=rejected.status)
            return rejected
        try:
            return Answer(200, await self._routes[path](await self._bodies.read(scope, receive, MAX_BODY)))
        except TooManyBodies as error:
            return problem(503, str(error))
        except TooLarge as error:
            return problem(413, str(error))
        except WireError as error:
            return problem(400, str(error))

    async def _filter(self, body: bytes) -> bytes:
        args = decode_args(body, self._offsets)
        identity = args.identity
        if not (self.service.cached_pod(*identity) or args).concerns_berth:
            return encode_passed(args)
        await self.service.refresh.wait()
        pod = self.service.cached_pod(*identity) or args.pod
        try:
            answer = self._verbs.filter(pod, args.names)
        except WireError:
            raise
        except Exception as error:  # noqa: BLE001 - kube-scheduler must get an error that it retries
            self._log.exception("filter failed", pod=str(pod.key))
            return encode_filter_error(f"berth failed on pod {pod.key}: {type(error).__name__}: {error}")
        if answer.error:
            return encode_filter_error(answer.error)
        if answer.passed is None:
            return encode_passed(args)
        return encode_filter(args, answer.passed, answer.failed)

    async def _prioritize(self, body: bytes) -> bytes:
        args = decode_args(body, self._offsets)
        await self.service.refresh.wait()
        pod, names = self.service.cached_pod(*args.identity) or args.pod, args.names
        try:
            return encode_scores(self._verbs.prioritize(pod, names))
        except WireError:
            raise
        except Exception:  # noqa: BLE001 - see the comment below
            # kube-scheduler ignores an error of prioritize. Zeros have the same effect, and the log has the reason.
            self._log.exception("prioritize failed", pod=str(pod.key))
            return encode_scores((name, 0) for name in names)

    async def _bind(self, body: bytes) -> bytes:
        pod, uid, node = decode_bind(body)
        try:
            await self._verbs.bind(pod, uid, node)
        except asyncio.CancelledError:  # by the server: its time for the exit is over, and the bind goes on
            return encode_bind(f"Berth shuts down before the bind of pod {pod} has ended")
        except BerthError as error:
            self._log.warning("bind failed", pod=str(pod), node=node, problem=str(error))
            return encode_bind(str(error))
        except Exception as error:  # noqa: BLE001 - kube-scheduler must get the error as text
            self._log.exception("bind failed", pod=str(pod), node=node)
            return encode_bind(f"berth failed: {type(error).__name__}: {error}")
        return encode_bind("")

    async def _preempt(self, body: bytes) -> bytes:
        return encode_preempt(body)

"""The console of a cluster: found with a kubeconfig, as kubectl finds it, and asked through the API server.

The pod says what is needed to ask it: the port named `pages`, whether the pages use TLS, and the Secret of their token.
All requests have the rights of the user. A request opens a port forward of its own.
"""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import httpx

from extender.api.fields import Json
from extender.base.berth_errors import BerthError
from extender.base.text_limits import counted, error_line, one_line
from extender.cli.console_client import ANSWER_SECONDS, ConsoleClient
from extender.cluster import (
    ApiClient,
    ClusterError,
    Credentials,
    Forbidden,
    NotFound,
    PortForward,
    kubeconfigs,
    load_credentials,
)

_SELECTOR = "app=berth-console"
_PORT, _VOLUME, _KEY = "pages", "page-token", "token"  # names in manifests/base/console.yaml


class _Pod(NamedTuple):
    """A pod of the console that is ready."""

    name: str
    port: int
    has_tls: bool
    secret: str  # with the token of its pages; '' if it has none


def credentials_of_cluster(kubeconfig: Path | None, context: str) -> Credentials:
    """The way to the API server. Raises BerthError."""
    if not kubeconfigs(kubeconfig) and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise BerthError(
            "no kubeconfig leads to a cluster: set KUBECONFIG, or give --kubeconfig FILE; --server names a console"
        )
    return load_credentials(kubeconfig, context)


class InstalledConsole(ConsoleClient):
    """Asks the console in `berth_namespace` of a cluster. `namespace` is the default namespace of the context.

    Without a token it reads the one of the Secret. Raises BerthError with one sentence about what is missing.
    """

    def __init__(self, credentials: Credentials, berth_namespace: str, token: str) -> None:
        super().__init__("berth console", token, credentials.namespace)
        self._credentials, self._within = credentials, berth_namespace
        self._pod: _Pod | None = None

    @property
    def place(self) -> str:
        """Where the console is, for messages."""
        context = f" of context {one_line(self._credentials.context)}" if self._credentials.context else ""
        return f"namespace {one_line(self._within)}{context}"

    def send(self, path: str, body: bytes | None) -> httpx.Response:
        """The reply of the console."""
        return asyncio.run(self._send(path, body))

    async def _send(self, path: str, body: bytes | None) -> httpx.Response:
        async with ApiClient(self._credentials) as client:
            pod = self._pod = self._pod or await self._found(client)
            async with PortForward(client, self._within, pod.name, pod.port) as forward:
                # The console takes localhost for a name of its own, and the certificates of the manual have it.
                url = f"{'https' if pod.has_tls else 'http'}://localhost:{pod.port}{path}"
                transport = httpx.AsyncHTTPTransport(uds=forward.path, verify=pod.has_tls)
                try:
                    async with httpx.AsyncClient(transport=transport, timeout=ANSWER_SECONDS) as http:
                        return await http.request(**self.request(url, body))
                except httpx.HTTPError as error:
                    self._pod = None  # it may be gone
                    raise self._unreachable(pod, forward.problem or error) from error

    async def _found(self, client: ApiClient) -> _Pod:
        """The pod that answers. Its Secret has the token, if none is given."""
        pod = await self._ready_pod(client)
        self.address = f"pod {self._within}/{pod.name}"
        if pod.secret and (not self.token or self.token_from.startswith("Secret")):
            self.token = await self._secret_token(client, pod.secret)
            self.token_from = f"Secret {self._within}/{pod.secret}"
        return pod

    def attempts(self, pod: str) -> str:
        """How often kube-scheduler did not place a pod, by its Events: '8 attempts, 11:29 to 11:31 UTC'.

        '' without such Events, which an API server keeps for an hour, or if the user may not list them.
        """
        return asyncio.run(self._attempts(*pod.split("/")))

    async def _attempts(self, namespace: str, pod: str) -> str:
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
        about = f"involvedObject.kind=Pod,involvedObject.name={pod},reason=FailedScheduling"
        async with ApiClient(self._credentials) as client:
            try:
                return _attempts_of((await client.get(path, {"fieldSelector": about}))["items"])
            except ClusterError:
                return ""

    def _unreachable(self, pod: _Pod, error: Exception) -> BerthError:
        if isinstance(error, Forbidden):  # a WebSocket is opened with GET; newer API servers want both verbs
            return BerthError(f"your account may not get and create pods/portforward in {self.place}")
        reason = error_line(str(error)) or type(error).__name__
        if isinstance(error, httpx.RemoteProtocolError):  # kubelet may close before its error has left
            reason = "the connection ended without an answer"
        return BerthError(f"cannot forward port {pod.port} of pod {pod.name} in {self.place}: {reason}")

    async def _ready_pod(self, client: ApiClient) -> _Pod:
        path = f"/api/v1/namespaces/{quote(self._within, safe='')}/pods"
        try:
            pods = (await client.get(path, {"labelSelector": _SELECTOR}))["items"]
        except ClusterError as error:
            raise BerthError(f"cannot list pods in {self.place}: {error}") from error
        running = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        if not running:
            raise BerthError(
                f"no pod has the label {_SELECTOR} in {self.place}: "
                "--berth-namespace names another namespace, --server another console"
            )
        ready = [pod for pod in running if _is_ready(pod)]
        if not ready:
            name, why = running[0]["metadata"]["name"], _why_not_ready(running[0])
            raise BerthError(f"pod {one_line(name)} in {self.place} is not ready: {one_line(why)}")
        return _read(ready[0], self.place)

    async def _secret_token(self, client: ApiClient, secret: str) -> str:
        path = f"/api/v1/namespaces/{quote(self._within, safe='')}/secrets/{quote(secret, safe='')}"
        asked = f"cannot get Secret {one_line(secret)} in {self.place}"
        try:
            found = (await client.get(path)).get("data") or {}
            token = base64.b64decode(found[_KEY]).decode("ascii").strip()
        except NotFound as error:
            raise BerthError(f"{asked}: it does not exist; docs/install.md has the command that makes it") from error
        except ClusterError as error:
            raise BerthError(f"{asked}: {error}; who knows the token can set BERTH_TOKEN") from error
        except (KeyError, ValueError) as error:
            raise BerthError(f"{asked}: it has no ASCII text under the key {_KEY}") from error
        return token


def _attempts_of(events: list[Json]) -> str:
    """The attempts in Events of v1. One Event stands for a series; its fields depend on the API that wrote it."""
    count, times = 0, list[str]()
    for event in events:
        series, began = event.get("series") or {}, event.get("eventTime") or event.get("firstTimestamp")
        count += series.get("count") or event.get("count") or 1
        last = series.get("lastObservedTime") or event.get("lastTimestamp") or began
        times += [str(time) for time in (began, last) if time]
    if not times:
        return ""
    found = counted(count, "attempt")
    first, last = (f"{time[:10]} {time[11:16]}" for time in (min(times), max(times)))
    if first == last:
        return f"{found}, {first[11:]} UTC"
    is_one_day = first[:10] == last[:10]
    return f"{found}, {first[11:]} to {last[11:]} UTC" if is_one_day else f"{found}, {first} to {last} UTC"


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _why_not_ready(pod: Json) -> str:
    """What its containers wait for, why the scheduler does not place it, or its phase."""
    status = pod.get("status", {})
    for one in status.get("containerStatuses") or ():
        waiting = one.get("state", {}).get("waiting")
        if waiting:
            return f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip()
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one.get("message") or one.get("reason"))
    phase = status.get("phase", "Pending")
    return "its readiness probe fails" if phase == "Running" else f"its phase is {phase}"


def _read(pod: Json, place: str) -> _Pod:
    """What the pod says about its pages. Raises BerthError."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    for container in spec["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == _PORT:
                words = (*(container.get("command") or ()), *(container.get("args") or ()))
                has_tls = any(word.partition("=")[0] == "--tls-cert" for word in words)
                secrets = (one["secret"]["secretName"] for one in spec.get("volumes") or () if one["name"] == _VOLUME)
                return _Pod(name, port["containerPort"], has_tls, next(secrets, ""))
    raise BerthError(f"pod {one_line(name)} in {place} has no container port named {_PORT}")

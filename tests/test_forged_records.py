"""Forged records against a process of `berth console`, over TLS and with tokens: nothing is believed, nothing grows.

The senders with a valid token have the token of serve, as after a theft.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from extender.model import DEFAULT_MIX, DeviceId, ReservationState, Result
from extender.records import MAX_BODY, Batch, PolicyState, Record, Reserved
from extender.records.encoding import encode
from extender.sandbox import Cluster, carried_machines
from tests.certificates import NEEDS_OPENSSL, certificate
from tests.eventually import HANG_SECONDS, answers, eventually
from tests.process_worlds import free_port, process, write_kubeconfig
from tests.records_worlds import BERTH, TOKENS
from tests.running_berth import claim

pytestmark = NEEDS_OPENSSL
JSON = b"Content-Type: application/json\r\nAuthorization: Bearer good\r\n"
MIB = 1024 * 1024


@dataclass
class Forger:
    """A console's process, and a client that may send it anything."""

    pid: int
    port: int  # of the records
    tls: ssl.SSLContext
    claims: list[str]  # UIDs of claims that exist
    people: httpx.AsyncClient
    client: httpx.AsyncClient
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def batch(self, sequence: int, *records: Record, epoch: str = "e", replica: str = "berth-0") -> bytes:
        policy = PolicyState(1, "d")
        return encode(Batch(replica, epoch, sequence, next(self.numbers), 0, policy, DEFAULT_MIX, records))

    def held(self, position: int, gpu: int, state: ReservationState = ReservationState.HELD) -> Reserved:
        result = Result("gpu", DeviceId("gpu.nvidia.com", "n1", f"gpu-{gpu}"))
        seconds = 300.0 if state is ReservationState.HELD else math.inf
        return Reserved(self.claims[position], f"pod-{position}", "n1", (result,), state, seconds)

    async def post(self, content: bytes, token: str = "good", **headers: str) -> httpx.Response:
        given = {"Content-Type": "application/json", "Authorization": f"Bearer {token}".strip(), **headers}

        async def answered() -> httpx.Response | None:
            reply = await self.client.post("/v1/records", content=content, headers=given)
            return reply if reply.status_code != 429 else None

        return await eventually(answered, "an answer")

    async def taken(self, content: bytes) -> None:
        reply = await self.post(content)
        assert reply.status_code == 204, reply.text

    async def gpus(self) -> str:
        """The state of each GPU of n1, for example `fffh`: the last one is held."""
        return "".join(node["gpus"] for node in (await self.people.get("/v1/fleet")).json()["nodes"])

    async def processes(self) -> list[dict[str, Any]]:
        return (await self.people.get("/v1/processes")).json()

    async def metric(self, name: str) -> float:
        """Asks until the metrics, which the console renders once a second, have the number."""

        async def shown() -> re.Match[str] | None:
            return re.search(rf"^{re.escape(name)} (\S+)$", (await self.people.get("/metrics")).text, re.MULTILINE)

        return float((await eventually(shown, name))[1])

    async def reaches(self, name: str, value: float) -> None:
        async def reached() -> bool:
            return await self.metric(name) == value

        await eventually(reached, f"{name} {value}")

    def memory(self) -> int:
        """Bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@asynccontextmanager
async def forger(folder: Path, claims: int = 8) -> AsyncIterator[Forger]:
    certificate(folder, "console")
    cluster = Cluster(bookmark_seconds=0.5, tokens=TOKENS)
    cluster.add_node("n1", carried_machines()["t4-4"])
    uids = [cluster.apply(claim(f"c{n}"))["metadata"]["uid"] for n in range(claims)]
    tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    pages, records = free_port(), free_port()
    files = ("--tls-cert", str(folder / "console.crt"), "--tls-key", str(folder / "console.key"))
    sender = ("--records", f"127.0.0.1:{records}", "--records-from", BERTH)
    async with cluster.serving() as api:
        write_kubeconfig(folder, api)
        url, heard = f"https://127.0.0.1:{pages}", f"https://127.0.0.1:{records}"
        async with (
            process(folder, "console", "--listen", f"127.0.0.1:{pages}", *sender, *files) as running,
            httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=tls) as people,
            httpx.AsyncClient(base_url=heard, timeout=HANG_SECONDS, verify=tls) as client,
        ):
            await answers(f"{url}/readyz", 200, verify=tls)
            yield Forger(running.pid, records, tls, uids, people, client)


async def test_nothing_of_a_sender_without_serves_token_is_believed(tmp_path: Path) -> None:
    async with forger(tmp_path) as f:
        forged = f.batch(1, f.held(0, 0))
        for token, status in (("", 401), ("made-up", 401), ("wrong-audience", 401), ("other-account", 403)):
            assert (await f.post(forged, token)).status_code == status
        async with httpx.AsyncClient(timeout=HANG_SECONDS, headers={"Authorization": "Bearer good"}) as plain:
            with pytest.raises(httpx.HTTPError):  # no TLS
                await plain.post(f"http://127.0.0.1:{f.port}/v1/records", content=forged)
        assert (await f.gpus(), await f.processes()) == ("ffff", [])
        await f.taken(forged)
        assert await f.gpus() == "hfff"


async def test_repeated_batches_and_batches_of_other_versions_change_nothing(tmp_path: Path) -> None:
    async with forger(tmp_path) as f:
        first, second = f.batch(1, f.held(0, 0)), f.batch(2, f.held(1, 1))
        for content in (first, second, *[first, second] * 10, f.batch(1, f.held(2, 2), f.held(3, 3))):
            await f.taken(content)
        assert await f.gpus() == "hhff", "the third claims to be what the first two were"
        for version in (b"1", b"3", b'"2"', b"null"):
            other = f.batch(3, f.held(2, 2)).replace(b'"version":2', b'"version":' + version)
            assert (await f.post(other)).status_code == 400
        await f.reaches('berth_records_requests_total{answer="version"}', 4)
        await f.reaches('berth_records_faults_total{fault="duplicates"}', 22)
        assert await f.metric("berth_records_taken_total") == 2
        assert [one["last"] for one in await f.processes()] == [2]


async def test_wrong_senders_and_jumps_are_rejected_and_a_gap_ends_what_the_process_held(tmp_path: Path) -> None:
    async with forger(tmp_path) as f:
        await f.taken(f.batch(1, f.held(0, 0)))
        await f.taken(f.batch(1, f.held(1, 1), epoch="other", replica="berth-1"))
        for content in (f.batch(2, f.held(2, 2), replica="berth-1"), f.batch(2_000_000, f.held(2, 2))):
            assert (await f.post(content)).status_code == 400
        assert await f.gpus() == "hhff"
        await f.taken(f.batch(7, f.held(3, 3)))
        assert await f.gpus() == "fhfh", "a release may be among the records that did not arrive"
        await f.taken(f.batch(2, f.held(0, 0)))
        assert await f.gpus() == "fhfh", "it comes too late"
        await f.reaches('berth_records_faults_total{fault="missing"}', 5)


async def test_a_batch_that_is_cut_in_the_middle_is_not_applied(tmp_path: Path) -> None:
    async with forger(tmp_path) as f:
        whole = f.batch(1, f.held(0, 0), f.held(1, 1))
        _, writer = await asyncio.open_connection("127.0.0.1", f.port, ssl=f.tls, server_hostname="127.0.0.1")
        head = b"POST /v1/records HTTP/1.1\r\nHost: c\r\n" + JSON + b"Content-Length: %d\r\n\r\n" % len(whole)
        writer.write(head + whole[: len(whole) // 2])
        await writer.drain()
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
        await f.reaches('berth_records_requests_total{answer="400"}', 1)
        assert (await f.gpus(), await f.processes()) == ("ffff", [])
        for end in range(len(whole) - 20, len(whole)):
            assert (await f.post(whole[:end])).status_code == 400
        assert (await f.gpus(), await f.processes()) == ("ffff", [])
        await f.taken(whole)
        assert await f.gpus() == "hhff"


async def test_two_replicas_at_once_lose_nothing(tmp_path: Path) -> None:
    async with forger(tmp_path) as f:

        async def send(replica: str, gpu: int) -> None:
            for sequence in range(1, 101):
                state = ReservationState.HELD if sequence % 2 else ReservationState.BINDING
                await f.taken(f.batch(sequence, f.held(gpu, gpu, state), epoch=replica, replica=replica))

        await asyncio.gather(send("berth-0", 0), send("berth-1", 1))
        assert await f.gpus() == "uuff"
        assert sorted((one["replica"], one["last"]) for one in await f.processes()) == [
            ("berth-0", 100),
            ("berth-1", 100),
        ]
        assert await f.metric("berth_records_taken_total") == 200


async def test_epochs_that_flip_and_ever_new_senders_take_no_memory(tmp_path: Path) -> None:
    async with forger(tmp_path) as f:
        await f.taken(f.batch(1, f.held(0, 0), epoch="flip-0"))
        for n in range(1, 300):
            await f.taken(f.batch(1, f.held(0, 0), epoch=f"flip-{n}"))
            assert (await f.post(f.batch(2, f.held(1, 1), epoch=f"flip-{n - 1}"))).status_code == 409
        assert await f.gpus() == "hfff"
        shape = {
            "cpu": 1,
            "memory": 1,
            "gpus": 1,
            "milli": 1,
            "models": ["m" * 250 + str(n) for n in range(64)],
            "share": 0,
        }
        before, sent = f.memory(), {}
        for n in range(300):
            sent = orjson.loads(f.batch(1, epoch=f"sender-{n}", replica=f"r-{n}")) | {"mix": [shape] * 5}
            await f.taken(orjson.dumps(sent))
        assert len(await f.processes()) == 64
        assert await f.gpus() == "ffff", "the process that held a GPU is among the evicted ones"
        assert f.memory() - before < 40 * MIB
        reply = await f.post(orjson.dumps(sent | {"mix": [shape] * 50}))
        assert (reply.status_code, "mix: is larger than" in reply.text) == (400, True)


async def test_reservations_with_long_lists_of_capacities_take_no_memory(tmp_path: Path) -> None:
    """Each took a mebibyte: 8,192 such claims would have ended the console."""
    async with forger(tmp_path, claims=160) as f:
        consumed = {"d.example/" + "c" * 200 + str(n): "1" + "0" * 400 for n in range(64)}
        device = {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-3", "request": "gpu", "consumed": consumed}
        (record,) = orjson.loads(f.batch(1, f.held(0, 3)))["records"]
        before = f.memory()
        for position, uid in enumerate(f.claims):
            body = orjson.loads(f.batch(position + 1))
            content = orjson.dumps(body | {"records": [record | {"claim_uid": uid, "results": [device] * 22}]})
            assert len(content) < MAX_BODY
            await f.taken(content)
        assert await f.gpus() == "fffh"
        assert f.memory() - before < 90 * MIB

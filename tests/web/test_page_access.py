"""Pages answer their own names and origin alone, and beyond loopback only with the token."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from extender.web.console.console_app import MAX_TOKEN_BYTES, Access
from tests.worlds.http_worlds import pages

HOSTS = [
    ("127.0.0.1", (), "127.0.0.1:8888", True),
    ("127.0.0.1", (), "localhost:9", True),
    ("127.0.0.1", (), "LOCALHOST", True),
    ("127.0.0.1", (), "[::1]:8888", True),
    ("127.0.0.1", (), "evil.example", False),
    ("127.0.0.1", (), "10.1.2.3", False),
    ("127.0.0.1", (), "", False),
    ("127.0.0.1", (), "127.0.0.1.evil.example", False),
    ("127.0.0.1", (), "localhost.evil", False),
    ("10.1.2.3", (), "10.1.2.3:80", True),
    ("10.1.2.3", (), "10.1.2.4", False),
    ("::1", (), "[::1]", True),
    ("0.0.0.0", (), "10.1.2.3:8889", True),
    ("::", (), "[fd00::7]:8889", True),
    ("0.0.0.0", (), "berth.berth-system.svc", False),
    ("0.0.0.0", ("Berth.berth-system.svc",), "berth.berth-system.svc:80", True),
    ("desk", (), "desk:8888", True),
    ("127.0.0.1", (), "[::1]evil", False),
    ("127.0.0.1", (), "[::1]:8888evil", False),
    ("127.0.0.1", (), "[localhost]", False),
    ("127.0.0.1", (), "[127.0.0.1]", False),
    ("127.0.0.1", (), "localhost:x@evil", False),
    ("127.0.0.1", (), "localhost:", True),
    ("::", (), "fd00::7", False),
    ("0.0.0.0", (), "[10.1.2.3", False),
]


@pytest.mark.parametrize(("listens", "names", "host", "ours"), HOSTS)
def test_pages_know_their_names(listens: str, names: tuple[str, ...], host: str, ours: bool) -> None:
    """Attack: read the pages by DNS rebinding."""
    scope = {"method": "GET", "headers": [(b"host", host.encode())]}
    refused = Access(listens, names).rejection(scope, open_to_all=True)
    assert refused is None if ours else refused is not None and refused.status == 403 and b"--page-host" in refused.body


PAGES = [
    ("GET", "/v1/fleet", {}, 200),
    ("GET", "/metrics", {}, 200),
    ("GET", "/", {}, 200),
    ("GET", "/v1/fleet", {"Host": "evil.example"}, 403),
    ("GET", "/", {"Host": "evil.example"}, 403),
    ("GET", "/metrics", {"Host": "evil.example"}, 403),
    ("GET", "/livez", {"Host": "any.example"}, 200),
    ("GET", "/readyz", {"Host": "any.example"}, 200),
    ("GET", "/v1/fleet", {"Origin": "http://evil.example"}, 403),
    ("GET", "/v1/fleet", {"Origin": "null"}, 403),
    ("POST", "/v1/explain", {"Content-Type": "application/json", "Origin": "http://evil.example"}, 403),
    ("POST", "/v1/explain", {"Content-Type": "text/plain"}, 415),
    ("POST", "/v1/explain", {}, 415),
    ("GET", "/nothing", {}, 404),
    ("DELETE", "/v1/fleet", {}, 405),
]


async def test_pages_are_for_their_own_origin_and_nothing_is_guessed_about_types() -> None:
    """Attack: read the pages by DNS rebinding."""
    async with pages() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=False) as client:
        for method, path, headers, wanted in PAGES:
            reply = await client.request(method, path, headers=headers)
            assert reply.status_code == wanted, (method, path, headers, reply.text)
            assert reply.headers.get_list("x-content-type-options") == ["nosniff"], path
            assert wanted == 200 or list(reply.json()) == ["error"], path
        own = {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/json"}
        assert "does not exist" in (await client.post("/v1/explain", headers=own, content=b'{"pod": "x/y"}')).text


async def test_pages_beyond_loopback_are_closed_until_there_is_a_token(tmp_path: Path) -> None:
    """kubelet mounts an optional Secret in this way: the file appears later, and may change."""
    token = tmp_path / "token"
    async with (
        pages(Access("0.0.0.0", (), token)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=False) as client,
    ):

        async def asked(**headers: str) -> int:
            return (await client.get("/v1/fleet", headers=headers)).status_code

        assert [
            (await client.get(path)).status_code for path in ("/livez", "/readyz", "/metrics", "/version", "/")
        ] == [200] * 5
        assert await asked() == 403
        assert await asked(Authorization="Bearer") == 403
        token.write_text("")
        assert await asked(Authorization="Bearer") == 403, "an empty file is no token"
        token.write_text("s3cret\n")
        assert await asked() == 401
        assert await asked(Authorization="Bearer other") == 401
        assert await asked(Authorization="Bearer s3cret") == 200
        token.write_text("next\n")
        assert await asked(Authorization="Bearer s3cret") == 401
        assert await asked(Authorization="Bearer next") == 200


@pytest.mark.parametrize(
    ("host", "closed"),
    [
        ("0.0.0.0", True),
        ("::", True),
        ("10.1.2.3", True),
        ("console.example", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("localhost", False),
    ],
)
def test_pages_beyond_loopback_are_closed_if_no_token_file_is_named(host: str, closed: bool) -> None:
    """Attack: read the pages without the token."""
    name = f"[{host}]" if ":" in host else host
    scope = {"method": "GET", "path": "/v1/fleet", "headers": [(b"host", name.encode())]}
    rejected = Access(host).rejection(scope, open_to_all=False)
    assert (rejected is not None and rejected.status == 403) is closed


def test_a_token_file_that_becomes_a_pipe_or_too_large_closes_the_pages(tmp_path: Path) -> None:
    """Opening a pipe waits for its writer, and the whole console would wait with it."""
    token = tmp_path / "token"
    access = Access("0.0.0.0", (), token)

    def status(bearer: bytes) -> int:
        headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer " + bearer)]
        rejected = access.rejection({"method": "GET", "headers": headers}, open_to_all=False)
        return 200 if rejected is None else rejected.status

    token.write_bytes(b"t" * MAX_TOKEN_BYTES)
    assert status(b"t" * MAX_TOKEN_BYTES) == 200
    token.write_bytes(b"t" * (MAX_TOKEN_BYTES + 1))
    assert status(b"t" * MAX_TOKEN_BYTES) == 403
    token.unlink()
    os.mkfifo(token)
    assert status(b"t") == 403


async def test_the_browser_runs_the_files_of_the_page_only() -> None:
    """A name with HTML in it runs nothing even where the page would not set it as text."""
    async with pages() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        policy = (await client.get("/")).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert (rules["default-src"], rules["script-src"], rules["base-uri"]) == ("'none'", "'self'", "'none'")
    assert rules["frame-ancestors"] == "'none'"

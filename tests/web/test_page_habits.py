"""What a person does with the page besides reading it: search, theme, sign-in, a telephone, an empty cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extender.sandbox import listening
from extender.web.console.console_app import Access, ConsoleApp
from tests.worlds.browser import CHROMIUM, NAMES, Page, browsing
from tests.worlds.explain_worlds import refused
from tests.worlds.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.skipif(not CHROMIUM, reason=f"install Chromium: PATH has no {', '.join(NAMES)}")
LIVE = "document.getElementById('link').textContent === 'live'"
FOUND = "[...document.querySelectorAll('#found button')].map(one => one.innerText)"
IS_OPEN = "!document.getElementById('found').hidden"


@asynccontextmanager
async def shown(machines: dict[str, str]) -> AsyncIterator[tuple[Berthing, Page]]:
    async with berthing(machines) as b, browsing(str(b.client.base_url)) as page:
        await page.until(LIVE)
        yield b, page
        assert page.errors == []


async def test_search_results_drop_down_over_the_page_and_arrows_move_in_them() -> None:
    async with shown({"n1": "t4-4", "n2": "t4-4", "other": "t4-4"}) as (_, page):
        top = await page.run("document.getElementById('figures').getBoundingClientRect().top")
        await page.press("/")
        await page.press("n")
        await page.until(f"{FOUND}.length === 2")
        assert await page.run(FOUND) == ["node n1", "node n2"]
        assert await page.run("document.getElementById('figures').getBoundingClientRect().top") == top
        await page.press("ArrowDown")
        await page.press("ArrowDown")
        assert await page.run("document.activeElement.innerText") == "node n2"
        await page.press("Escape")
        assert not await page.run(IS_OPEN)
        await page.press("/")
        await page.run("document.getElementById('search').blur()")
        assert not await page.run(IS_OPEN)


@pytest.mark.parametrize("docs", ["", "https://docs.example.com/berth"])
async def test_the_page_links_to_the_documentation_if_it_knows_the_address(docs: str) -> None:
    async with berthing({"n1": "t4-4"}) as b:
        b.console.overview.docs = docs
        async with browsing(str(b.client.base_url)) as page:
            await page.until(LIVE)
            assert await page.run("document.getElementById('docs').hidden") == (not docs)
            assert (await page.run("document.getElementById('docs').getAttribute('href')") or "") == docs


async def test_the_theme_that_a_person_chooses_stays() -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    async with shown({"n1": "t4-4"}) as (_, page):
        light = await page.run(background)
        for _ in ("light", "dark"):
            await page.run("document.getElementById('theme').click()")
        assert await page.run("document.getElementById('theme').innerText") == "theme: dark"
        dark = await page.run(background)
        assert dark != light
        await page.run("location.reload()")
        await page.until(f"document.getElementById('theme')?.innerText === 'theme: dark' && {background} === {dark!r}")


async def test_the_states_of_gpus_have_shapes_of_their_own() -> None:
    async with shown({"n1": "t4-4"}) as (b, page):
        await b.create(claim("one"), pod("one", "one"))
        assert await b.bind("one", "n1") == ""
        await page.until("document.querySelectorAll('.node rect.dot.u').length === 1")
        assert await page.run("document.querySelectorAll('.node circle.dot.f').length") == 3
        shape = "(state => nodeGraph({ gpus: state }).querySelector('.dot').cloneNode())"
        outline = f"(state => {{ const d = {shape}(state); d.removeAttribute('class'); return d.outerHTML; }})"
        assert await page.run(f"new Set([...'fuh5d'].map({outline})).size") == 5
        await page.run("document.getElementById('legend').open = true")
        text = await page.run("document.getElementById('signs').innerText")
        for sign in ("a free GPU", "an allocated GPU", "links into a switch", "no link works", "without a claim"):
            assert sign in text


async def test_a_pod_that_has_ended_is_not_shown_as_bound() -> None:
    decisions = "document.getElementById('decisions').innerText"
    async with shown({"n1": "t4-4"}) as (b, page):
        await b.create(claim("one"), pod("one", "one"))
        assert await b.bind("one", "n1") == ""
        await page.until(f"{decisions}.includes('n1 \u00b7 1 device')")
        ended, (freed,) = b.pod("one"), b.claims()
        b.cluster.store.put("pods", ("default", "one"), {**ended, "status": {**ended["status"], "phase": "Succeeded"}})
        b.cluster.store.put("resourceclaims", ("default", "one"), {**freed, "status": {}})
        await page.until(f"{decisions}.includes('n1 \u00b7 ended \u00b7 1 device')")
        await page.run("openPod('default/one')")
        await page.until("document.getElementById('detail-body').innerText.startsWith('The pod has ended.')")


async def test_a_pod_that_waits_for_a_minute_looks_like_a_problem() -> None:
    async with shown({"n1": "t4-4"}) as (b, page):
        await b.create(claim("large", 5), pod("large", "large"))
        await b.filter("large")
        await refused(b, "large", "0/1 nodes are available: 1 in use.")
        await page.until("fleet.pending.length === 1")
        long = "document.querySelectorAll('#waiting .long, .tile.long').length"
        assert await page.run(long) == 0
        await page.run("clock.offset += 61000; showTotals(); showWaiting(); markLongWaits()")
        assert await page.run(long) == 2
        assert (await page.run("document.title")).startswith("(1) Berth")


async def test_a_narrow_page_begins_with_what_waits_and_opens_the_fleet_by_a_button() -> None:
    async with shown({f"n{i}": "t4-4" for i in range(12)}) as (_, page):
        await page.size(420, 900)
        await page.until("!document.getElementById('view').checkVisibility()")
        assert "free" in await page.run("document.getElementById('totals').innerText")
        await page.run("document.getElementById('fold').click()")
        await page.until("document.querySelectorAll('.node').length === 12")
        assert await page.run("document.querySelector('.node').checkVisibility()")
        assert await page.run("document.getElementById('fold').innerText") == "Hide the nodes"
        await page.size(1280, 800)
        assert not await page.run("document.getElementById('fold').checkVisibility()")


async def test_an_empty_cluster_says_what_to_do_next() -> None:
    async with shown({}) as (_, page):
        text = await page.run("document.getElementById('cards').innerText")
        assert "Install the DRA driver" in text
        assert "kubectl get resourceslices" in text


async def test_an_address_that_hides_all_nodes_says_so_and_an_unknown_one_shows_the_fleet() -> None:
    cards, is_open = "document.getElementById('cards').innerText", "document.getElementById('detail').open"
    async with shown({"n1": "t4-4", "n2": "t4-4"}) as (_, page):
        await page.run("location.hash = '#/fleet/rack/zone/none'")
        await page.until(f"{cards} === 'No node is in this part of the fleet. \"all nodes\" shows 2 nodes.'")
        await page.run("document.querySelector('#path button').click()")
        await page.until("document.querySelectorAll('.node').length === 2")
        for unknown in ("#/nonsense", "#/node", "#/%"):
            await page.run("location.hash = '#/node/n1'")
            await page.until(is_open)
            await page.run(f"location.hash = {unknown!r}")
            await page.until(f"!{is_open} && location.hash === '#/fleet'")
        await page.run("location.hash = '#/node/n1'")
        await page.until(is_open)
        await page.run("location.hash = '#search'")
        assert await page.run(is_open)


async def test_an_address_right_after_an_unknown_one_opens_its_node() -> None:
    """The browser tells of a closed dialog a little later: by then, the address may be that of another one."""
    again = "window.addEventListener('hashchange', () => { location.hash = '#/node/n1'; }, { once: true })"
    async with shown({"n1": "t4-4"}) as (_, page):
        await page.run("location.hash = '#/node/n1'")
        await page.until("document.getElementById('detail').open")
        await page.run(f"{again}; location.hash = '#/nonsense'")
        await page.until("document.getElementById('detail').open && location.hash === '#/node/n1'")


async def test_the_sign_in_says_how_to_read_the_token_and_that_one_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret")
    async with berthing({"n1": "t4-4"}) as b:
        b.console.overview.cluster = "east"
        app = ConsoleApp(b.console, Access("0.0.0.0", (), file))
        async with listening(app, "127.0.0.1", 0) as url, browsing(url) as page:
            form = "document.getElementById('token')"
            await page.until(f"!{form}.hidden")
            assert "another console.tokenSecret" in await page.run(f"{form}.innerText")
            assert "kubectl -n berth-system get secret berth-page-token" in await page.run(f"{form}.innerText")
            await page.press("/")
            await page.press("n")
            told = "document.getElementById('found').innerText"
            await page.until(f"{told} === 'The console has not told any name yet.'")
            for secret, seen in (("wrong", f"{form}.innerText.includes('refused this token')"), ("s3cret", LIVE)):
                await page.run(f"document.getElementById('secret').value = {secret!r}; {form}.requestSubmit()")
                await page.until(seen)
            assert await page.run(f"{form}.hidden")
            assert await page.run("document.getElementById('cluster').innerText") == "0.1.0 \u00b7 east"


async def test_the_picture_of_the_tab_is_one_of_the_page(tmp_path: Path) -> None:
    async with shown({"n1": "t4-4"}) as (b, page):
        assert await page.run("document.querySelector('link[rel=icon]').getAttribute('href')") == "/icon.svg"
        reply = await b.client.get("/icon.svg")
        assert (reply.status_code, reply.headers["content-type"]) == (200, "image/svg+xml; charset=utf-8")


async def test_texts_for_screen_readers_are_not_drawn_on_a_wide_screen() -> None:
    """They were far to the left of a form at the right edge: within a screen of 1,920 pixels."""
    async with shown({"n1": "t4-4"}) as (_, page):
        for width in (420, 1280, 1920, 2560):
            await page.size(width, 900)
            widths = "[...document.querySelectorAll('.hidden, .skip')].map(e => e.getBoundingClientRect().width)"
            assert max(await page.run(widths)) <= 1, width


async def test_a_console_that_hangs_looks_dead() -> None:
    """A stopped process keeps its connections, so the page looked live for half a minute."""
    async with shown({"n1": "t4-4"}) as (_, page):
        await page.run("window.fetch = () => new Promise(() => {})")
        await page.until("asked < Infinity")
        await page.until("(asked -= 1000, answered -= 1000, !document.getElementById('dead').hidden)")
        assert await page.run("document.getElementById('link').textContent") == "not connected"

"""The page in headless Chromium: every view, live updates, 5,000 nodes, dark, keyboard, narrow, hostile names."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender.cluster import ApiClient, Credentials
from extender.console import Console
from extender.policy import Policy
from extender.runtime.informers import watched_resources
from extender.sandbox import carried_machines, fabric_slice, listening
from extender.sandbox.machines import gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS
from extender.web.console.console_app import ConsoleApp
from tests.worlds.browser import CHROMIUM, NAMES, Page, browsing, tabs
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.explain_worlds import decided, refused
from tests.worlds.filled_caches import class_of_driver, device_slice
from tests.worlds.nic_worlds import claim_of
from tests.worlds.process_worlds import free_port
from tests.worlds.running_berth import berthing, claim, pod

pytestmark = pytest.mark.skipif(not CHROMIUM, reason=f"install Chromium: PATH has no {', '.join(NAMES)}")
FITS = "document.getElementById('view').scrollHeight <= document.getElementById('view').clientHeight"
LIVE = "document.getElementById('link').textContent === 'live'"
TEXT = "document.body.innerText"
CUT = "[...document.querySelectorAll('.group h3 > *, #heads h3')].filter(e => e.scrollWidth > e.clientWidth).length"
UNNAMED = (
    "[...document.querySelectorAll('button, input, select, canvas, [role=img]')].filter("
    "e => !(e.ariaLabel || e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).length"
)
# The words of the page, without separators, that are on more than one line.
BROKEN_WORDS = """(() => {
    const broken = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text; (text = walker.nextNode());) {
        if (!text.parentElement.checkVisibility() || text.parentElement.closest('option, script')) continue;
        for (const word of text.data.matchAll(/[^\\s\\-./_=:,]+/g)) {
            const range = document.createRange();
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map(box => box.top)).size > 1) broken.push(word[0]);
        }
    }
    return broken;
})()"""


async def opened(page: Page, title: str) -> str:
    """The text of the dialog with this title."""
    await page.until(
        f"document.getElementById('detail').open && document.getElementById('detail-title').textContent === {title!r} "
        "&& document.getElementById('detail-body').innerText.length > 20"
    )
    return str(await page.run("document.getElementById('detail-body').innerText"))


async def test_every_view_and_live_updates(tmp_path: Path) -> None:
    async with (
        berthing({"n1": "dgx1-v100", "n2": "hgx-h100-8", "n3": "t4-4"}) as b,
        browsing(str(b.client.base_url)) as page,
    ):
        await page.until(LIVE)
        assert await page.run("map.places.length") == 3
        assert "20 free" in await page.run("document.getElementById('totals').innerText")
        hopper = "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"
        for name, count in (("train", 8), ("late", 8)):
            b.cluster.apply(claim(name, count, hopper))
            b.cluster.apply(pod(name, name))
        await b.settled()
        assert (await b.filter("train"))["NodeNames"] == ["n2"]
        assert await b.bind("train", "n2") == ""
        await b.settled()
        await refused(b, "late", "0/3 nodes are available: 3 in use.")
        await page.until("document.getElementById('waiting').innerText.includes('fits on n2 if')")
        await page.until("document.getElementById('decisions').innerText.includes('8 devices · 371 GB/s predicted')")
        await page.until("fleet.nodes.get('n2').gpus === 'uuuuuuuu'")
        groups = await page.run("[...document.querySelectorAll('#cards h3')].map(head => head.innerText)")
        assert any("H100" in head and "0 of 8 free" in head for head in groups)
        assert (await page.run("document.getElementById('decisions-title').innerText")).startswith(
            "Decisions of the last"
        )
        tiles = await page.run("[...document.querySelectorAll('.tile')].map(tile => tile.innerText)")
        # The change of the last seconds is shown once there are two samples of the fleet.
        assert re.match(r"Free GPUs\n12(\u22128 in \d+\s?s)?\nof 20 on 3 nodes", tiles[0])
        assert tiles[1].startswith("Largest free joined set\n8")
        assert any(tile.startswith("Waiting pods\n1\nfor ") for tile in tiles)
        await page.until("document.querySelectorAll('.tile').length === 5")
        large = "document.querySelectorAll('.tile')[2].innerText"
        await page.until(f"{large} === `The next large job finds\n8\n\u00d7 Tesla V100-SXM2-16GB on one node`")
        tile = await page.run("document.querySelector('.tile:last-child').innerText")
        assert tile == "Multi-GPU pods joined\n1 of 1\nfirst fit: 1"

        await page.run("document.querySelector('#waiting button').click()")
        text = await opened(page, "default/late")
        parts = ("What would help", "held by pod default/train", "berth defrag pod late -n default")
        assert [text.count(words) for words in (*parts, "fits on n2 if")] == [1, 2, 1, 1]
        await page.run("document.querySelector('#decisions button').click()")
        text = await opened(page, "default/train")
        assert "Bound to n2" in text
        assert "Berth, and first fit" in text
        assert "371 GB/s predicted, the best for this pod" in text
        assert "link" in text
        await page.run("openNode('n1')")
        text = await opened(page, "n1")
        assert "largest free NVLink set: 8 GPUs" in text
        assert "live agent" in text
        assert await page.run("document.querySelectorAll('#detail line.wire').length") == 16
        await page.run("openNode('n2')")
        assert "default/train" in await opened(page, "n2")
        await page.run("document.getElementById('close').click()")
        await page.run("document.querySelector('#decisions button').focus()")
        await page.until("document.querySelector('.node.lit')?.dataset.node === 'n2'")
        assert page.errors == []
        assert {httpx.URL(url).host for url in page.requested if url.startswith("http")} == {"127.0.0.1"}, (
            "no external assets"
        )


async def test_what_only_is_lacking_is_not_what_would_help() -> None:
    async with berthing({"n1": "t4-4"}) as b, browsing(str(b.client.base_url)) as page:
        await page.until(LIVE)
        await b.create(claim_of("p", 5), pod("p", "p"))
        await page.run("openPod('default/p')")
        text = await opened(page, "default/p")
        assert "no node has 5 free devices for request gpu; 1 node has 4" in text.partition("What stands in the way")[2]
        assert "What would help" not in text


async def test_pairs_of_devices_and_the_places_of_a_node(tmp_path: Path) -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b, browsing(str(b.client.base_url)) as page:
        await page.until(LIVE)
        await b.create(claim_of("p", 1), pod("p", "p"), claim_of("q", 3), pod("q", "q"))
        assert (await b.filter("p"))["NodeNames"] == ["n1"]
        assert await b.bind("p", "n1") == ""
        await decided(b, "p")
        await page.run("openPod('default/p')")
        text = await opened(page, "default/p")
        assert "DEVICES BESIDE EACH OTHER" in text.upper()
        assert "gpu-0\tpci-0000-18-00-0\tsame PCIe root" in text
        await page.picture(tmp_path / "pod.png")
        await page.run("openPod('default/q')")
        text = await opened(page, "default/q")
        assert "gpu-3\tpci-0000-5e-00-0\tsame PCIe root" in text
        await page.picture(tmp_path / "waiting.png")
        await page.run("openNode('n1')")
        text = await opened(page, "n1")
        assert "free beside it".upper() in text.upper()
        assert "pci-0000-3c-00-0: same PCIe root" in text
        await page.picture(tmp_path / "node.png")
        assert await page.run("document.getElementById('detail').scrollWidth <= innerWidth")
        assert page.errors == []


async def test_a_member_leads_to_its_group(tmp_path: Path) -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b, browsing(str(b.client.base_url)) as page:
        await page.until(LIVE)
        await b.create(claim("held", 2), pod("held", "held"))
        node = (await b.filter("held"))["NodeNames"][0]
        assert await b.bind("held", node) == ""
        for name in ("p0", "p1"):
            b.cluster.apply(claim(name, 4))
            notes = {"berth.dev/group": "job", "berth.dev/group-min": "2", "berth.dev/group-topology": "none"}
            b.cluster.apply(pod(name, name, annotations=notes))
        await b.settled()
        await page.until("document.getElementById('waiting').innerText.includes('default/p0')")
        await page.run("openPod('default/p0')")
        text = await opened(page, "default/p0")
        assert "pod default/p0 waits with its group: group default/job fits nowhere" in text
        assert "IF IT WERE IN NO GROUP" in text.upper()
        assert "All about its group: default/job" in text
        await page.run("document.querySelector('#detail-body a').click()")
        text = await opened(page, "default/job")
        assert "no domain has room for 2 pods together" in text
        assert f"without default/held (2 devices on {node})" in text
        assert "berth defrag group job -n default" in text
        assert "all pods exist for" in text
        assert "HOLDERS ACROSS THE CLUSTER" in text.upper()
        assert "named by berth.dev/group · 0 of at least 2 bound · topology none" in text
        assert "default/p1" in text
        assert "2 wait · minimum 2" in await page.run("document.getElementById('groups').innerText")
        assert page.errors == []


def mi300x_node(name: str) -> list[dict[str, Any]]:
    """A node with eight MI300X, as AMD's driver publishes them, and the driver's class."""
    pci = "resource.kubernetes.io/pciBusID"
    devices = [
        {
            "name": f"gpu-{i}",
            "attributes": {
                "type": {"string": "amdgpu"},
                "productName": {"string": "AMD_Instinct_MI300X_OAM"},
                pci: {"string": f"0000:{i}5:00.0"},
            },
            "capacity": {"memory": {"value": "192Gi"}},
        }
        for i in range(8)
    ]
    node = {"kind": "Node", "metadata": {"name": name}}
    return [node, device_slice(name, "gpu.amd.com", devices), class_of_driver("gpu.amd.com")]


async def test_the_links_of_another_vendor_have_their_own_name(tmp_path: Path) -> None:
    async with berthing({"n1": "dgx1-v100"}) as b, browsing(str(b.client.base_url)) as page:
        for obj in mi300x_node("amd"):
            b.cluster.apply(obj)
        pair = claim("pair", 2)
        pair["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "gpu.amd.com"
        await b.create(pair, pod("pair", "pair"))
        assert (await b.filter("pair"))["NodeNames"] == ["amd"]
        assert await b.bind("pair", "amd") == ""
        await page.until("fleet.decisions.some((one) => one.sets) && document.querySelectorAll('.tile').length === 5")
        card = "[...document.querySelectorAll('.node')].find((one) => one.dataset.node === 'NODE')"
        titles = "[...CARD.querySelectorAll('line title')].map((one) => one.textContent)".replace("CARD", card)
        await page.until(f"{card.replace('NODE', 'amd')} && {titles.replace('NODE', 'amd')}.length === 28")
        assert "0 to 1: 1 xGMI link" in await page.run(titles.replace("NODE", "amd"))
        assert "0 to 1: 1 NVLink" in await page.run(titles.replace("NODE", "n1"))
        assert "NVLink" not in await page.run("document.getElementById('figures').innerHTML")
        await page.run("openNode('amd')")
        assert "largest free xGMI link set: 6 GPUs" in await opened(page, "amd")
        await page.run("go('pod', 'default/pair')")
        text = await opened(page, "default/pair")
        assert "48 GB/s predicted, xGMI link" in text
        assert "NVLink" not in text
        assert page.errors == []


async def test_the_set_of_first_fit_is_beside_another_one(tmp_path: Path) -> None:
    async with berthing({"n": "dgx1-v100"}) as b, browsing(str(b.client.base_url)) as page:
        await b.create(claim("pair", 2), pod("pair", "pair"))
        assert await b.bind("pair", (await b.filter("pair"))["NodeNames"][0]) == ""
        await page.until("document.querySelectorAll('#decisions .set').length === 2")
        text = await page.run("document.querySelector('#decisions .pair').innerText")
        assert " ".join(text.split()) == "Berth 40 GB/s NVLink First fit 20 GB/s NVLink"
        assert "2 devices · predicted:" in await page.run("document.getElementById('decisions').innerText")
        lit = "[...document.querySelectorAll('#decisions .first_fit .dot')].map(d => d.classList.contains('lit'))"
        assert await page.run(lit) == [True, True] + 6 * [False]
        await page.run("document.querySelector('#decisions button').click()")
        text = await opened(page, "default/pair")
        assert "First fit on this node" in text
        assert "gpu-0, gpu-1" in text
        assert page.errors == []


async def test_every_view_has_an_address(tmp_path: Path) -> None:
    async with berthing({"n1": "t4-4", "n2": "dgx1-v100"}) as b:
        await b.create(claim("large", 16), pod("large", "large"))
        await b.filter("large")
        url = str(b.client.base_url).rstrip("/")
        async with browsing(f"{url}/#/pod/default/large") as page:
            text = await opened(page, "default/large")
            advice = "no node has 16 free devices for request gpu; 1 node has 8"
            assert text.count(advice) == 1, "the advice is not in the sentence, too"
            await page.press("Escape")
            await page.until("location.hash === '#/fleet'")
            await page.run("location.hash = '#/node/n1'")
            await opened(page, "n1")
            await page.run("document.getElementById('close').click()")
            await page.run("location.hash = '#/fleet/name/product/Tesla%20T4'")
            await page.until("map.places.length === 1 && map.places[0].name === 'n1'")
            assert await page.run("document.getElementById('path').innerText") == "all nodes / Tesla T4"
            await page.run("document.querySelector('#path button').click()")
            await page.until("map.places.length === 2 && location.hash === '#/fleet'")
            for nonsense in ("#/node/%", "#/other/x", "#/fleet/x/name/y", "#/group/default/none"):
                await page.run(f"location.hash = {nonsense!r}")
            await page.until("document.getElementById('detail-body').innerText.includes('none')")
            await page.until("map.places.length === 2")
            answered = "no pod that waits, and no claim with devices, belongs to a group default/none"
            assert answered in await opened(page, "default/none")


async def test_keyboard_dark_and_narrow(tmp_path: Path) -> None:
    async with berthing({"n1": "dgx1-v100", "n2": "t4-4", "n3": "t4-4"}) as b, browsing(str(b.client.base_url)) as page:
        await page.until(LIVE)
        await page.press("/")
        assert await page.run("document.activeElement.id") == "search"
        for key in "n1":
            await page.press(key)
        await page.until("document.querySelectorAll('#found button').length === 1")
        await page.press("Enter")
        await opened(page, "n1")
        await page.press("Escape")
        await page.until("!document.getElementById('detail').open")
        await page.run("document.querySelector('.node').focus()")
        for key in ("ArrowRight", "ArrowRight"):
            await page.press(key)
        assert await page.run("document.activeElement.title") == "n1 · Tesla V100-SXM2-16GB · 8 free"
        await page.press("Enter")
        await page.until("document.getElementById('detail').open")
        await page.press("Escape")

        light = await page.run("getComputedStyle(document.body).backgroundColor")
        await page.dark(True)
        await page.until(f"getComputedStyle(document.body).backgroundColor !== {light!r}")
        for width in (360, 420, 768, 1920):
            await page.size(width, 800)
            await page.until("document.documentElement.scrollWidth <= window.innerWidth")
            assert await page.run(BROKEN_WORDS) == [], width
        assert await page.run(UNNAMED) == 0, "every control has a name for a screen reader"
        assert page.errors == []


async def test_hostile_names_are_text(tmp_path: Path) -> None:
    """Attack: run script in the page of an operator."""
    evil = '<img src=x onerror="window.broken=1"><script>window.broken=1</script>'
    async with unattended() as (console, url):
        apply = {kind.name: kind.apply for kind in watched_resources(console.cache)}
        for i, name in enumerate((evil, "'\"><b>bold</b>")):
            node = node_object(name, carried_machines()["t4-4"], {"topology.kubernetes.io/zone": evil})
            apply["nodes"](name, node)
            apply["resourceslices"](
                f"s{i}", {**gpu_slice(name, carried_machines()["t4-4"]), "metadata": {"name": f"s{i}"}}
            )
        async with browsing(url) as page:
            await page.until(LIVE)
            await page.run(
                "document.getElementById('grouping').value = 'zone'; document.getElementById('grouping').onchange()"
            )
            await page.run(
                "moveTo(0); document.getElementById('search').value = '<'; find(); "
                "document.querySelector('#found button').click()"
            )
            await page.until("document.getElementById('detail').open")
            await page.run(
                "new Promise(failed => { const later = new Image(); later.onerror = () => failed(); later.src = 'y'; })"
            )
            assert await page.run("document.images.length === 0 && window.broken === undefined"), (
                "no image was requested before that one"
            )
            assert evil in await page.run(TEXT), "shown as it is written"


async def test_cards_that_fit_have_no_scrollbar(tmp_path: Path) -> None:
    async with unattended() as (console, url):
        fill(console, 17)
        async with browsing(url) as page:
            await page.until(LIVE)
            fitted_at = []
            for height in range(580, 620, 4):  # at the first they do not fit
                await page.size(1920, height)
                await page.until(f"innerHeight === {height}")
                await page.run("new Promise(done => setTimeout(done, 100))")  # the observer of sizes
                if await page.run("$('cards').style.getPropertyValue('--node') !== `${COMMON_CARD}px`"):
                    assert await page.run(FITS), height
                    fitted_at.append(height)
            assert fitted_at, "cards that fit were seen"
            await page.size(1440, 900)
            await page.until("innerHeight === 900")
            assert await page.run(CUT) == 0, "no title is cut"


async def test_five_thousand_nodes(tmp_path: Path) -> None:
    async with unattended() as (console, url):
        fill(console, 5000)
        async with browsing(url) as page:
            await page.until(LIVE)
            assert await page.run("map.places.length") == 5000
            assert await page.run("map.heads.length") == 4
            assert page.received < 1_000_000, "bytes transferred"
            before = page.received
            for i in range(100):
                console.cache.apply_node(f"node-{i:05}", None)
            await page.until("map.places.length === 4900")
            assert page.received - before < 50_000, "bytes of an update"
            await page.run("document.getElementById('map').focus()")
            for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
                await page.press(key)
            assert "A100 80GB PCIe" in await page.run("document.getElementById('here').textContent")
            await page.picture(tmp_path / "page.png")
            assert (tmp_path / "page.png").stat().st_size > 10_000
            assert await page.run(FITS), "the whole fleet is on the screen"
            await page.run("document.querySelector('#heads button').click()")
            await page.until("map.places.length === 1225")
            await page.run("document.querySelector('#heads button').click()")
            await page.until("map.isCards && document.querySelectorAll('.node').length === 64")
            await page.run("document.querySelector('.node').focus()")
            await page.press("Escape")
            await page.until("map.places.length === 1225")
            await page.run("leave(0)")
            await page.size(420, 900)
            await page.until(f"$('heads').children.length === 4 && {CUT} === 0")
            assert page.errors == []


async def test_eight_tabs_of_one_browser_are_live() -> None:
    """A browser has six connections to a host for all its tabs. Each tab kept one, so the seventh never opened."""
    async with berthing({"n1": "t4-4"}) as b, tabs(str(b.client.base_url), 8) as pages:
        for page in pages:
            await page.until(LIVE)
        await b.create(claim("c"), pod("p", "c"))
        assert not await b.bind("p", "n1")
        for page in pages:
            await page.until("document.getElementById('decisions').innerText.includes('default/p')")
            assert page.errors == []


async def test_a_hidden_page_asks_nothing() -> None:
    async with unattended() as (_, url), browsing(url) as page:
        await page.until(LIVE)
        await page.run("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        await page.run("new Promise((resolve) => setTimeout(resolve, 2 * PAUSE))")  # a question may be on its way
        before = len(page.requested)
        await page.run("new Promise((resolve) => setTimeout(resolve, 3 * PAUSE))")
        assert len(page.requested) == before
        await page.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        await eventually(lambda: len(page.requested) > before)


async def test_a_page_without_its_console_says_since_when_and_recovers(tmp_path: Path) -> None:
    """It showed old data as if it were live."""
    port = free_port()
    async with berthing({"n1": "t4-4"}) as b, AsyncExitStack() as stack:
        async with listening(ConsoleApp(b.console), "127.0.0.1", port) as url:
            page = await stack.enter_async_context(browsing(url))
            await page.until(LIVE)
        await page.until("!document.getElementById('dead').hidden")
        await page.picture(tmp_path / "dead.png")
        text = await page.run("document.getElementById('dead').innerText")
        assert re.match(r"The console does not answer\. The page shows the cluster as it was at \d+:\d\d:\d\d", text)
        assert await page.run("getComputedStyle(document.querySelector('main')).opacity") == "0.45"
        async with listening(ConsoleApp(b.console), "127.0.0.1", port):
            await page.until(f"document.getElementById('dead').hidden && {LIVE}")


async def test_without_a_browser_the_same_data() -> None:
    async with (
        unattended() as (console, url),
        httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=False) as client,
    ):
        fill(console, 40)
        found = (await client.get("/v1/fleet")).json()
        assert len(found["nodes"]) == 40
        assert found["totals"]["free"] == sum(len(n["gpus"]) for n in found["nodes"])
        assert (await client.get("/v1/nodes/absent")).status_code == 404
        index = await client.get("/")
        assert "default-src 'none'" in index.headers["content-security-policy"]


@asynccontextmanager
async def unattended() -> AsyncIterator[tuple[Console, str]]:
    """A console on HTTP; the test fills its cache."""
    console = Console(ApiClient(Credentials("http://127.0.0.1:9", None, lambda: None)), Policy())
    for reflector in console.informers.reflectors.values():
        reflector.listed = True
    async with listening(ConsoleApp(console), "127.0.0.1", 0) as url:
        yield console, url


def fill(console: Console, count: int) -> None:
    machines, apply = carried_machines(), {kind.name: kind.apply for kind in watched_resources(console.cache)}
    apply["deviceclasses"]("gpu.nvidia.com", GPU_CLASS)
    names = ("hgx-h100-8", "a100-pcie-8-bridged", "dgx1-v100", "l40s-8-pix")
    for i in range(count):
        name, machine = f"node-{i:05}", machines[names[i % 4]]
        apply["nodes"](name, node_object(name, machine, {}))
        slices = [gpu_slice(name, machine)]
        if i < 200:  # the page shows no links, and they take most of the time
            slices.append(fabric_slice(name, machine))
        for obj in slices:
            apply["resourceslices"](obj["metadata"]["name"], obj)

"""Writes docs/img/page.png and page-pod.png: the page of `berth run` in headless Chromium. Then notes of which files.

Chromium (`chromium` on the PATH) draws them, so two machines write different bytes. docs/img/page.sha256 has the
digests of the page's files and of the pictures, and tests/web/test_page_pictures.py says when one has changed alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for tests.worlds.browser

from tests.worlds.browser import Page, browsing  # noqa: E402 - after the path

ASSETS, PICTURES = ROOT / "extender" / "web" / "assets", ROOT / "docs" / "img"
COMPARED = "fleet.decisions.filter(d => d.sets && d.sets.chosen.gpus.length > 1).length >= 17"  # pods of several GPUs
BOUND, WAITING = "default/pair-a", "default/never-fits"  # first fit would have taken GPUs of two bridges
LIT = "default/train-b200"  # its card is among the newest decisions


def digests() -> str:
    """The digests of the files that make the page, and of its pictures, as `sha256sum` prints them in the root."""
    files = [*sorted(path for path in ASSETS.iterdir() if path.is_file()), *sorted(PICTURES.glob("page*.png"))]
    return "".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.relative_to(ROOT)}\n" for one in files)


async def _take(page: Page) -> None:
    await page.until(COMPARED)
    await page.until(f"fleet.pending.find(p => p.pod === {WAITING!r}).nearest && fleet.trend.length > 3")
    await page.run(f"document.querySelector('#decisions [data-key=\"#/pod/{LIT}\"]').focus()")
    await page.picture(PICTURES / "page.png")
    await page.size(1100, 800)
    await page.run(f"go('pod', {BOUND!r})")
    await page.until("document.querySelectorAll('#detail .sets figure').length === 2")
    await page.run("document.activeElement.blur()")
    await page.run("Promise.all(document.getAnimations().map(animation => animation.finished))")
    await page.picture(PICTURES / "page-pod.png")


async def _main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        command = ("-u", "-m", "extender", "run", "--listen", "127.0.0.1:0", "--console", address)
        run = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
        try:
            assert run.stdout is not None
            while b"Ctrl-C" not in (line := await run.stdout.readline()):
                assert line, "berth run ended"
            async with browsing(f"http://{address}", 1600, 1150) as page:
                await _take(page)
        finally:
            run.terminate()
            await run.wait()
    (PICTURES / "page.sha256").write_text(digests())


if __name__ == "__main__":
    asyncio.run(_main())

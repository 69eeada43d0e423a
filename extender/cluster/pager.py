"""Paged lists of the API server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from extender.cluster.api_errors import TooLong, Unavailable
from extender.cluster.client import ApiClient
from extender.wire import Json

# Bytes of a page, unless a single object is larger. Decoded, small texts and empty objects take 20 times as much,
# and to decode 2 MiB of them blocks the event loop for 40 ms.
_PAGE_BYTES = 2 << 20
_SLICES = "ResourceSliceList"  # no tenant writes these, and one has up to 100 KiB
_SLICES_BYTES = 8 << 20
_SHOWN = 100  # characters of a wrong kind
_MOST_PAGES = 10_000  # two million objects of a kind; Kubernetes supports 150,000 pods in a cluster


async def pages(
    client: ApiClient,
    path: str,
    kind: str,
    page_size: int,
    params: Mapping[str, str] | None = None,
    most_pages: int = _MOST_PAGES,
) -> AsyncGenerator[Json, None]:
    """The pages of a list, with at most `page_size` objects each. Raises ClusterError, also for an invalid response.

    A page is emptied when the caller asks for the next one, so that two are never kept. A page that is too long is
    asked for again with half of the objects, and the next page may have twice as many: a tenant may create hundreds of
    claims of a megabyte.
    `kind` is that of the list, such as PodList. A list with more than `most_pages` pages counts as one that does not
    end.
    """
    size, token, seen = page_size, "", set[str]()
    most_bytes = _SLICES_BYTES if kind == _SLICES else _PAGE_BYTES
    for _ in range(most_pages):
        more = {"continue": token} if token else {}
        try:
            wanted = {**(params or {}), "limit": str(size), **more}
            page = await (client.get(path, wanted, most_bytes) if size > 1 else client.get(path, wanted))
        except TooLong:
            if size == 1:
                raise
            size = size // 2
            continue
        problem = _problem(page, kind)
        if problem:
            raise Unavailable(f"list {path}: {problem}")
        size = min(2 * size, page_size)
        token = str(page["metadata"].get("continue") or "")
        yield page
        page.clear()
        if not token:
            return
        if token in seen:
            raise Unavailable(f"list {path}: the list does not end; two pages have the same continue token")
        seen.add(token)
    raise Unavailable(f"list {path}: the list does not end; it has more than {most_pages} pages")


def _problem(page: Json, kind: str) -> str:
    """Why a response is no page of such a list; '' if it is one. The API server sends no items as null or []."""
    found, items, metadata = page.get("kind"), page.get("items"), page.get("metadata")
    if found != kind:
        return f"the response is no {kind}; its kind is {str(found)[:_SHOWN]}"
    if items is not None and not isinstance(items, list):
        return f"items are of type {type(items).__name__}"
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return "" if version and isinstance(version, str) else "the response has no resourceVersion"

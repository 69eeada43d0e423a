"""Discovery: whether the API server says that it does not serve a resource."""

from __future__ import annotations

from collections.abc import Iterable

from extender.cluster.api_errors import Forbidden, Unavailable
from extender.cluster.client import ApiClient
from extender.wire import Json


async def is_absent(client: ApiClient, paths: Iterable[str]) -> bool:
    """Whether the discovery documents have none of these paths, each /apis/GROUP/VERSION/RESOURCE.

    A 404 alone is no proof: a load balancer may have sent it. A client without the right to read discovery has no
    other proof, so for it all paths are absent. Raises ClusterError.
    """
    try:
        served = await _served_versions(client)
        for path in paths:
            version, _, resource = path.removeprefix("/apis/").rpartition("/")
            if version in served and resource in await _resources(client, version):
                return False
    except Forbidden:
        pass
    return True


async def _served_versions(client: ApiClient) -> set[str]:
    """All GROUP/VERSION of the server."""
    groups = await _entries(client, "/apis", "APIGroupList", "groups")
    versions = [version for group in groups for version in _objects(group.get("versions"))]
    return {str(version.get("groupVersion")) for version in versions}


async def _resources(client: ApiClient, version: str) -> set[str]:
    """The names of the resources of a GROUP/VERSION."""
    entries = await _entries(client, f"/apis/{version}", "APIResourceList", "resources")
    return {str(entry.get("name")) for entry in entries}


async def _entries(client: ApiClient, path: str, kind: str, field: str) -> list[Json]:
    document = await client.get(path)
    if document.get("kind") != kind or not isinstance(document.get(field), list):
        raise Unavailable(f"{path}: the response is no {kind}")
    return _objects(document[field])


def _objects(values: object) -> list[Json]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []

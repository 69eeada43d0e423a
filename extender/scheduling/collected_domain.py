"""The domain whose freed devices are kept for one gang that waits for room."""

from __future__ import annotations

from dataclasses import dataclass

from extender.model import Code, GroupKey, Reason
from extender.scheduling.pod_requirements import PodRequirements

_NO_NODES = frozenset[str]()


@dataclass(frozen=True, slots=True)
class CollectedDomain:
    """Nodes of a domain that other pods must not use while the gang collects there."""

    key: GroupKey
    level: str  # 'node' or a label, see Domain
    name: str  # the node or the value of the label
    nodes: frozenset[str]
    since: float  # in seconds of the service's clock

    def kept_from(self, requirements: PodRequirements) -> frozenset[str]:
        """The nodes that the pod must not use.

        There are none for a pod of the gang, for a pod that has devices of a node already, and for one that takes none.
        """
        if requirements.group == self.key or requirements.node_selectors or not _takes_devices(requirements):
            return _NO_NODES
        return self.nodes

    @property
    def reason(self) -> Reason:
        """Why other pods must not use the nodes."""
        return Reason(Code.COLLECTED_FOR_GANG, (self.key.name,))


def _takes_devices(requirements: PodRequirements) -> bool:
    requests = (request for spec in requirements.specs for request in spec.requests)
    return requirements.extended is not None or any(
        not option.admin_access for request in requests for option in request.alternatives
    )

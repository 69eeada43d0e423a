"""What Berth would do on a cluster that it does not schedule: figures and replays from objects that were only read."""

from extender.assess.anonymise import anonymised
from extender.assess.assessment import Assessment, assess
from extender.assess.cluster_reading import ClusterReading, reading_of
from extender.assess.html_page import html_page
from extender.assess.pod_sets import PodSet

__all__ = [
    "Assessment",
    "ClusterReading",
    "PodSet",
    "anonymised",
    "assess",
    "html_page",
    "reading_of",
]

"""What Berth would do on a cluster that it does not schedule: figures and replays from objects that were only read."""

from extender.assess.anonymise import anonymised
from extender.assess.assessment import Assessment, assess
from extender.assess.cluster_reading import ClusterReading, reading_of
from extender.assess.html_page import html_page
from extender.assess.pod_jobs import job_lines
from extender.assess.texts import HEADS, gang_cells, headline, product_cells, replay_cells, set_cells

__all__ = [
    "HEADS",
    "Assessment",
    "ClusterReading",
    "anonymised",
    "assess",
    "gang_cells",
    "headline",
    "html_page",
    "job_lines",
    "product_cells",
    "reading_of",
    "replay_cells",
    "set_cells",
]

"""What Berth would do on a cluster that it does not schedule: figures and replays from objects that were only read."""

from extender.assess.anonymise import anonymised
from extender.assess.assessment import Assessment, assess
from extender.assess.cluster_reading import reading_of
from extender.assess.html_page import html_page
from extender.assess.texts import HEADS, gang_cells, headline, product_cells, replay_cells, set_cells

__all__ = [
    "HEADS",
    "Assessment",
    "anonymised",
    "assess",
    "gang_cells",
    "headline",
    "html_page",
    "product_cells",
    "reading_of",
    "replay_cells",
    "set_cells",
]

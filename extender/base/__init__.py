"""What all layers need and no API defines: errors, limits of text, deadlines, bit masks, fair caches, rates.

Each module is a face by itself.
"""

from __future__ import annotations

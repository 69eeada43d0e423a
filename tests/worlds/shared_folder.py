"""Material that lies beside a checkout in the project's own workplace. A clone elsewhere has none and skips."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"


def needs(*parts: str) -> pytest.MarkDecorator:
    """Skip, saying so, where the material is absent."""
    path = SHARED.joinpath(*parts)
    return pytest.mark.skipif(not path.exists(), reason=f"shared/{'/'.join(parts)} is not beside this checkout")

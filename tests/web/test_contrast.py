"""The colours of the page reach WCAG 2.2 level AA on every surface that they are on, in both themes."""

from __future__ import annotations

import re
from importlib import resources

import pytest

STYLE = resources.files("extender.web").joinpath("assets", "page.css").read_text()
THEMES = {
    name: dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))
    for name, block in zip(("light", "dark"), re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL), strict=True)
}
SURFACES = ("ground", "sheet")
TEXTS = ("ink", "quiet", "accent")  # 4.5:1
GRAPHICS = ("f", "u", "h", "s", "d", "x", "wire", "edge", "live", "accent")  # 3:1


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_formula() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
def test_every_colour_is_readable_on_every_surface(theme: str) -> None:
    tokens = THEMES[theme]
    wanted = {**dict.fromkeys(GRAPHICS, 3.0), **dict.fromkeys(TEXTS, 4.5)}
    assert wanted.keys() | {*SURFACES, "line"} == tokens.keys(), "line only divides, so it needs no contrast"
    too_low = {
        (name, surface): round(contrast(tokens[name], tokens[surface]), 2)
        for name, least in wanted.items()
        for surface in SURFACES
        if contrast(tokens[name], tokens[surface]) < least
    }
    assert not too_low


def test_the_placeholder_has_no_colour_of_the_browser() -> None:
    assert re.search(r"::placeholder \{ color: var\(--quiet\); opacity: 1; \}", STYLE)


def test_all_colours_are_tokens() -> None:
    rules = re.sub(r":root \{.*?\}", "", STYLE, flags=re.DOTALL)
    assert re.findall(r"#[0-9a-f]{3,8}\b(?![^{]*\{)", rules) == []

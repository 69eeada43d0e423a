"""The colours of the page reach WCAG 2.2 level AA on every surface that they are on, in both themes."""

from __future__ import annotations

import re
from importlib import resources

import pytest

STYLE = resources.files("extender.web").joinpath("assets", "page.css").read_text()
THEMES = {
    name: dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))
    for name, block in zip(
        ("light", "dark"), re.findall(r":root(?:\[data-theme=dark\])? \{(.*?)\}", STYLE, re.DOTALL), strict=True
    )
}
SURFACES = ("ground", "sheet")
TEXTS = ("ink", "quiet", "accent")  # 4.5:1
GRAPHICS = ("f", "c", "u", "h", "s", "d", "x", "wire", "edge", "live", "accent")  # 3:1


WEIGHTS = (0.2126, 0.7152, 0.0722)  # of red, green and blue in the lightness


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour: str) -> float:
    return sum(part * weight for part, weight in zip(linear(colour), WEIGHTS, strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# Machado, Oliveira and Fernandes (2009), severity 1: linear red, green and blue as such eyes see them.
EYES = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("theme", THEMES)
def test_free_and_allocated_gpus_differ_in_lightness(theme: str, eyes: str) -> None:
    """So they differ in grey, too. They had the same lightness."""
    free, allocated = (light_seen(THEMES[theme][name], EYES[eyes]) for name in "fu")
    assert (free + 0.05) / (allocated + 0.05) > 1.8


def light_seen(colour: str, eyes: tuple[tuple[float, ...], ...]) -> float:
    seen = (sum(part * share for part, share in zip(linear(colour), row, strict=True)) for row in eyes)
    return sum(min(max(part, 0.0), 1.0) * weight for part, weight in zip(seen, WEIGHTS, strict=True))


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
    rules = re.sub(r":root(?:\[data-theme=dark\])? \{.*?\}", "", STYLE, flags=re.DOTALL)
    assert re.findall(r"#[0-9a-f]{3,8}\b(?![^{]*\{)", rules) == []

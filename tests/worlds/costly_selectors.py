"""Selectors that were written to take long, and a device without attributes to run them on."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from extender.api.resource_slices import Device

CASES = Path(__file__).parents[1] / "cases"


BLANK = Device("blank")


def doubled(first: str, double: str, last: str) -> str:
    """Forty nested bindings v0 to v39; each doubles the one before, which stands for V."""
    values = [first, *(double.replace("V", f"v{i - 1}") for i in range(1, 40))]
    return "".join(f"cel.bind(v{i}, {value}, " for i, value in enumerate(values)) + last + ")" * 40


LONG_TEXT = '["' + "a" * 100 + f""""].all(c, [{"+".join("c" * 100)}].all(d, %s))"""


HOSTILE = {
    "nested loops": "[1,2,3,4,5,6,7,8,9,10].all(a, " * 7 + "true" + ")" * 7,
    "doubled text": doubled("'abcdefgh'", "V+V", "v39.size() > 0"),
    "doubled lists": doubled("[dyn(1)]", "[dyn(V),dyn(V)]", "v39 == v39"),
    "quadratic range": "lists.range(10000).all(x, lists.range(10000).all(y, x + y >= 0))",
    "replaced text": f"'{'a' * 2000}'.replace('a','{'b' * 2000}').replace('b','{'c' * 2000}').size() > 0",
    "joined text": 'lists.range(10000).map(x, lists.range(1000).map(y,"a").join()).join().size() > 0',
    "quadratic sets": "sets.contains(lists.range(10000), lists.range(10000))",
    "numbers of long texts": LONG_TEXT % "lists.range(9999).all(i, double(d) == 0.0 || true)",
    "letters of long texts": LONG_TEXT % "lists.range(9999).all(i, (d + 'É').lowerAscii() != '')",
    "growing lists": "[0]" + ".map(x,[x,x])" * 20 + ".size() == 1",
}


def unfolded(text: str) -> str:
    """«a*3» is aaa."""
    return re.sub(r"«(.+?)\*(\d+)»", lambda found: found[1] * int(found[2]), text)


EXPENSIVE = {name: unfolded(text) for name, text in yaml.safe_load((CASES / "hostile.yaml").read_text()).items()}

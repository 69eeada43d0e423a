"""Time of each function of CEL with large arguments, divided by the time that its units stand for.

A ratio above 3 is a fault: the price is too low. The arguments are adversarial values of each type, of two sizes.
"""

from __future__ import annotations

import ipaddress
import itertools
import random
import reprlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from extender.cel import BudgetExceeded, EvalError
from extender.cel.cost import charged, make_list, make_map
from extender.cel.library import kubernetes_library
from extender.cel.library.kubernetes import quantity, semver, url
from extender.cel.library.text import compiled
from extender.cel.types import Overload, Type, fits
from extender.cel.values import NONE, Cidr, Duration, Format, Optional, Timestamp, TypeValue, UInt

UNIT, BUDGET, NODE, ERROR = 50e-9, 1_000_000, 3, 40
SIZES = 4000, 100_000
COMBINATIONS = 60  # of arguments for each signature
SCALARS = {"int", "uint", "double", "bool", "duration", "timestamp", "null"}
MADE = {"_?_:_", "_&&_", "_||_", "_[_]", "_[?_]", "or", "orValue"}  # the compiler makes their closures
SHORT = [
    *("", "a", "é", "%s", "%.100f", "%e", "%x", "80Gi", "1e400", "1.2.3-rc.1", "1::1", "1.2.3.4/8", "1h1m1.5s", "true"),
    *("2020-01-01T00:00:00.1+01:30", "Asia/Kathmandu", "+01:30", "18446744073709551615", "-1.7e308", "http://a/b?c=d"),
]
REPEATED = ["a", "é", "😀", " ", "0", "9", "%%", "%s", "\x01", "a&", "%61", "a.", ":", "/", "1_", '"', "-", "QUFB", "A"]
PREFIXED = {"1.2.3-": "a.a.", "1.2.3-1": "1", "/?": "a&", "http://a/": "%20", "0x": "a", "1.": "5", "http://[": "1:"}
PATTERNS = ["a", "a*", "(a|b)*c", "[a-z]+b", ".*.*=.*", "(?:a?){200}a{200}", "é*", "(a{0,100}){0,5}b", ""]


def made(items: Any) -> Any:
    return make_list([10**12], list(items))


def mapped(entries: dict[Any, Any]) -> Any:
    return make_map([10**12], entries)


def values(size: int) -> list[object]:
    """Adversarial values of every type; equal ones occur twice, as objects of their own."""
    rows, half = size // 4, size // 2
    texts = [part * (size // len(part)) for part in REPEATED]
    texts += [start + part * (size // len(part)) + part[:1] for start, part in PREFIXED.items()]
    tree = made([1])
    for _ in range(rows.bit_length()):
        tree = made([tree, tree])
    moments = [Duration(123456789), Timestamp(1600000000123456789, 5400)]
    numbers: list[object] = [0, 1, -1, 2**63 - 1, half, UInt(5), 0.1, 1e308, 5e-324, float("nan"), float("inf"), True]
    parsed = [semver(f"1.2.3-{'a.' * half}a") for _ in range(2)] + [url(f"/?{'a&' * half}") for _ in range(2)]
    others: list[object] = [quantity("9" * 4000), quantity("80Gi"), semver("1.2.3"), url("http://a/b?c=d")]
    others += [ipaddress.ip_address("1.2.3.4"), ipaddress.ip_address(2**100), Cidr(ipaddress.ip_address(2**100), 64)]
    others += [*map(Format, ("dns1123Subdomain", "uri", "byte", "datetime")), TypeValue("int"), None, *moments]
    singles = [*numbers, *others, "", "a", b"ab", NONE, Optional(1), made([]), made([1])]
    lists = [made(itertools.repeat(value, rows)) for value in singles]
    lists += [made(range(rows)), made(range(rows, 0, -1)), made([texts[0], texts[0] + "a"] * 5), made(parsed * 2)]
    lists += [made([item]) for item in (*lists, *texts)] + [tree]
    maps = [mapped({i: i for i in range(rows)}), mapped({f"{i:040}": "" for i in range(rows)}), mapped({texts[0]: 1})]
    found: list[object] = [*singles, *SHORT, *texts, *parsed, *lists, *maps, made(maps)]
    found += [text.encode() for text in texts[:3]] + [(texts[0] + "x")[:-1], mapped({(texts[0] + "x")[:-1]: 1})]
    return [*found, *(Optional(value) for value in (texts[0], tree, *maps))]


def arguments(overload: Overload, pool: list[object]) -> Iterator[tuple[object, ...]]:
    """Random combinations of values that fit the types, the same in each run."""
    choice = random.Random(overload.function)
    fitting: list[list[Any]] = [[v for v in pool if fits(v, type_)] for type_ in overload.args]
    if overload.pattern:
        fitting[1] = [compiled(pattern, lambda _: None) for pattern in PATTERNS]
    if all(fitting):
        yield from (tuple(map(choice.choice, fitting)) for _ in range(COMBINATIONS))


def measured(run: Callable[..., object], args: tuple[object, ...]) -> tuple[float, int]:
    """The seconds and the units of a call in a loop."""
    frame: list[Any] = [BUDGET]
    failed = 0
    start = time.thread_time()
    try:
        run(frame, *args)
    except (EvalError, TypeError, AttributeError):  # as the compiler takes them
        failed = ERROR
    return time.thread_time() - start, BUDGET - frame[0] + failed + NODE * (2 + len(args))


def worst(overload: Overload, pool: list[object]) -> tuple[float, str]:
    """The highest ratio of a function, with its arguments in short."""
    grows = any(_large(type_) for type_ in (*overload.args, overload.result))
    paid = charged(overload.function, overload.apply, grows=grows)
    run = paid or (lambda _, *args: overload.apply(*args))
    found, shown = 0.0, ""
    for args in arguments(overload, pool):
        try:
            seconds, units = measured(run, args)
            if seconds > found * units * UNIT:  # the least of three: others use the processor, too
                seconds = min(seconds, measured(run, args)[0], measured(run, args)[0])
        except BudgetExceeded:
            continue
        if seconds > found * units * UNIT:
            found, shown = seconds / (units * UNIT), f"{reprlib.repr(args)} {seconds * 1e6:.0f} us"
    return found, shown


def _large(type_: Type) -> bool:
    return type_.kind not in SCALARS and type_.name != "kubernetes.Quantity"


def main() -> None:
    functions = kubernetes_library((1, 37), includes=True, all_versions=True)
    overloads = [o for name, many in functions.items() if name not in MADE for o in many if o.args]
    for size in SIZES:
        pool = values(size)
        rows = sorted(((*worst(one, pool), one) for one in overloads), key=lambda row: -row[0])
        print(f"prices, values of {size}: {len(rows)} signatures; the highest ratios of time to units:")
        for ratio, shown, one in rows[:8]:
            print(f"  {ratio:6.1f}  {one.function}({', '.join(map(str, one.args))})  {shown}")


if __name__ == "__main__":
    main()

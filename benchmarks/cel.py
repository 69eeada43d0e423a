"""CEL: evaluation against cel-python, compile time, forty thousand devices, memory: ratios within one run."""

from __future__ import annotations

import contextlib
import json
import logging
import statistics
import time
import timeit
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import celpy

from extender.api.resource_slices import Device, Slice, SliceDecoder
from extender.cel import CelError
from extender.cel.dra import Masks, compile_selector
from extender.sandbox import carried_machines
from extender.sandbox.machines import Machine, gpu_slice

DRIVER = "gpu.nvidia.com"
SELECTORS = {
    "class": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"',
    "product": f'device.attributes["{DRIVER}"].productName == "NVIDIA H100 80GB HBM3"',
    "regex": f'device.attributes["{DRIVER}"].productName.matches("^NVIDIA (A100|H100)")',
    "guarded": (
        f'device.driver == "{DRIVER}" && "productName" in device.attributes["{DRIVER}"] && '
        f'device.attributes["{DRIVER}"].productName.startsWith("NVIDIA") && device.attributes["{DRIVER}"].architecture '
        'in ["Hopper", "Ampere"]'
    ),
    "uuid": f'device.attributes["{DRIVER}"].uuid == "GPU-00000000-0000-0000-0000-000000000000"',
}
OURS_ONLY = {
    "memory": f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',
    "semver": f'device.attributes["{DRIVER}"].driverVersion.compareTo(semver("570.0.0")) >= 0',
}


def best(action: Callable[..., object], *args: object, repeat: int, number: int) -> float:
    """Microseconds of action(*args): the least of several rounds."""
    timer = timeit.Timer(
        f"action({', '.join(f'a{i}' for i in range(len(args)))})",
        globals={"action": action} | {f"a{i}": arg for i, arg in enumerate(args)},
    )
    return min(timer.repeat(repeat, number)) / number * 1e6


def celpy_program(text: str, *, compiled: bool) -> celpy.Runner:
    runner = celpy.CompiledRunner if compiled else celpy.InterpretedRunner
    environment = celpy.Environment(runner_class=runner)
    return environment.program(environment.compile(text))


def evaluation(device: Device) -> None:
    activation = {
        "device": celpy.adapter.json_to_cel(
            {
                "driver": DRIVER,
                "attributes": {
                    DRIVER: {
                        n.partition("/")[2]: (v if isinstance(v, str) else str(getattr(v, "text", v)))
                        for n, v in device.attributes.items()
                    }
                },
            }
        )
    }
    print(f"{'selector':10} {'ours':>9} {'compile':>9} {'celpy':>10} {'ratio':>8} {'transpiled':>11} {'ratio':>8}")
    ratios = []
    for name, text in {**SELECTORS, **OURS_ONLY}.items():
        selector = compile_selector(text)
        mine = best(selector.match, device, DRIVER, repeat=9, number=5000)
        compiling = best(compile_selector, text, repeat=3, number=20)
        if name in OURS_ONLY:
            print(f"{name:10} {mine:8.2f}u {compiling:8.0f}u {'-':>10} {'-':>8}   (cel-python has no such function)")
            continue
        # In this order: cel-python keeps one parser per process, whose trees suit both only if the transpiler made it.
        transpiled, interpreted = (timed(celpy_program(text, compiled=c), activation) for c in (True, False))
        ratios.append((interpreted / mine, transpiled / mine))
        print(
            f"{name:10} {mine:8.2f}u {compiling:8.0f}u {interpreted:9.0f}u {interpreted / mine:7.0f}x "
            f"{transpiled:10.0f}u {transpiled / mine:7.0f}x"
        )
    medians = [statistics.median(column) for column in zip(*ratios, strict=True)]
    print(f"median ratio {medians[0]:.0f}x, {medians[1]:.0f}x to cel-python's transpiled code")


def timed(program: celpy.Runner, activation: dict[str, Any]) -> float:
    return best(program.evaluate, activation, repeat=9, number=100)


def fleet(count: int) -> list:
    decoder, machines = SliceDecoder(), carried_machines()
    kinds: list[Machine] = [machines[k] for k in ("hgx-h100-8", "a100-pcie-8-bridged", "dgx1-v100", "l40s-8-pix")]
    raw = [json.dumps(gpu_slice(f"node-{i:05}", kinds[i % len(kinds)])) for i in range(count)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    slices = [decoder.decode(json.loads(text)) for text in raw]
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    devices = sum(len(s.devices) for s in slices)
    print(f"{devices} devices: {used / devices:.0f} bytes each (with their share of the slice)")
    return slices


def again_after_forgetting(store: Masks, text: str, slice_: Slice) -> None:
    store.forget(slice_.name)
    store.of(text, slice_)


def masks(slices: list) -> None:
    print(f"{'selector':10} {'first':>10} {'again':>10} {'one slice':>10}")
    for name, text in {**SELECTORS, **OURS_ONLY}.items():
        store = Masks()
        start = time.perf_counter()
        for slice_ in slices:
            store.of(text, slice_)
        first = time.perf_counter() - start
        start = time.perf_counter()
        for slice_ in slices:
            store.of(text, slice_)
        again = time.perf_counter() - start
        one = best(partial(again_after_forgetting, store, text, slices[0]), repeat=3, number=50)
        print(f"{name:10} {first * 1000:8.1f}ms {again * 1000:8.1f}ms {one:8.1f}us")


def hostile() -> None:
    """The longest of the expressions written to take long, in milliseconds of processor time."""
    from tests.worlds.costly_selectors import BLANK, EXPENSIVE, HOSTILE

    took = []
    for name, text in {**EXPENSIVE, **HOSTILE}.items():
        start = time.process_time()
        with contextlib.suppress(CelError):
            compile_selector(text).match(BLANK, "d")
        took.append((1000 * (time.process_time() - start), name))
    print(
        f"hostile: {len(took)} expressions, the longest: "
        + ", ".join(f"{name} {ms:.0f} ms" for ms, name in sorted(took, reverse=True)[:3])
    )


def main() -> None:
    logging.disable(logging.CRITICAL)
    slices = fleet(5000)
    evaluation(slices[0].devices[0])
    masks(slices)
    hostile()


if __name__ == "__main__":
    main()

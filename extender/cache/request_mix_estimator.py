"""The expected demand, learned from the cluster's own recent claims.

Shares are kept coarse and change only when they moved by a good step: every change of the mix makes all remembered
statuses worthless, and a score needs no third digit of it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from extender.model import DEFAULT_MIX, WHOLE, Claim, DeviceRequest, RequestMix, RequestShape, whole_gpus

_WINDOW = 512  # claims remembered
_ENOUGH = 32  # claims before the default mix is left
_STEP = 1 / 16  # of a share
_MOVED = 1 / 8  # a share must have moved so far before the mix changes
_EIGHTH = WHOLE // 8  # parts of a GPU are told apart in steps of this size
_MEMORY = ("memory", "gpu.nvidia.com/memory")


class RequestMixEstimator:
    """What the last claims asked for, as (GPUs, bytes of memory of a share or 0)."""

    def __init__(self, window: int = _WINDOW) -> None:
        self._window = window
        self._claims: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._counts: Counter[tuple[int, int]] = Counter()
        self._changed = False
        self._mix = DEFAULT_MIX
        self._given = False

    def use(self, mix: RequestMix) -> None:
        """From now on this is the mix: another process learned it."""
        self._given = True
        if mix != self._mix:
            self._mix = mix

    def observe(self, claim: Claim) -> None:
        """A claim, new or known."""
        asked = _requested(claim) if claim.uid not in self._claims else None
        if asked is None:
            return
        self._claims[claim.uid] = asked
        self._counts[asked] += 1
        self._changed = True
        if len(self._claims) > self._window:
            _, oldest = self._claims.popitem(last=False)
            self._counts[oldest] -= 1

    def mix(self, most_memory: int) -> RequestMix:
        """The expected demand; the same object as long as it did not move. `most_memory` is that of the largest GPU."""
        if self._changed and not self._given and len(self._claims) >= _ENOUGH:
            self._changed = False
            self._refresh(most_memory)
        return self._mix

    def _refresh(self, most_memory: int) -> None:
        now: Counter[RequestShape] = Counter()
        for (gpus, asked), count in self._counts.items():
            now[_shape(gpus, asked, most_memory)] += count
        total = sum(now.values())
        before = dict(self._mix)
        moved = max(abs(now[shape] / total - before.get(shape, 0.0)) for shape in now.keys() | before.keys())
        if moved > _MOVED:
            coarse = {shape: round(count / total / _STEP) * _STEP for shape, count in now.items()}
            self._mix = tuple(sorted((shape, share) for shape, share in coarse.items() if share))


def _shape(gpus: int, asked: int, most_memory: int) -> RequestShape:
    if gpus > 1 or not asked or not most_memory:
        return whole_gpus(gpus)
    return RequestShape(0, 0, 1, min(max(-(-asked * 8 // most_memory), 1), 8) * _EIGHTH)


def _requested(claim: Claim) -> tuple[int, int] | None:
    """GPUs and, for a single one, bytes of memory; None for requests that count nothing."""
    options = [r.alternatives[0] for r in claim.spec.requests if r.alternatives]
    counted = [o for o in options if o.mode == "ExactCount" and not o.admin_access]
    if not counted:
        return None
    gpus = sum(option.count for option in counted)
    return gpus, _memory(counted[0]) if gpus == 1 else 0


def _memory(option: DeviceRequest) -> int:
    """Bytes asked for."""
    return next((option.capacity[name].ceil() for name in _MEMORY if option.capacity and name in option.capacity), 0)

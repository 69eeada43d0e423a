"""The first lines of an assessment: would Berth have placed the running pods better, and which waiting ones fit.

It compares the replay by Berth with what the pods have today, and with first fit in the same replay. Today's pods came
and went, the replay begins with emptied nodes: what first fit gains there, too, is no merit of Berth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from extender.assess.pod_sets import Bandwidth
from extender.assess.replayed_pods import Figures, Replayed
from extender.assess.waiting_pods import WaitingPods
from extender.base.text_limits import counted

_NO = "Berth would not place the running pods better"
_KUBELET = "Only the kubelet knows which GPUs they have today"
_UNKNOWN = "It is not known whether Berth would place the running pods better"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`helps` is None if it is not known."""

    helps: bool | None
    sentences: tuple[str, ...]


class _Measure(NamedTuple):
    """One figure. `sign` is -1 where less is better. Differences that `digits` do not show do not count."""

    value: Callable[[Figures], float | None]
    shown: Callable[[Figures], str]
    text: Callable[[Figures], str]  # with the figure
    sign: int = 1
    digits: int = 2

    def gain(self, one: Figures, other: Figures) -> float:
        """By how much `one` is better; 0 where one of both is not measured."""
        a, b = self.value(one), self.value(other)
        return 0.0 if a is None or b is None else self.sign * (round(a, self.digits) - round(b, self.digits))


_MEASURES = (
    _Measure(
        lambda one: one.joined,
        lambda one: f"{one.joined_pods:,} of {one.several:,}",
        lambda one: f"joined GPUs for {one.joined_pods:,} of {counted(one.several, 'pod')} with several",
    ),
    _Measure(
        lambda one: one.share, lambda one: f"{one.share:.0%}", lambda one: f"{one.share:.0%} of the best bandwidth"
    ),
    _Measure(lambda one: one.nics, lambda one: f"{one.nics:.0%}", lambda one: f"{one.nics:.0%} of the NICs near"),
    _Measure(
        lambda one: one.domains,
        lambda one: f"{one.domains:.1f}",
        lambda one: f"{one.domains:.1f} domains for a gang",
        -1,
        1,
    ),
)


def verdict_of(replay: Replayed, bandwidth: Bandwidth, plugin_several: int, waiting: Sequence[WaitingPods]) -> Verdict:
    """The verdict. `bandwidth` is that of the running pods today, without the `plugin_several` of a device plugin."""
    helps, text = _of_replay(replay, list(_left_out(replay, bandwidth, plugin_several)))
    return Verdict(helps, (text, *_of_waiting(waiting)))


def _left_out(replay: Replayed, bandwidth: Bandwidth, plugin_several: int) -> Iterator[str]:
    """What might be better with Berth, and is not compared."""
    if unmeasured := bandwidth.pods - bandwidth.measured:
        yield f"{counted(unmeasured, 'pod')} with several GPUs, whose links no agent of Berth has read"
    if plugin_several and not replay.of_plugin:
        yield f"{counted(plugin_several, 'pod')} with several GPUs of a device plugin"
    if replay.unlevelled_gangs:
        yield f"how near the nodes of {counted(replay.unlevelled_gangs, 'gang')} are, which no label says"
    if replay.wide_gangs:
        yield f"{counted(replay.wide_gangs, 'gang')} over more domains than needed, without a replay of all pods"


def _of_replay(replay: Replayed, left_out: Sequence[str]) -> tuple[bool | None, str]:
    if not replay.rows:
        return None, f"{_UNKNOWN}: the replay was not computed ({replay.problem})."
    today, berth, first_fit = replay.rows[:3]
    missing = f" Not compared: {'; '.join(left_out)}." if left_out else ""
    measured = [one for one in _MEASURES if one.value(berth) is not None]
    if not measured and missing:
        return None, f"{_UNKNOWN}.{missing}"
    if not measured:
        return False, f"{_NO}: none of them has several GPUs or a NIC, or is in a gang."
    gains = [one for one in measured if one.gain(berth, today) > 0]
    after = f"{_worse(measured, replay)} {_extent(replay)}{missing}"
    unknown = [one for one in measured if one.value(today) is None]
    if any(one.gain(berth, first_fit) > 0 for one in gains):
        after = f" {_KUBELET}: with Berth, {_list(unknown, replay)}.{after}" if unknown else after
        return True, f"Berth would place the running pods better: {_list(gains, replay)}.{after}"
    if gains:
        why = "First fit does as well there, so the reason may be the emptied nodes"
        return None, f"Berth may place the running pods better: {_list(gains, replay)}. {why}.{after}"
    if unknown:
        return None, f"{_UNKNOWN}. {_KUBELET}: with Berth, {_list(unknown, replay)}.{after}"
    if missing:
        return None, f"{_UNKNOWN}. It would not where that can be compared: {_list(measured, replay)}.{after}"
    return False, f"{_NO}: {_list(measured, replay)}.{after}"


def _list(measures: Sequence[_Measure], replay: Replayed) -> str:
    """The figures of Berth, with those of today and of first fit."""
    today, berth, first_fit = replay.rows[:3]
    parts = []
    for one in measures:
        others = (f"{of.placement} {one.shown(of)}" for of in (today, first_fit) if one.value(of) is not None)
        parts.append(f"{one.text(berth)} ({', '.join(others)})")
    return "; ".join(parts)


def _worse(measures: Sequence[_Measure], replay: Replayed) -> str:
    today, berth, _ = replay.rows[:3]
    losses = [f"{one.text(berth)} (today {one.shown(today)})" for one in measures if one.gain(berth, today) < 0]
    losses += [f"{berth.started:,} of {counted(replay.jobs, 'job')} placed"] if berth.started < replay.jobs else []
    return f" Worse: {'; '.join(losses)}." if losses else ""


def _extent(replay: Replayed) -> str:
    left = f", without {replay.left_out:,} that cannot be replayed" if replay.left_out else ""
    return f"Replayed: {counted(replay.pods, 'pod')} on {replay.nodes:,} of {counted(replay.of_nodes, 'node')}{left}."


def _of_waiting(waiting: Sequence[WaitingPods]) -> Iterator[str]:
    if not waiting:
        return
    pods, fit = sum(one.pods for one in waiting), sum(one.pods for one in waiting if one.fits and not one.other_reason)
    others = sum(one.pods for one in waiting if one.fits and one.other_reason)
    unknown = sum(one.pods for one in waiting if one.fits is None)
    more = f"; by their devices {others:,} more, for which their scheduler has another reason" if others else ""
    more += f"; of {unknown:,} it is not known" if unknown else ""
    yield f"Waiting pods that would fit now, each alone or with its gang: {fit:,} of {pods:,}{more}."

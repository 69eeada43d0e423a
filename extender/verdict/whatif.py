"""The picture as it would be: a node with some allocations given back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from extender.allocation.live import live_use, uses_of
from extender.allocation.offline import consumed_counters
from extender.allocation.problem import UNUSED, PoolUse, Usage, taken_mask
from extender.allocation.view import NodeState, NodeView
from extender.model.claim import Result
from extender.model.device import PoolKey


def freed(view: NodeView, results: Iterable[Result]) -> NodeView:
    """The node if these allocated devices were free, in a state of its own."""
    pools = dict(view.usage.pools)
    for result in results:
        key = PoolKey(result.device.driver, result.device.pool)
        pools[key] = _less(pools.get(key, UNUSED), result)
    counters = {
        pool.key: consumed_counters(pool.slices, pools.get(pool.key, UNUSED)) if pools.get(pool.key) != view.usage.pools.get(pool.key)
        else view.usage.counters(pool)
        for pool in view.inventory.pools
        if pool.counter_sets
    }
    usage = Usage(pools, lambda pool: counters.get(pool.key, {}))
    busy = taken_mask(view.inventory, usage)
    drift, overuse = live_use(view.inventory, usage, uses_of(view.fabric), view.gpu_bits, busy) if view.believed else (0, {})
    state = NodeState(appearance=view.state.appearance, imagined=True)
    return replace(view, usage=usage, busy=busy, held=view.held & busy, drift=drift, overuse=overuse, state=state)


def _less(use: PoolUse, result: Result) -> PoolUse:
    name = result.device.device
    if not result.share_id:
        return PoolUse(use.taken - {name}, use.shares)
    left = {
        capacity: amount - (result.consumed[capacity].nanos if result.consumed and capacity in result.consumed else 0)
        for capacity, amount in use.shares.get(name, {}).items()
    }
    shares = {device: amounts for device, amounts in use.shares.items() if device != name}
    if any(left.values()):
        shares[name] = left
    return PoolUse(use.taken, shares)

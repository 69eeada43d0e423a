"""Several replays side by side."""

from __future__ import annotations

import os
from typing import NoReturn
from unittest.mock import patch

import pytest

from extender.base.berth_errors import BerthError
from extender.replay import Job, Task, fleet_of, placer_of, run_side_by_side
from extender.sandbox import parse_nodes

JOBS = [Job(f"job-{number}", number, 10, gpus=1) for number in range(9)]
FLEET = fleet_of(parse_nodes("1xt4-4"))


def test_outcomes_come_in_the_order_of_the_tasks_and_all_jobs_are_told() -> None:
    told = list[int]()
    tasks = [Task(FLEET, JOBS, placer_of(rule), 1) for rule in ("emptiest node", "berth", "first fit")]
    found = run_side_by_side(tasks, told.append)
    assert [one.placement for one in found] == ["emptiest node", "Berth", "first fit"]
    assert sum(told) == 3 * len(JOBS)


def test_a_process_that_is_killed_is_one_sentence() -> None:
    def killed(*_: object) -> NoReturn:
        os._exit(9)

    with (
        patch("extender.replay.parallel.run_replay", killed),
        pytest.raises(BerthError, match="the process of the replay of Berth ended: was the memory enough"),
    ):
        run_side_by_side([Task(FLEET, JOBS, placer_of("berth"), 1)])


def test_a_fault_keeps_its_name() -> None:
    def faulty(*_: object) -> NoReturn:
        raise KeyError("x")

    with patch("extender.replay.parallel.run_replay", faulty), pytest.raises(RuntimeError, match="KeyError: 'x'"):
        run_side_by_side([Task(FLEET, JOBS, placer_of("berth"), 1)])

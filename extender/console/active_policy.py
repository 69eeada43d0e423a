"""The policy that the console explains by: its own copy of the file that serve reads."""

from __future__ import annotations

from collections.abc import Callable

from extender.policy import Policy


class ActivePolicy:
    """The last good policy; `changed` is called when another comes into force."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.generation = 0  # policies put in force since the start
        self.problem = ""  # why the newest policy file is not in force
        self._followers: list[Callable[[], None]] = []

    def follow(self, changed: Callable[[], None]) -> None:
        """From now on call this, too."""
        self._followers.append(changed)

    def use(self, policy: Policy) -> None:
        """Explain by this policy from now on."""
        self.policy, self.problem = policy, ""
        self.generation += 1
        for changed in self._followers:
            changed()

    def refuse(self, problem: str) -> None:
        """The newest policy is wrong; the last good one stays in force."""
        self.problem = problem

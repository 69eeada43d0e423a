"""The policy in force at the console, which reads its own copy of serve's policy file."""

from __future__ import annotations

from collections.abc import Callable

from extender.policy import Policy


class ActivePolicy:
    """The last valid policy. Followers are called when another policy comes into force."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.generation = 0  # number of policies put in force since the start
        self.problem = ""  # why the newest policy file is not in force; empty if it is
        self._followers: list[Callable[[], None]] = []

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each later change of the policy."""
        self._followers.append(changed)

    def use(self, policy: Policy) -> None:
        """Put a policy in force."""
        self.policy, self.problem = policy, ""
        self.generation += 1
        for changed in self._followers:
            changed()

    def reject(self, problem: str) -> None:
        """Note why the newest policy file is not valid. The last valid policy stays in force."""
        self.problem = problem

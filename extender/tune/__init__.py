"""Finds the weights of a policy that serve an aim best, by replays of the user's jobs. It prints and writes nothing."""

from extender.tune.aims import AIMS, MAX_DRAWS, Aim, Interval, interval
from extender.tune.frontier_picture import frontier_picture
from extender.tune.tuning import Tuning, tune

__all__ = ["AIMS", "MAX_DRAWS", "Aim", "Interval", "Tuning", "frontier_picture", "interval", "tune"]

"""Entry points: the compositions that `berth serve`, `berth console` and `berth run` start. What does not belong here:
anything that can be composed in more than one way."""

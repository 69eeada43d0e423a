"""Entry points: they compose the objects of `berth serve`, `berth console` and `berth run`.

Code that can be composed in more than one way does not belong here.
"""

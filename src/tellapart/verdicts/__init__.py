"""Faults in a training's log: the one set of rules that training, reports and ``tellapart doctor`` read."""

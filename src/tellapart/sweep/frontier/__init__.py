"""Curves of recall against naturalness, one knob a method: their records, what is read off them, and their page."""

from tellapart.metrics.curves import crossings, interpolate, t_interval
from tellapart.sweep.frontier.readings import Reading, band, levels, read
from tellapart.sweep.frontier.write import write_frontier
from tellapart.sweep.records import Curve, Measured, Point, Training, read_curves

__all__ = [
    "Curve",
    "Measured",
    "Point",
    "Reading",
    "Training",
    "band",
    "crossings",
    "interpolate",
    "levels",
    "read",
    "read_curves",
    "t_interval",
    "write_frontier",
]

"""Measuring captioners: one protocol for all, results as files, tables with intervals, and a page to look at."""

"""One self-contained page about several runs: table, example images with every model's caption, and curves."""

from tellapart.evaluation.report.page import write_report
from tellapart.evaluation.report.runs import RunView, read_run, with_start

__all__ = ["RunView", "read_run", "with_start", "write_report"]

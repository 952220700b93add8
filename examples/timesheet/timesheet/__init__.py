"""A timesheet: reads entries such as `1h 45m`, adds them up, prints the total."""

from timesheet.entry import parse_entry
from timesheet.report import render
from timesheet.sheet import Sheet

__all__ = ["Sheet", "parse_entry", "render"]

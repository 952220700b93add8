"""What was noted for a task: `1d 2h` or `45m` as minutes."""

import re

UNIT = re.compile(r"(\d+)\s*([dhm])")


def parse_entry(text):
    """Minutes in a text such as `1h 45m`; raises ValueError when no time is in it."""
    amounts = UNIT.findall(text.lower())
    if not amounts:
        raise ValueError(f"no time in {text!r}")
    return sum(in_minutes(int(number), unit) for number, unit in amounts)


def in_minutes(number, unit):
    """So many units as minutes."""
    return CONVERSIONS[unit](number)


def from_minutes(number):
    """Minutes are minutes."""
    return number


def from_hours(number):
    """An hour has 60 minutes."""
    return 60 * number


def from_days(number):
    """A working day."""
    return from_hours(24 * number)


CONVERSIONS = {"m": from_minutes, "h": from_hours, "d": from_days}

"""One entry of a timesheet."""

import re
from typing import NamedTuple

UNIT = re.compile(r"(\d+)\s*([hm])")


class Entry(NamedTuple):
    """Time worked; `minutes` stays below 60."""

    hours: int
    minutes: int


def parse_entry(text):
    """Read `1h 45m`, `2h` or `90m`; raises ValueError when no time is in the text."""
    fields = split_units(text)
    if not fields:
        raise ValueError(f"no time in {text!r}")
    return normalise(fields.get("h", 0), fields.get("m", 0))


def split_units(text):
    """The number of each unit named in the text."""
    return {unit: int(number) for number, unit in UNIT.findall(text.lower())}


def normalise(hours, minutes):
    """Bring the minutes below 60."""
    if minutes >= 60:
        return carry(hours, minutes)
    return Entry(hours, minutes)


def carry(hours, minutes):
    """Turn full sixties of minutes into hours."""
    extra, left = divmod(minutes, 60)
    return Entry(max(hours, extra), left)

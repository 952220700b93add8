"""Entries kept under the name of a task."""

from timesheet.entry import normalise, parse_entry


class Sheet:
    """Tasks with their entries, in the order in which they came."""

    def __init__(self):
        self.entries = []

    def add(self, task, text):
        """Note the time in `text` for `task`."""
        self.entries.append((task, parse_entry(text)))

    def tasks(self):
        """The names of all tasks, each once."""
        return list(dict.fromkeys(task for task, _ in self.entries))

    def total(self, task):
        """The time of one task."""
        mine = [entry for name, entry in self.entries if name == task]
        return normalise(sum(entry.hours for entry in mine), sum(entry.minutes for entry in mine))

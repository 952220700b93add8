"""Times kept under the name of a task."""

from timesheet.entry import parse_entry


class Sheet:
    """Tasks with their times, in the order in which they came."""

    def __init__(self):
        self.entries = []

    def add(self, task, text):
        """Note the time in `text` for `task`; returns its minutes."""
        minutes = parse_entry(text)
        self.entries.append((task, minutes))
        return minutes

    def tasks(self):
        """The names of all tasks, each once."""
        return list(dict.fromkeys(task for task, _ in self.entries))

    def total(self, task):
        """The minutes of one task."""
        return sum(minutes for name, minutes in self.entries if name == task)

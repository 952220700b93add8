"""A timesheet as text."""


def render(sheet):
    """One line per task."""
    width = max(len(task) for task in sheet.tasks())
    return "\n".join(line(task, sheet.total(task), width) for task in sheet.tasks())


def line(task, total, width):
    """A task and its time, in columns."""
    return f"{task:<{width}}  {total.hours:>3}h {total.minutes:02}m"

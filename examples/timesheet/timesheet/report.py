"""A timesheet as text."""


def render(sheet):
    """One line per task."""
    width = max(len(task) for task in sheet.tasks())
    return "\n".join(line(task, sheet.total(task), width) for task in sheet.tasks())


def line(task, minutes, width):
    """A task and its time, in columns."""
    hours, rest = divmod(minutes, 60)
    return f"{task:<{width}}  {hours:>3}h {rest:02}m"

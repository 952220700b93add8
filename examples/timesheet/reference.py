"""Two entries of 1h 15m make 2h 30m, and the sheet agrees."""

from timesheet import Sheet, render

sheet = Sheet()
sheet.add("review", "1h 15m")
sheet.add("review", "1h 15m")
print(render(sheet))
if sheet.total("review").hours != 2:
    raise SystemExit("an hour is missing")

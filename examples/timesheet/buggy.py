"""Two entries of 1h 45m make 3h 30m; the sheet says 2h 30m."""

from timesheet import Sheet, render

sheet = Sheet()
sheet.add("review", "1h 45m")
sheet.add("review", "1h 45m")
print(render(sheet))
if sheet.total("review").hours != 3:
    raise SystemExit("an hour is missing")

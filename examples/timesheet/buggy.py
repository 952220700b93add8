"""A day and two hours make 10 hours of work; the sheet says 26."""

from timesheet import Sheet, render

sheet = Sheet()
sheet.add("review", "1d 2h")
print(render(sheet))
if sheet.total("review") != 10 * 60:
    raise SystemExit("that is not how long it took")

"""Eight hours and two make 10, and the sheet agrees."""

from timesheet import Sheet, render

sheet = Sheet()
sheet.add("review", "8h 2h")
print(render(sheet))
if sheet.total("review") != 10 * 60:
    raise SystemExit("that is not how long it took")

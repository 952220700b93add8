"""Tests of the sheet: one parameter fails."""

import pytest
from timesheet import Sheet


@pytest.mark.parametrize(("text", "minutes"), [("45m", 45), ("8h 2h", 600), ("1d 2h", 600)])
def test_add_returns_the_minutes(text, minutes):
    assert Sheet().add("review", text) == minutes


def test_each_task_is_listed_once():
    sheet = Sheet()
    sheet.add("review", "2h")
    sheet.add("review", "1h")
    assert sheet.tasks() == ["review"]

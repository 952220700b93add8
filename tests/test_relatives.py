"""What stands beside the functions that differ: overridden methods that did not run, and class-level data."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import kinds, located, suspects
from xlocal.ranking.evidence import FunctionView
from xlocal.ranking.relatives import Hierarchy, relatives
from xlocal.ranking.signals import Finding
from xlocal.ranking.source import SourceIndex
from xlocal.tracer.calltree import Function

SHAPES = """
    class Shape:
        sides = 0

        def area(self, x):
            return x

        def name(self):
            if self.sides > 3:
                return "many"
            return "few"

    class Square(Shape):
        sides = 4

        def area(self, x):
            if x < 0:
                return 0
            return x * x

    class Tilted(Square):
        def area(self, x):
            return -1

    class Other:
        def area(self, x):
            return 7
"""


def test_methods_around_one_that_differs_are_listed_last(tmp_path: Path) -> None:
    found = located(
        tmp_path,
        SHAPES,
        "import lib; assert lib.Square().area(-3) == 9",
        "import lib; assert lib.Square().area(3) == 9",
    )
    assert kinds(found, "Shape.area")["override"] == (
        "did not run, but is overridden by Square.area, which took line 18 in the buggy run, but line 19 in the reference run"
    )
    assert kinds(found, "Tilted.area")["override"].startswith("did not run, but overrides Square.area, which took")
    assert "Other.area" not in suspects(found)
    assert suspects(found)[0] == "Square.area"
    assert set(suspects(found)[-2:]) == {"Shape.area", "Tilted.area"}


def test_a_relative_that_ran_is_no_relative(tmp_path: Path) -> None:
    bad = "import lib; lib.Shape().area(1); assert lib.Square().area(-3) == 9"
    found = located(tmp_path, SHAPES, bad, bad.replace("-3", "3"))
    assert "override" not in kinds(found, "Shape.area")


def test_class_level_data_read_where_the_runs_part_is_reported(tmp_path: Path) -> None:
    module = """
        class Table:
            limit = 5
            own = 1

            def __init__(self):
                self.own = 2

            def fits(self, x):
                if x > self.limit + self.own - 2:
                    return False
                return True
    """
    found = located(
        tmp_path,
        module,
        "import lib; assert lib.Table().fits(6)",
        "import lib; assert lib.Table().fits(4)",
    )
    assert kinds(found, "Table")["class-data"] == (
        "sets limit at line 3, class-level data that Table.fits reads at line 10, where the runs part"
    )
    assert not next(r for r in found.suspects if r.suspect.function.qualname == "Table").suspect.executed


LIMITS = """
    class Table:
        limit = 5

        def fits(self, x):
            if x > self.limit:
                return False
            return True

    class Small(Table):
        limit = 2
"""


def test_data_of_the_object_itself_is_not_the_class_s(tmp_path: Path) -> None:
    script = "import lib; table = lib.Table(); table.limit = 3; assert table.fits({})"
    found = located(tmp_path, LIMITS, script.format(4), script.format(3))
    assert "line" in kinds(found, "Table.fits")
    assert "Table" not in {ranked.suspect.function.qualname for ranked in found.suspects}


def test_data_of_the_object_s_own_class_is_reported(tmp_path: Path) -> None:
    script = "import lib; assert lib.Small().fits({})"
    found = located(tmp_path, LIMITS, script.format(4), script.format(1))
    assert kinds(found, "Small")["class-data"] == (
        "sets limit at line 11, class-level data that Table.fits reads at line 6, where the runs part"
    )
    assert "Table" not in {ranked.suspect.function.qualname for ranked in found.suspects}


@pytest.fixture
def index(tmp_path: Path) -> SourceIndex:
    (tmp_path / "ring.py").write_text(
        "import a\n\nclass A(a.B):\n    def f(self): ...\n\nclass B(A):\n    x, y = 1, 2\n    z: int = 3\n    w: int\n"
        "    def f(self): ...\n    class Inner:\n        def g(self): ...\n",
        "utf-8",
    )

    class Folder:
        def relative(self, filename):
            return Path(filename).name

        def files(self):
            yield str(tmp_path / "ring.py")

    return SourceIndex(Folder())


def test_classes_with_their_bases_methods_and_data(index: SourceIndex) -> None:
    first, second, inner = index.classes("ring.py")
    assert (first.name, first.bases, first.methods) == ("A", ("B",), {"f"})
    assert (second.bases, second.methods, dict(second.data)) == (("A",), {"f"}, {"x": 7, "y": 7, "z": 8})
    assert (inner.function.qualname, inner.name, inner.methods) == ("B.Inner", "Inner", {"g"})


def test_a_ring_of_classes_ends(index: SourceIndex) -> None:
    classes = Hierarchy.of(index, ["ring.py"])
    ring = classes.around(Function("ring.py", "A.f"))
    assert ring is not None
    assert [each.name for each in classes.bases(ring)] == ["B"]
    assert [each.name for each in classes.heirs(ring)] == ["B"]
    assert classes.around(Function("ring.py", "free")) is None


def test_a_kind_that_flags_many_has_no_relatives(index: SourceIndex) -> None:
    a = Function("ring.py", "A.f")
    many = {Function("ring.py", f"f{number}"): Finding(1.0, "differs") for number in range(12)}
    views: list[FunctionView] = []
    assert relatives({"line": {a: Finding(1.0, "differs")}}, views, [a], index)["override"].keys() == {
        Function("ring.py", "B.f")
    }
    assert not relatives({"line": {a: Finding(1.0, "differs"), **many}}, views, [a], index)["override"]

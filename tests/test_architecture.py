"""The shape of the house: imports point down only, the probe stands alone, heavy packages stay behind functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# From the ground up; a module may import from its own floor and from those below.
FLOORS = ("tracer", "ranking", "swe_pipeline", "xlocal")
PROGRAMS = ("experiments", "benchmarks", "tests")
# Seconds to import, or not installed at all without an extra.
HEAVY = {"torch", "transformers", "swebench", "ray", "docker", "anthropic", "openai", "pydantic_ai"}

# Standard in one of the supported versions though not in this one, or asked for where it may be.
ADDED_FOR_TARGETS = {"pytest", "sitecustomize"}


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import of the tree, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def floor_of(dotted: str) -> str | None:
    """The floor that a dotted import name belongs to; None outside of xlocal."""
    first, *rest = dotted.split(".")
    if first != "xlocal":
        return None
    return rest[0] if rest and rest[0] in FLOORS else "xlocal"


def looks_up(source: str, floor: str) -> list[str]:
    """The imports of a module of `floor` that reach a higher floor."""
    allowed = FLOORS[: FLOORS.index(floor) + 1]
    # `from xlocal.tracer import x` also yields the package itself, which is no floor of its own.
    found = ((line, name, floor_of(name)) for line, name in imports(ast.parse(source)))
    return [f"{line}: {name}" for line, name, target in found if target is not None and target not in allowed]


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_point_down_only(floor):
    wrong = {str(file.relative_to(ROOT)): looks_up(file.read_text(), floor) for file in sources(floor)}
    assert {file: lines for file, lines in wrong.items() if lines} == {}


def test_the_direction_check_sees_an_upward_import():
    assert looks_up("def f():\n    from xlocal.ranking.diff import diff\n", "tracer") != []
    assert looks_up("import xlocal.cli\n", "ranking") != []
    assert looks_up("from xlocal import session\n", "ranking") != []
    assert looks_up("from xlocal.tracer.calltree import CallTree\nimport numpy\n", "ranking") == []


def test_nobody_imports_a_floor_by_its_bare_name_or_relatively():
    wrong = []
    for file in sources(*FLOORS, *PROGRAMS):
        for line, name in imports(ast.parse(file.read_text())):
            if name.startswith(".") or name.split(".")[0] in FLOORS[:-1]:
                wrong.append(f"{file.relative_to(ROOT)}:{line}: {name}")
    assert wrong == []


def test_the_package_knows_nothing_of_the_programs_beside_it():
    beside = {file.stem for file in sources("experiments", "benchmarks")} | set(PROGRAMS)
    for file in sources(*FLOORS):
        used = {name.split(".")[0] for _, name in imports(ast.parse(file.read_text()))}
        assert used.isdisjoint(beside), file


def test_heavy_packages_are_imported_inside_functions_only():
    for file in sources(*FLOORS):
        top_level = ast.Module([node for node in ast.parse(file.read_text()).body if is_plain(node)], [])
        used = {name.split(".")[0] for _, name in imports(top_level)}
        assert used.isdisjoint(HEAVY), file


def is_plain(node: ast.stmt) -> bool:
    """Neither a definition nor an `if TYPE_CHECKING` block, whose imports do not run on import."""
    if isinstance(node, ast.If):
        return not ast.unparse(node.test).endswith("TYPE_CHECKING")
    return not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


@pytest.mark.parametrize("name", ["probe.py", "focus.py", "resolve.py"])
def test_what_the_target_runs_is_standard_library_in_the_oldest_syntax(name):
    tree = ast.parse((ROOT / "tracer" / name).read_text(), feature_version=(3, 6))
    assert {module.split(".")[0] for _, module in imports(tree)} <= set(sys.stdlib_module_names) | ADDED_FOR_TARGETS


def test_importing_prints_nothing_and_loads_nothing_heavy():
    code = "import sys, xlocal; print(sorted({'numba', 'torch', 'git', 'rich'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")

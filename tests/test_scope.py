"""Which code is observed, and the paths it is reported under."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from xlocal.tracer.command import parse_command
from xlocal.tracer.errors import UsageError, Warned
from xlocal.tracer.scope import Scope, find_scope, scope_root


def write(folder: Path, **files: str) -> Path:
    """Python files by name, `__` for `/` and `init` for `__init__`; returns the folder."""
    for name, text in files.items():
        *above, stem = name.split("__")
        path = folder.joinpath(*above, "__init__.py" if stem == "init" else f"{stem}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def package(folder: Path, name: str) -> Path:
    """A package with one module and one subpackage."""
    for file in ("__init__.py", "core.py", "sub/__init__.py", "sub/deep.py"):
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def f():\n    return 1\n")
    return folder / name


@pytest.fixture(autouse=True)
def _start_in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def environment(tmp_path: Path) -> tuple[Path, Path]:
    """A virtual environment: its interpreter and its site-packages."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return home / "bin" / "python", home / "lib" / version / "site-packages"


def guess(
    script: str | Path, *given: str, python: Path | str = sys.executable, cwd: Path | None = None, **env: str
) -> tuple[Scope, tuple[Warned, ...]]:
    command = parse_command(str(script), cwd=Path.cwd())
    return find_scope([command], given=given, python=python, cwd=cwd, env=env)


def names(scope: Scope) -> list[str]:
    return [root.name for root in scope.roots]


def slugs(warnings: tuple[Warned, ...]) -> list[str]:
    return [warning.slug for warning in warnings]


def git(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


# The path under the root.


def test_an_installed_package_is_reported_from_site_packages(tmp_path, environment):
    _, site = environment
    git(tmp_path)  # the environment lies in a work tree
    pkg = package(site, "shop")
    scope = Scope((scope_root(pkg),))
    assert scope.relative(str(pkg / "sub" / "deep.py")) == "shop/sub/deep.py"
    assert scope.repository is None


def test_a_work_tree_is_reported_from_its_top(tmp_path):
    repo = git(tmp_path / "repo")
    pkg = package(repo / "src", "shop")
    scope = Scope((scope_root(pkg),))
    assert scope.relative(str(pkg / "core.py")) == "src/shop/core.py"
    assert scope.repository == os.path.realpath(repo)


def test_a_subpackage_without_git_is_reported_from_above_its_top_package(tmp_path):
    pkg = package(tmp_path / "lib", "shop")
    scope = Scope((scope_root(pkg / "sub"),))
    assert scope.relative(str(pkg / "sub" / "deep.py")) == "shop/sub/deep.py"
    assert scope.relative(str(pkg / "core.py")) is None
    assert scope.repository is None


def test_a_plain_folder_is_reported_from_itself(tmp_path):
    write(tmp_path / "tools", run="")
    assert Scope((scope_root(tmp_path / "tools"),)).relative(str(tmp_path / "tools" / "run.py")) == "run.py"


def test_a_single_file_is_its_own_scope(tmp_path):
    write(tmp_path, six="", seven="")
    scope = Scope((scope_root(tmp_path / "six.py"),))
    assert scope.relative(str(tmp_path / "six.py")) == "six.py"
    assert scope.relative(str(tmp_path / "seven.py")) is None
    assert scope.relative(str(tmp_path / "six.pyx")) is None
    assert scope.prefixes() == [str(tmp_path / "six.py")]


def test_a_sibling_that_shares_the_prefix_is_outside(tmp_path):
    package(tmp_path, "shop")
    package(tmp_path, "shopping")
    scope = Scope((scope_root(tmp_path / "shop"),))
    assert scope.relative(str(tmp_path / "shopping" / "core.py")) is None
    assert scope.prefixes() == [str(tmp_path / "shop") + os.sep]


@pytest.mark.parametrize("filename", ["<string>", "<frozen importlib>", "core.py", "", "/"])
def test_what_is_no_absolute_file_is_outside(tmp_path, filename):
    assert Scope((scope_root(package(tmp_path, "shop")),)).relative(filename) is None


def test_links_are_seen_through_both_ways(tmp_path):
    real = package(tmp_path / "store", "shop")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "store")
    for given in (real, link / "shop"):
        scope = Scope((scope_root(given),))
        assert scope.relative(str(real / "core.py")) == "shop/core.py"
        assert scope.relative(str(link / "shop" / "core.py")) == "shop/core.py"
    assert scope.prefixes() == [str(link / "shop") + os.sep, str(real) + os.sep]


def test_a_package_linked_into_site_packages_keeps_its_name(tmp_path, environment):
    _, site = environment
    package(tmp_path / "store" / "a1b2", "shop")
    (site / "shop").symlink_to(tmp_path / "store" / "a1b2" / "shop")
    scope = Scope((scope_root(site / "shop"),))
    assert scope.relative(str(site / "shop" / "core.py")) == "shop/core.py"
    assert scope.relative(str(tmp_path / "store" / "a1b2" / "shop" / "core.py")) == "shop/core.py"


def test_dots_in_a_file_name_are_resolved(tmp_path):
    pkg = package(tmp_path, "shop")
    scope = Scope((scope_root(pkg),))
    assert scope.relative(f"{pkg}/sub/../core.py") == "shop/core.py"
    assert scope.relative(f"{pkg}/../other.py") is None


def test_a_nested_environment_is_outside(tmp_path, environment):
    _, site = environment
    package(site, "other")
    package(tmp_path, "shop")
    write(tmp_path, top="")
    scope = Scope((scope_root(tmp_path),))
    assert scope.relative(str(tmp_path / "shop" / "core.py")) == "shop/core.py"
    assert scope.relative(str(site / "other" / "core.py")) is None
    assert scope.relative(str(tmp_path / "top.py")) == "top.py"


def test_files_leave_out_what_is_not_the_project(tmp_path, environment):
    _, site = environment
    package(site, "other")
    write(tmp_path, shop__init="", shop__core="", shop__build__init="", shop__build__x="", build__lib__copy="")
    write(tmp_path, node_modules__gyp="")
    for hidden in (".cache", "shop/__pycache__"):
        (tmp_path / hidden).mkdir()
        (tmp_path / hidden / "no.py").write_text("")
    (tmp_path / "shop" / "data.txt").write_text("")
    scope = Scope((scope_root(tmp_path), scope_root(tmp_path / "shop")))
    files = [os.path.relpath(path, os.path.realpath(tmp_path)) for path in scope.files()]
    assert files == ["shop/__init__.py", "shop/core.py", "shop/build/__init__.py", "shop/build/x.py"]


def test_a_scope_survives_json(tmp_path):
    scope = Scope((scope_root(package(tmp_path, "shop"), name="shop"),))
    assert Scope.from_json(scope.to_json()) == scope


# Given by the user.


def test_given_folders_files_and_names(tmp_path, environment):
    python, site = environment
    write(tmp_path, bug="import shop", loose="")
    package(site, "shop")
    package(tmp_path / "mine", "own")
    (site / "single.py").write_text("")
    scope, warnings = guess("bug.py", "mine/own", "loose.py", "shop.sub", "single", python=python)
    assert [scope.relative(str(path)) for path in (site / "shop" / "sub" / "deep.py", site / "single.py")] == [
        "shop/sub/deep.py",
        "single.py",
    ]
    assert scope.relative(str(tmp_path / "loose.py")) == "loose.py"
    assert scope.relative(str(tmp_path / "mine" / "own" / "core.py")) == "own/core.py"
    assert scope.relative(str(site / "shop" / "core.py")) is None
    assert names(scope) == ["mine/own", "loose.py", "shop.sub", "single"]
    assert warnings == ()


def test_a_given_name_is_found_as_the_program_finds_it(tmp_path):
    write(tmp_path / "scripts", bug="import near, far", near="")
    write(tmp_path / "extra", far="")
    scope, _ = guess("scripts/bug.py", "near", "far", PYTHONPATH=str(tmp_path / "extra"))
    assert [root.directory for root in scope.roots] == [
        str(tmp_path / "scripts" / "near.py"),
        str(tmp_path / "extra" / "far.py"),
    ]


def test_a_given_name_is_not_imported(tmp_path):
    write(tmp_path, bug="")
    pkg = package(tmp_path, "loud")
    for file in (pkg / "__init__.py", pkg / "sub" / "__init__.py"):
        file.write_text("raise SystemExit('imported')")
    scope, _ = guess("bug.py", "loud.sub.deep")
    assert scope.relative(str(pkg / "sub" / "deep.py")) == "loud/sub/deep.py"


def test_a_namespace_package_has_all_its_places(tmp_path):
    write(tmp_path, bug="", one__space__a="", two__space__b="")
    places = os.pathsep.join(str(tmp_path / name) for name in ("one", "two"))
    scope, _ = guess("bug.py", "space", PYTHONPATH=places)
    assert [root.directory for root in scope.roots] == [str(tmp_path / "one/space"), str(tmp_path / "two/space")]


def test_the_installed_package_wins_over_a_checkout_folder_of_its_name(tmp_path, environment):
    python, site = environment
    package(site, "shop")
    package(tmp_path / "shop" / "src", "shop")
    write(tmp_path / "scripts", bug="import shop")
    assert guess("scripts/bug.py", "shop", python=python)[0].roots[0].directory == str(site / "shop")
    assert guess("scripts/bug.py", "./shop", python=python)[0].roots[0].directory == str(tmp_path / "shop")


def test_editable_installs_are_followed(tmp_path, environment):
    python, site = environment
    repo = git(tmp_path / "repo")
    package(repo / "code", "shop")
    package(repo, "parts")
    (site / "__editable___shop_finder.py").write_text(
        "import sys\nfrom importlib.machinery import PathFinder\n"
        f"MAPPING = {{'shop': {str(repo / 'code' / 'shop')!r}, 'shop.parts': {str(repo / 'parts')!r}}}\n"
        "class _EditableFinder:\n    @classmethod\n    def find_spec(cls, name, path=None, target=None):\n"
        "        if name in MAPPING:\n"
        "            from importlib.util import spec_from_file_location as make\n"
        "            return make(name, MAPPING[name] + '/__init__.py')\n"
        "sys.meta_path.append(_EditableFinder)\n"
    )
    (site / "shop.pth").write_text("import __editable___shop_finder\n")
    write(tmp_path, bug="import shop.parts")
    for given in ((), ("shop",)):
        scope, _ = guess("bug.py", *given, python=python)
        assert scope.relative(str(repo / "code" / "shop" / "core.py")) == "code/shop/core.py"
        assert scope.relative(str(repo / "parts" / "core.py")) == "parts/core.py"
    assert guess("bug.py", "shop.parts", python=python)[0].roots[0].directory == str(repo / "parts")


@pytest.mark.parametrize("given", ["nowhere", "no.where", "./nowhere", "json.nowhere"])
def test_a_scope_that_is_nothing_is_refused(tmp_path, given):
    write(tmp_path, bug="")
    with pytest.raises(UsageError, match=f"--scope {given}: neither a file or folder here nor a package"):
        guess("bug.py", given)


def test_compiled_code_cannot_be_observed(tmp_path):
    write(tmp_path, bug="")
    with pytest.raises(UsageError, match="no Python source"):
        guess("bug.py", "itertools")


def test_the_standard_library_can_be_named(tmp_path):
    write(tmp_path, bug="")
    scope, _ = guess("bug.py", "json")
    assert scope.relative(json.decoder.__file__) == "json/decoder.py"


# Guessed from imports.


def test_the_package_of_the_work_tree_wins_over_installed_ones(tmp_path, environment):
    python, site = environment
    repo = git(tmp_path / "repo")
    package(repo / "src", "shop")
    package(site, "other")
    (site / "shop.pth").write_text(str(repo / "src") + "\n")
    write(repo / "examples", bug="import json, other\ndef f():\n    from shop.sub import deep\n")
    scope, warnings = guess("repo/examples/bug.py", python=python)
    assert (names(scope), warnings) == (["shop"], ())
    assert scope.relative(str(repo / "src" / "shop" / "core.py")) == "src/shop/core.py"


def test_a_project_that_is_only_reachable_later_is_found(tmp_path):
    repo = git(tmp_path / "repo")
    package(repo / "src", "shop")
    write(repo / "examples", bug="import sys\nsys.path.insert(0, 'src')\nimport shop\n")
    assert names(guess("repo/examples/bug.py")[0]) == ["shop"]


def test_a_development_install_elsewhere_wins_over_installed_ones(tmp_path, environment):
    python, site = environment
    package(tmp_path / "elsewhere", "shop")
    package(site, "other")
    (site / "shop.pth").write_text(str(tmp_path / "elsewhere") + "\n")
    write(tmp_path / "scripts", bug="import other, shop")
    (tmp_path / "run").mkdir()
    assert names(guess("scripts/bug.py", python=python, cwd=tmp_path / "run")[0]) == ["shop"]


def test_an_environment_inside_the_work_tree_counts_as_installed(tmp_path, environment):
    python, site = environment
    git(tmp_path)
    package(site, "other")
    write(tmp_path / "examples", bug="import other")
    scope, _ = guess("examples/bug.py", python=python)
    assert scope.relative(str(site / "other" / "core.py")) == "other/core.py"


def test_several_installed_packages_are_all_taken_and_said(tmp_path, environment):
    python, site = environment
    package(site, "shop")
    package(site, "other")
    write(tmp_path / "scripts", bug="import shop, other.sub, pytest")
    package(site, "pytest")
    scope, warnings = guess("scripts/bug.py", python=python)
    assert (names(scope), slugs(warnings)) == (["shop", "other"], ["scope-guessed"])


def test_what_a_distribution_installed_together_is_taken_together(tmp_path, environment):
    python, site = environment
    for name in ("attrs", "attr", "tests"):
        package(site, name)
    (site / "attrs-23.1.dist-info").mkdir()
    (site / "attrs-23.1.dist-info" / "RECORD").write_text(
        "attrs/__init__.py,sha256=x,1\nattr/core.py,,\ntests/core.py,,\n../../../bin/x.py,,\n"
    )
    write(tmp_path / "scripts", bug="import attrs")
    scope, warnings = guess("scripts/bug.py", python=python)
    assert (names(scope), warnings) == (["attrs", "attr"], ())


def test_imports_of_helpers_are_followed(tmp_path, environment):
    python, site = environment
    package(site, "shop")
    write(tmp_path / "scripts", bug="import helper", helper="import deeper", deeper="import shop, helper")
    scope, warnings = guess("scripts/bug.py", python=python)
    assert (names(scope), slugs(warnings)) == (["shop"], ["scope-guessed"])
    assert "helper, deeper" in warnings[0].text


def test_helpers_are_the_project_when_nothing_else_is(tmp_path):
    write(tmp_path / "scripts", bug="import helper", helper="import json")
    scope, warnings = guess("scripts/bug.py")
    assert (names(scope), warnings) == (["helper"], ())


def test_imports_by_name_are_seen(tmp_path):
    package(tmp_path, "shop")
    write(tmp_path, bug="import importlib\nimportlib.import_module('shop.core')\n__import__(undefined)\n")
    assert names(guess("bug.py")[0]) == ["shop"]


def test_the_script_alone_is_the_last_resort(tmp_path):
    write(tmp_path, bug="import json, sys\ndef f(): pass\n")
    scope, warnings = guess("bug.py")
    assert scope.relative(str(tmp_path / "bug.py")) == "bug.py"
    assert slugs(warnings) == ["scope-is-script"]


def test_nothing_found_names_what_was_imported(tmp_path):
    write(tmp_path, bug="import json, not_there, nor_there.sub")
    with pytest.raises(UsageError, match=r"imported is not_there, nor_there, .*--scope") as caught:
        guess("bug.py")
    assert "\n" not in str(caught.value)


def test_a_module_is_its_package(tmp_path):
    package(tmp_path, "shop")
    (tmp_path / "run").mkdir()
    scope, _ = guess("-m shop.core --flag", cwd=tmp_path)
    assert names(scope) == ["shop"]
    with pytest.raises(UsageError, match="imported is shop"):
        guess("-m shop.core", cwd=tmp_path / "run")


def test_a_test_tells_by_its_imports_and_its_conftest(tmp_path):
    repo = git(tmp_path / "repo")
    for name in ("shop", "plugin"):
        package(repo / "src", name)
    write(repo / "tests", test_a="import pytest, tests.tool\nfrom shop import core\n", conftest="import plugin")
    write(repo / "tests", **{"unit__test_b": "import shop", "tool": "", "init": ""})
    assert names(guess("pytest repo/tests/test_a.py::test_x")[0]) == ["shop", "plugin"]
    assert names(guess("pytest -k 'x or y' repo/tests/unit")[0]) == ["shop", "plugin"]


def test_a_test_of_nothing_else_is_its_own_scope(tmp_path):
    write(tmp_path, test_a="import pytest\ndef test_x(): pass\n")
    scope, warnings = guess("pytest test_a.py")
    assert scope.relative(str(tmp_path / "test_a.py")) == "test_a.py"
    assert slugs(warnings) == ["scope-is-script"]


def test_test_tools_are_taken_when_a_script_studies_them(tmp_path):
    write(tmp_path, bug="import pytest")
    assert "_pytest" in names(guess("bug.py")[0])


def test_scripts_are_read_with_the_grammar_of_their_interpreter(tmp_path, interpreters):
    write(tmp_path, new="type X = int\nimport shop\n")
    package(tmp_path, "shop")
    newer = [interpreter.path for interpreter in interpreters if interpreter.version >= (3, 12)]
    if not newer:
        pytest.skip("no interpreter from 3.12 here")
    assert names(guess("new.py", python=newer[0])[0]) == ["shop"]


def test_every_interpreter_is_asked_alike(tmp_path, interpreters):
    package(tmp_path, "shop")
    write(tmp_path, bug="import os.path, json, shop")
    for python in (interpreter.path for interpreter in interpreters):
        assert names(guess("bug.py", python=python)[0]) == ["shop"]
        assert names(guess("bug.py", "shop.core", python=python)[0]) == ["shop.core"]


def test_an_interpreter_that_cannot_answer_is_one_line(tmp_path):
    write(tmp_path, bug="")
    with pytest.raises(UsageError, match="Cannot ask"):
        guess("bug.py", python="/bin/false")
    with pytest.raises(UsageError, match="no such interpreter"):
        guess("bug.py", python=tmp_path / "nothing")


def test_the_scope_of_real_cases_is_guessed(shared_data, tmp_path, environment):
    """The scripts of released packages, with an installed package of each imported name."""
    python, site = environment
    checked = 0
    for file in sorted(shared_data.glob("cases/*/case.json")):
        case = json.loads(file.read_text())
        if case["kind"] != "pypi":
            continue
        for name in case["scope"]:
            package(site, name)
        commands = [parse_command(str(file.parent / name), cwd=tmp_path) for name in ("buggy.py", *case["references"])]
        scope, _ = find_scope(commands, python=python, cwd=tmp_path)
        assert [root.name for root in scope.roots] == case["scope"], case["id"]
        checked += 1
    assert checked

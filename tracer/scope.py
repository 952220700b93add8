"""Which code is observed: folders and files, and how a code location becomes a path under the project's root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlocal.tracer import layout
from xlocal.tracer.command import Command, first_on_path, read_files
from xlocal.tracer.errors import UsageError, Warned
from xlocal.tracer.launch import find_python

_TEST_NAMES = frozenset({"conftest", "test", "testing", "tests"})
_TEST_TOOLS = frozenset({"_pytest", "hypothesis", "mock", "nose", "pluggy", "pytest"})
_SEARCH_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ScopeRoot:
    """One observed folder or file.

    `directory` is its absolute real path, `base` the folder that reported paths are relative to, `name` what the user
    called it, `spelled` its absolute path before symbolic links were resolved.
    """

    directory: str
    base: str
    name: str
    spelled: str


@dataclass(frozen=True, slots=True)
class Scope:
    """The observed code. The first root that holds a file gives the file its path."""

    roots: tuple[ScopeRoot, ...]

    def relative(self, filename: str) -> str | None:
        """The path of a code object's file under its root's base, with forward slashes; None when out of scope.

        A file of an environment nested in a root (a part named site-packages below it) is out of scope.
        """
        if not os.path.isabs(filename):
            return None
        for spelling in (os.path.normpath(filename), layout.real(filename)):
            for root in self.roots:
                rest = layout.inside(spelling, root.spelled)
                if rest is None:
                    rest = layout.inside(spelling, root.directory)
                if rest is not None:
                    nested = not set(layout.SITE).isdisjoint(rest.split(os.sep))
                    return None if nested else _reported(root, rest)
        return None

    def prefixes(self) -> list[str]:
        """What the probe compares `co_filename` with: folders end with the separator, files do not.

        Both spellings of a root are given.
        """
        return list(
            dict.fromkeys(
                os.path.join(spelling, "") if os.path.isdir(spelling) else spelling
                for root in self.roots
                for spelling in (root.spelled, root.directory)
            )
        )

    def files(self) -> Iterator[str]:
        """Absolute real paths of all `.py` files, each once, sorted within a folder.

        Left out: caches, hidden folders, nested environments, node_modules, and the build output of a project.
        """
        seen: set[str] = set()
        for root in self.roots:
            for path in layout.python_files(root.directory):
                if path not in seen:
                    seen.add(path)
                    yield path

    @property
    def repository(self) -> str | None:
        """The git work tree that holds the first root; None for an installed package."""
        return layout.repository(self.roots[0].directory) if self.roots else None

    def to_json(self) -> list[dict[str, str]]:
        """Plain values for `from_json`."""
        return [
            {"directory": root.directory, "base": root.base, "name": root.name, "spelled": root.spelled}
            for root in self.roots
        ]

    @classmethod
    def from_json(cls, roots: Iterable[Mapping[str, str]]) -> Scope:
        """Rebuild from `to_json`."""
        return cls(tuple(ScopeRoot(**root) for root in roots))


def scope_root(path: str | Path, *, name: str | None = None, standard: Sequence[str] = ()) -> ScopeRoot:
    """The root for a folder or file; `standard` are the standard library's folders, reported from themselves.

    Paths are relative to the installation folder (site-packages) of an installed package, else to the git work tree,
    else to the folder that holds the top package, else to the folder itself.
    """
    spelled = os.path.abspath(path)
    directory = os.path.realpath(spelled)
    return ScopeRoot(directory, _base(directory, spelled, standard), name or str(path), spelled)


def _base(directory: str, spelled: str, standard: Sequence[str]) -> str:
    if (installation := layout.installation(directory)) is not None:
        return installation
    for folder in map(layout.real, standard):
        if layout.inside(directory, folder):
            return folder
    if (repository := layout.repository(directory)) is not None:
        return repository
    # Some installers link packages to a store of theirs.
    if (installation := layout.installation(spelled)) is not None:
        return installation
    return layout.package_holder(directory if os.path.isdir(directory) else os.path.dirname(directory))


def _reported(root: ScopeRoot, rest: str) -> str:
    top = root.directory if layout.inside(root.directory, root.base) is not None else root.spelled
    return os.path.relpath(os.path.join(top, rest) if rest else top, root.base).replace(os.sep, "/")


def find_scope(
    commands: Sequence[Command],
    *,
    given: Sequence[str] = (),
    python: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[Scope, tuple[Warned, ...]]:
    """The code to observe: what `given` names (folders, files, importable names), else the project the scripts import.

    Paths are looked up from the directory xlocal started in, then from `cwd`, where the scripts will run. `env` is
    added to the environment. Nothing is imported.

    Without `given`: packages in the work tree of `cwd` or of a script, else those developed elsewhere, else installed
    ones, else modules beside the script, else test tools, else the script itself.

    Raises:
        UsageError: a given name is nothing, or no scope can be found.
    """
    where = Path(cwd) if cwd is not None else Path.cwd()
    surroundings = _Surroundings.look(commands, given, python=python, cwd=where, env=env or {})
    if given:
        roots = [root for item in given for root in _given_roots(item, surroundings)]
        return Scope(_distinct(roots)), ()
    return _guess(commands, surroundings)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the target interpreter finds a name; see `resolve.locate`."""

    paths: tuple[str, ...]
    package: bool
    namespace: bool

    @property
    def has_source(self) -> bool:
        """Whether there is Python code to observe: a package's folder, or a module that is not compiled."""
        return bool(self.paths) and (self.package or self.paths[0].endswith(".py"))


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What the target interpreter said.

    `first` are the folders that stand first on the programs' sys.path, `trees` the work trees around them and around
    `cwd`, `standard` the folders of the standard library, `found` where the given and imported names lie.
    """

    python: str
    cwd: Path
    first: tuple[str, ...]
    trees: tuple[str, ...]
    standard: tuple[str, ...]
    found: Mapping[str, _Place | None]

    @classmethod
    def look(
        cls,
        commands: Sequence[Command],
        given: Sequence[str],
        *,
        python: str | Path,
        cwd: Path,
        env: Mapping[str, str],
    ) -> _Surroundings:
        files = [file for command in commands for file in read_files(command)]
        first = list(dict.fromkeys(folder for command in commands for folder in first_on_path(command, cwd)))
        modules = [command.target.split(".")[0] for command in commands if command.kind == "module"]
        trees = tuple(dict.fromkeys(layout.work_tree(folder) for folder in (str(cwd), *first)))
        request = {
            "first": first,
            "last": [os.path.join(tree, sub) for tree in trees for sub in ("", "src", "lib")],
            "names": [*modules, *(item for item in given if _is_dotted_name(item))],
            "files": files,
        }
        answer = _ask(request, python=python, cwd=cwd, env=env)
        found = {
            name: place and _Place(tuple(place["paths"]), place["package"], place["namespace"])
            for name, place in answer["found"].items()
        }
        return cls(str(python), cwd, tuple(first), trees, tuple(answer["standard"]), found)

    def is_standard(self, path: str) -> bool:
        """Whether a path belongs to the standard library, not to what was installed beside it."""
        return layout.installation(path) is None and any(
            layout.inside(layout.real(path), layout.real(folder)) is not None for folder in self.standard
        )


def _ask(request: Any, *, python: str | Path, cwd: Path, env: Mapping[str, str]) -> Any:
    program = Path(__file__).with_name("resolve.py")
    try:
        done = subprocess.run(
            [str(find_python(python)), str(program)],
            input=json.dumps(request),
            cwd=cwd,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=_SEARCH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"Cannot ask {python} where packages lie: {error}") from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise UsageError(f"Cannot ask {python} where packages lie: {reason}")
    return json.loads(lines[-1])


def _is_dotted_name(item: str) -> bool:
    return not item.endswith(".py") and all(part.isidentifier() for part in item.split("."))


def _given_roots(item: str, surroundings: _Surroundings) -> list[ScopeRoot]:
    """A name that can be imported wins over a folder of that name (a checkout beside the installed package)."""
    place = surroundings.found.get(item)
    folders = (Path.cwd() / item, surroundings.cwd / item, Path(item).expanduser())
    path = next((folder for folder in folders if folder.exists()), None)
    if place is not None and (path is None or not place.namespace):
        if not place.has_source:
            raise UsageError(f"--scope {item}: this is compiled code and has no Python source to observe")
        return _roots_of(item, place, surroundings)
    if path is None:
        raise UsageError(
            f"--scope {item}: neither a file or folder here nor a package that {surroundings.python} can import"
        )
    return [scope_root(path, name=item, standard=surroundings.standard)]


def _roots_of(name: str, place: _Place, surroundings: _Surroundings) -> list[ScopeRoot]:
    return [scope_root(path, name=name, standard=surroundings.standard) for path in place.paths]


def _distinct(roots: Iterable[ScopeRoot]) -> tuple[ScopeRoot, ...]:
    """Without repeats; a root inside an earlier one stays, for it adds a spelling."""
    return tuple({(root.directory, root.spelled): root for root in reversed(list(roots))}.values())[::-1]


# In order of preference.
_IN_TREE, _ELSEWHERE, _INSTALLED, _HELPER, _TOOL = range(5)


def _guess(commands: Sequence[Command], surroundings: _Surroundings) -> tuple[Scope, tuple[Warned, ...]]:
    ranks: dict[str, int] = {}
    unknown: list[str] = []
    for name, place in surroundings.found.items():
        if place is None:
            unknown.append(name)
        elif (rank := _rank(name, place, surroundings)) is not None:
            ranks[name] = rank
    best = min(ranks.values(), default=None)
    tests = any(command.kind == "pytest" for command in commands)
    if best is None or (best == _TOOL and tests):
        return _script_as_scope(commands, surroundings, unknown)
    names = [name for name, rank in ranks.items() if rank == best]
    roots = [root for name in names for root in _guessed_roots(name, surroundings)]
    helpers = [name for name, rank in ranks.items() if rank == _HELPER and name not in _TEST_NAMES]
    left_out = helpers if best < _HELPER else []
    return Scope(_distinct(roots)), _doubts(names if best in (_ELSEWHERE, _INSTALLED) else [], left_out)


def _doubts(names: Sequence[str], left_out: Sequence[str]) -> tuple[Warned, ...]:
    warnings = []
    if len(names) > 1:
        warnings.append(
            Warned(
                "scope-guessed",
                f"the scripts import several packages and all are observed: {', '.join(names)}; "
                f"name the one to search with --scope, as in --scope {names[0]}",
            )
        )
    if left_out:
        warnings.append(
            Warned(
                "scope-guessed",
                f"taken for helpers of the script and not observed: {', '.join(left_out)}; "
                f"add them with --scope, as in --scope {left_out[0]}",
            )
        )
    return tuple(warnings)


def _rank(name: str, place: _Place, surroundings: _Surroundings) -> int | None:
    """How likely a name is the project under study (smaller is likelier); None for what cannot be."""
    paths = place.paths
    if not place.has_source or any(surroundings.is_standard(path) for path in paths):
        return None
    if layout.installation(paths[0]) is not None:
        if name in sys.stdlib_module_names:  # a backport
            return None
        return _TOOL if name in _TEST_TOOLS else _INSTALLED
    beside = os.path.dirname(paths[0]) in surroundings.first and not place.package
    if beside or name in _TEST_NAMES:
        return _HELPER
    in_tree = any(layout.inside(layout.real(path), tree) is not None for path in paths for tree in surroundings.trees)
    return _IN_TREE if in_tree else _ELSEWHERE


def _guessed_roots(name: str, surroundings: _Surroundings) -> list[ScopeRoot]:
    """The package and, when installed, the others of its distribution: attr beside attrs, _pytest beside pytest."""
    place = surroundings.found[name]
    assert place is not None  # noqa: S101 - ranked names were found
    roots = _roots_of(name, place, surroundings)
    folder = layout.installation(roots[0].spelled)
    if folder is not None and not place.namespace:
        roots.extend(scope_root(path, name=path.stem) for path in _siblings(Path(folder), name) if path.stem != name)
    return roots


def _siblings(folder: Path, name: str) -> list[Path]:
    """Packages and modules that were installed together with a name; empty when no record tells."""
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        text = record.read_text(encoding="utf-8", errors="replace")
        files = [line.split(",", 1)[0] for line in text.splitlines()]
        if not any(file.startswith(f"{name}/") or file == f"{name}.py" for file in files):
            continue
        tops = {file.split("/")[0] for file in files if file.endswith(".py") and not file.startswith("..")}
        return [folder / top for top in sorted(tops - _TEST_NAMES) if (folder / top).exists()]
    return []


def _script_as_scope(
    commands: Sequence[Command], surroundings: _Surroundings, unknown: Sequence[str]
) -> tuple[Scope, tuple[Warned, ...]]:
    files = [command.file for command in commands if command.file is not None]
    if unknown or not files:
        imported = ", ".join(unknown or surroundings.found) or "nothing"
        raise UsageError(
            f"No code to observe: imported is {imported}, which {surroundings.python} does not find as a project's "
            "Python source; give the package or folder with --scope, or the right interpreter with --python"
        )
    roots = _distinct(scope_root(file) for file in files)
    text = (
        "nothing but the standard library is imported, so the script itself is observed; name other code with --scope"
    )
    return Scope(roots), (Warned("scope-is-script", text),)

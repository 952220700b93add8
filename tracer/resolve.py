"""What scripts import and where those packages lie, found without importing them.

Run by path in the target interpreter (Python 3.6+): a JSON request on stdin, the JSON answer as last line of stdout.
"""

import os
import sys

# This file's folder holds names of the standard library (trace), and the working directory may too.
sys.path[:] = [entry for entry in sys.path if entry not in ("", os.path.dirname(os.path.abspath(__file__)))]

import ast  # noqa: E402
import importlib.machinery  # noqa: E402
import json  # noqa: E402
import sysconfig  # noqa: E402


def main() -> None:
    """Answer `{"first", "last", "names", "files"}`: folders to search before and after sys.path, names, scripts."""
    request = json.loads(sys.stdin.read())
    sys.path[:0] = request["first"]
    found = {}  # type: dict[str, dict[str, object] | None]
    answer = {
        "standard": [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")],
        "found": found,
    }
    queue = list(request["files"])

    def look_up(name: str) -> None:
        if name not in found:
            place = found[name] = locate(name, request["last"])
            helper = helper_file(place, request["first"])
            if helper and helper not in queue:
                queue.append(helper)

    for name in request["names"]:
        look_up(name)
    for path in queue:  # grows
        for name in imported_names(path):
            look_up(name)
    print("\n" + json.dumps(answer))


def imported_names(path: str) -> "list[str]":
    """Top-level names that a file imports anywhere, in source order; none when it cannot be parsed."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(), path)
    except (OSError, SyntaxError, ValueError):
        return []
    names = {}  # type: dict[str, None]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update((alias.name.split(".")[0], None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names[node.module.split(".")[0]] = None
        elif isinstance(node, ast.Call) and called_name(node) in ("import_module", "__import__"):
            name = literal_text(node.args[0]) if node.args else ""
            if name and not name.startswith("."):
                names[name.split(".")[0]] = None
    names.pop("__future__", None)
    return list(names)


def called_name(node: ast.Call) -> str:
    """The last part of the name that is called, or an empty string."""
    return str(getattr(node.func, "attr", "") or getattr(node.func, "id", ""))


def literal_text(node: ast.expr) -> str:
    """The text of a string literal, or an empty string."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def helper_file(place: "dict[str, object] | None", first: "list[str]") -> str:
    """The file of a single module that lies beside a script, to follow its imports; or an empty string."""
    if place is None or place["package"]:
        return ""
    path = str(place["file"])
    return path if path.endswith(".py") and os.path.dirname(path) in first else ""


def locate(dotted: str, last: "list[str]") -> "dict[str, object] | None":
    """Where a dotted name lies: `{"file", "paths", "package", "namespace"}`; None when it cannot be imported.

    `paths` are folders of a package, or the file of a module; none for what is built in.
    """
    top, _, rest = dotted.partition(".")
    spec = find(top, None) or find_file(top, last)
    name = top
    for part in rest.split(".") if rest else ():
        if spec is None:
            return None
        name += "." + part
        spec = find(name, list(spec.submodule_search_locations or ()))
    if spec is None:
        return None
    origin = os.path.abspath(spec.origin) if spec.has_location and spec.origin else ""
    if spec.submodule_search_locations is None:
        return {"file": origin, "paths": [origin] if origin else [], "package": False, "namespace": False}
    folders = [os.path.abspath(path) for path in spec.submodule_search_locations if os.path.isdir(path)]
    return {
        "file": origin,
        "paths": folders + mapped_subpackages(dotted),
        "package": True,
        "namespace": not os.path.isfile(origin),
    }


def find_file(name: str, folders: "list[str]") -> "importlib.machinery.ModuleSpec | None":
    """A package with `__init__.py` or a module in folders that are not on sys.path (yet)."""
    spec = importlib.machinery.PathFinder.find_spec(name, folders)
    return spec if spec is not None and spec.origin and os.path.isfile(spec.origin) else None


def find(name: str, search: "list[str] | None") -> "importlib.machinery.ModuleSpec | None":
    """As importlib finds a module, but without importing its parents."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, search)
        except (AttributeError, ImportError, ValueError):  # a finder of the old protocol, or an odd name
            continue
        if spec is not None:
            return spec
    return None


def mapped_subpackages(name: str) -> "list[str]":
    """Folders of subpackages that an editable install of setuptools maps to somewhere else."""
    folders = []  # type: list[str]
    for finder in sys.meta_path:
        mapping = getattr(sys.modules.get(getattr(finder, "__module__", "")), "MAPPING", None)
        if isinstance(mapping, dict):
            folders.extend(os.path.abspath(mapping[key]) for key in sorted(mapping) if key.startswith(name + "."))
    return [folder for folder in folders if os.path.isdir(folder)]


if __name__ == "__main__":
    main()

"""Building the native recorder: once per interpreter, whole or not at all, and a reason when it cannot be."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from probed import Probe, native_recorder, on_each_probe, probes, run_probed
from xlocal.tracer import native
from xlocal.tracer.command import parse_command
from xlocal.tracer.native import Built, build, cache_folder, native_for
from xlocal.tracer.record import record
from xlocal.tracer.scope import Scope, scope_root

HERE = probes()[0]


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLOCAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    native_recorder(HERE.python)  # skips where nothing can be built


def compiler(folder: Path, script: str) -> str:
    """A compiler that is a shell script."""
    file = folder / "mycc"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def record_backend(built: Built, folder: Path, backend: str = "auto") -> tuple[str, list[str]]:
    """Which backend a recording of one small program used, and the slugs of its trace."""
    path = None if built.path is None else str(built.path)
    run = run_probed(HERE._replace(backend=backend), folder, "def f(): pass\nf()\n", native=path)
    assert (run.status, run.stderr, run.tree) == (0, "", "f")
    return run.main.backend, run.slugs


PURE = "monitoring" if sys.version_info >= (3, 12) else "setprofile"


def test_it_is_built_once_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(HERE.python)
    assert first.warning is None
    assert first.path is not None
    assert first.path.is_relative_to(tmp_path / "cache" / "native")
    monkeypatch.setattr(native, "_compile", None)  # a second compilation would fail
    assert build(HERE.python) == first
    assert record_backend(first, tmp_path) == ("native", [])
    assert sorted(path.name for path in first.path.parent.iterdir()) == [first.path.name, f"{first.path.name}.sha256"]
    assert [path.name for path in first.path.parent.parent.iterdir()] == [first.path.parent.name]


def test_builds_at_the_same_time_do_not_harm_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        built = set(pool.map(build, [HERE.python] * 4))
    assert len(built) == 1
    assert record_backend(built.pop(), tmp_path) == ("native", [])


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "no checksum"])
def test_a_damaged_build_is_made_anew(damage: str) -> None:
    path = build(HERE.python).path
    assert path is not None
    content = path.read_bytes()
    if damage == "no checksum":
        path.with_name(f"{path.name}.sha256").unlink()
    else:
        changed = {"cut": content[:-100], "flipped": content[:5000] + b"\xff\xfe" + content[5002:], "empty": b""}[
            damage
        ]
        path.write_bytes(changed)
    assert build(HERE.python) == Built(path, None)
    assert path.read_bytes() == content


def test_another_compiler_or_source_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(HERE.python).path
    monkeypatch.setenv("CC", "cc -g")
    second = build(HERE.python).path
    changed = tmp_path / "probe.c"
    changed.write_text(native.SOURCE.read_text("utf-8") + "\n/* changed */\n")
    monkeypatch.setattr(native, "SOURCE", changed)
    third = build(HERE.python).path
    assert None not in (first, second, third)
    assert len({first, second, third}) == 3


class TestFallback:
    def falls_back(self, slug: str, folder: Path, python: str = HERE.python) -> str:
        built = build(python)
        assert built.path is None
        assert built.warning is not None
        assert built.warning.slug == slug
        assert "\n" not in built.warning.text
        assert record_backend(built, folder) == (PURE, [])
        return built.warning.text

    def test_no_compiler(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "cc, gcc or clang is not on PATH" in self.falls_back("native-no-compiler", tmp_path)

    def test_cc_names_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CC", "no-such-compiler -O2")
        assert "CC is no-such-compiler" in self.falls_back("native-no-compiler", tmp_path)

    def test_no_headers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target = native._ask(HERE.python)
        bare = target._replace(include=str(tmp_path), platinclude=str(tmp_path))
        monkeypatch.setattr(native, "_ask", lambda python: bare)
        assert "no Python.h" in self.falls_back("native-no-headers", tmp_path)

    def test_a_failing_compiler(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CC", compiler(tmp_path, "echo 'probe.c:1: error: no' >&2; exit 1"))
        assert "probe.c:1: error: no" in self.falls_back("native-build-failed", tmp_path)
        assert list((tmp_path / "cache" / "native").iterdir()) == []

    def test_a_compiler_that_makes_nonsense(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make = 'for last; do :; done; echo nonsense > "$last"'
        monkeypatch.setenv("CC", compiler(tmp_path, make))
        assert "cannot load it" in self.falls_back("native-build-failed", tmp_path)
        assert list((tmp_path / "cache" / "native").iterdir()) == []

    def test_a_cache_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "cache").write_text("a file is in the way")
        assert "cannot be kept" in self.falls_back("native-cache", tmp_path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_read_only_cache(self, tmp_path: Path) -> None:
        (tmp_path / "cache").mkdir(mode=0o500)
        assert "cannot be kept" in self.falls_back("native-cache", tmp_path)

    def test_another_implementation_or_no_lock(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target = native._ask(HERE.python)
        monkeypatch.setattr(native, "_ask", lambda python: target._replace(implementation="pypy"))
        assert "is pypy" in self.falls_back("native-unsupported", tmp_path)
        monkeypatch.setattr(native, "_ask", lambda python: target._replace(free_threaded=True))
        assert "a free-threaded build" in self.falls_back("native-unsupported", tmp_path)

    def test_what_is_no_python(self, tmp_path: Path) -> None:
        built = build(shutil.which("true") or "/bin/true")
        assert built.warning is not None
        assert built.warning.slug == "native-unsupported"

    def test_a_build_of_another_interpreter_is_not_loaded(self, tmp_path: Path) -> None:
        other = tmp_path / "_xlocal_native.cpython-35m-other.so"
        other.write_bytes(b"not ours")
        assert record_backend(Built(other, None), tmp_path) == (PURE, [])

    def test_a_build_that_went_bad_meanwhile(self, tmp_path: Path) -> None:
        path = build(HERE.python).path
        assert path is not None
        path.write_bytes(b"not an object file")
        assert record_backend(Built(path, None), tmp_path) == (PURE, ["native-unloadable"])


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("XLOCAL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "xlocal"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "xlocal"


def test_only_the_backends_that_may_use_it_build_it() -> None:
    assert native_for("setprofile", "no interpreter") == native_for("monitoring", "none") == Built(None, None)
    assert native_for("auto", HERE.python).path is not None


def test_a_recording_uses_it_and_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "main.py"
    script.write_text("def f(): pass\nf()\n")
    command = parse_command("main.py", cwd=tmp_path)
    scope = Scope((scope_root(tmp_path),))
    for path, used, slugs in ((os.environ["PATH"], "native", []), (str(tmp_path), PURE, ["native-no-compiler"])):
        monkeypatch.setenv("PATH", path)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        recording = record(
            command,
            role="buggy",
            scope=scope,
            python=HERE.python,
            folder=tmp_path / "session",
            repeat=1,
            backend="native",
        )
        assert recording.executions[0].traces()[0].backend == used
        assert [w.slug for w in recording.warnings if w.slug.startswith("native")] == slugs


def test_the_source_is_shipped() -> None:
    """In the checkout, and in what is installed."""
    import importlib.resources

    assert importlib.resources.files("xlocal.tracer").joinpath("probe.c").is_file()


GREENLETS = """
    import greenlet
    def leaf(): pass
    def inner(main):
        leaf()
        main.switch()
        leaf()
    def worker(main):
        leaf()
        inner(main)
        leaf()
    def fails(main):
        main.switch()
        raise KeyError
    def outer(one):
        one.switch()
        leaf()
    def main():
        current = greenlet.getcurrent()
        one, two = greenlet.greenlet(worker), greenlet.greenlet(fails)
        one.switch(current)
        two.switch(current)
        outer(one)
        try: two.switch()
        except KeyError: leaf()
        for _ in range(5):
            short = greenlet.greenlet(leaf)
            short.switch()
    main()
"""


@on_each_probe
@pytest.mark.slow
def test_greenlets_keep_their_own_stacks(
    probe: Probe, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    packages = tmp_path_factory.getbasetemp() / f"greenlet-{probe.version[0]}.{probe.version[1]}"
    if not packages.exists():
        words = ["--quiet", "--python", probe.python, "--target", str(packages), "--only-binary", ":all:", "greenlet"]
        done = subprocess.run([sys.executable, "-m", "uv", "pip", "install", *words], check=False, capture_output=True)
        if done.returncode:
            pytest.skip(f"no greenlet for {probe}")
    run = run_probed(probe, tmp_path, GREENLETS, env={"PYTHONPATH": str(packages)})
    assert (run.status, run.stderr, run.slugs) == (0, "", [])
    expected = [
        *["main", "  worker", "    leaf", "    inner", "      leaf", "      leaf", "    leaf"],
        *["  fails !KeyError", "  outer", "    leaf", "  leaf", *["  leaf"] * 5],
    ]
    assert [line.replace(" !?", " !KeyError") for line in run.tree.splitlines()] == expected


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Two runs, one ten times as long: the buffers do not grow."""
    source = """
        import resource, sys
        def leaf(): pass
        def gen():
            yield leaf()
        def main(rounds):
            for _ in range(rounds):
                for _ in gen(): pass
        main(1000)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        main(200000)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    run = run_probed(HERE._replace(backend="native"), tmp_path, source)
    assert run.status == 0
    assert int(run.stdout) < 3000  # KiB
    assert (run.folder / "main.xtrace").stat().st_size < 0.5 * 400_000
    assert json.loads((run.folder / "config.json").read_text())["backend"] == "native"

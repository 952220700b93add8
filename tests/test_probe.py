"""What the probe records of real programs, on each backend, and that it leaves the programs as they are."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from probed import Probe, Run, on_each_probe, outline, probes, run_plain, run_probed, tree
from xlocal.tracer.decode import decode, imported_calls


@on_each_probe
class TestTree:
    def tree_of(self, probe: Probe, folder: Path, source: str) -> str:
        run = run_probed(probe, folder, source)
        assert (run.status, run.stderr, run.slugs) == (0, "", [])
        return run.tree

    def test_nested_calls(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            def g(): pass
            def f(): g()
            def main(): f()
            main()
        """
        assert self.tree_of(probe, tmp_path, source) == "main\n  f\n    g"

    def test_an_exception_is_kept_with_each_call_it_leaves(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            class Mine(Exception): pass
            def f(): raise Mine
            def g(): f()
            def main():
                try: g()
                except Mine: pass
            main()
        """
        expected = "class Mine\nmain\n  g !__main__.Mine\n    f !__main__.Mine"
        assert self.tree_of(probe, tmp_path, source) == expected

    def test_many_resumptions_are_one_call(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            def g():
                for _ in range(100): yield
            def main():
                for _ in g(): pass
            main()
        """
        assert self.tree_of(probe, tmp_path, source) == "main\n  g"

    def test_a_generator_belongs_to_the_call_that_ran_it_first(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            def leaf(): pass
            def gen():
                leaf()
                yield
                leaf()
                yield
            def first(it): next(it)
            def second(it): next(it)
            def main():
                it = gen()
                first(it)
                second(it)
                it.close()
            main()
        """
        seen = self.tree_of(probe, tmp_path, source).replace(" !GeneratorExit", "").replace(" !?", "")
        assert seen == "main\n  first\n    gen\n      leaf\n      leaf\n  second"

    def test_what_is_dropped_ends_when_it_would_without_us(self, probe: Probe, tmp_path: Path) -> None:
        if probe.backend == "setprofile" and probe.version < (3, 11):
            pytest.skip("a Python profile function keeps the locals of this Python alive")
        source = """
            def cleanup(): pass
            def later(): pass
            def gen():
                try: yield
                finally: cleanup()
            def main():
                dropped = gen()
                next(dropped)
                del dropped
                later()
            main()
        """
        seen = self.tree_of(probe, tmp_path, source).replace(" !GeneratorExit", "").replace(" !?", "")
        assert seen == "main\n  gen\n    cleanup\n  later"

    def test_an_exception_that_c_code_catches(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            class A:
                def __getattr__(self, name): raise AttributeError
            def main(): return hasattr(A(), "x"), getattr(A(), "y", None)
            main()
        """
        kind = "?" if probe.uses_setprofile else "AttributeError"
        expected = f"class A\nmain\n  __getattr__ !{kind}\n  __getattr__ !{kind}"
        assert self.tree_of(probe, tmp_path, source) == expected

    def test_a_thread_without_the_threading_module(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import _thread
            def leaf(): pass
            def work(lock):
                leaf()
                lock.release()
            def main():
                lock = _thread.allocate_lock()
                lock.acquire()
                _thread.start_new_thread(work, (lock,))
                lock.acquire()
            main()
        """
        unseen = probe.uses_setprofile
        assert self.tree_of(probe, tmp_path, source) == ("main" if unseen else "main\nwork\n  leaf")

    def test_code_outside_the_scope_is_left_out(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import json
            def default(value): return 1
            def main(): json.dumps([object()], default=default)
            main()
        """
        assert self.tree_of(probe, tmp_path, source) == "main\n  default"

    def test_code_without_a_file_is_left_out(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            def g(): pass
            def main(): exec("def f(): g()\\nf()")
            main()
        """
        assert self.tree_of(probe, tmp_path, source) == "main\n  g"

    def test_hostile_objects_are_not_touched(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            class Hostile:
                def stop(self, *values, **named): raise SystemExit("touched")
                __repr__ = __eq__ = __hash__ = __getattr__ = __str__ = __bool__ = __len__ = stop
            class Meta(type):
                def stop(self, *values): raise SystemExit("touched")
                __repr__ = __eq__ = __hash__ = __getattribute__ = stop
            def f(value):
                return value
            def main():
                f(Hostile())
                error = Meta("Odd", (Exception,), {})
                def g(value): raise value
                try: g(error())
                except Exception: pass
            main()
        """
        seen = self.tree_of(probe, tmp_path, source)
        assert seen == "class Hostile\nclass Meta\nmain\n  f\n  g !__main__.Odd"

    def test_a_thousand_threads(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import threading
            def leaf(): pass
            def work(): leaf()
            def main():
                for _ in range(50):
                    threads = [threading.Thread(target=work) for _ in range(20)]
                    for thread in threads: thread.start()
                    for thread in threads: thread.join()
            main()
        """
        lines = self.tree_of(probe, tmp_path, source).splitlines()
        lines = [line for line in lines if "<listcomp>" not in line]
        assert lines == ["main", *["  work", "    leaf"] * 1000]

    def test_threads_hang_under_the_call_that_started_them(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import threading
            def work(thread): pass
            def a():
                threads = []
                for number in range(3):
                    threads.append(threading.Thread(target=work, args=(number,)))
                    threads[-1].start()
                return threads
            def b(threads):
                for thread in threads: thread.join()
            def main(): b(a())
            main()
        """
        assert self.tree_of(probe, tmp_path, source) == "main\n  a\n    work\n    work\n    work\n  b"

    def test_long_runs_are_written_in_many_chunks(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import threading
            def leaf(): pass
            def f(n):
                for _ in range(n): leaf()
            def main():
                threads = [threading.Thread(target=f, args=(30000,)) for _ in range(3)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
                f(70000)
            main()
        """
        lines = self.tree_of(probe, tmp_path, source).splitlines()
        assert lines.count("    leaf") == 3 * 30000 + 70000
        assert [lines.index("  f", 1), len(lines)] == [1 + lines[1:].index("  f"), 160005 + ("  <listcomp>" in lines)]


def _record(probe: Probe, folder: Path, source: str, **options: object) -> Run:
    return run_probed(probe, folder, source, **options)  # type: ignore[arg-type]


@on_each_probe
class TestRecursion:
    SOURCE = """
        def leaf(): pass
        def deep(n): return deep(n + 1)
        def main():
            try: deep(0)
            except RecursionError: pass
            leaf()
        main()
    """

    def test_the_limit_is_survived_or_said(self, probe: Probe, tmp_path: Path) -> None:
        run = _record(probe, tmp_path, self.SOURCE)
        assert (run.status, run.stderr) == (0, "")
        lines = run.tree.splitlines()
        assert sum("deep" in line for line in lines) > 900
        if "hook-lost" in run.slugs:
            assert probe.backend == "setprofile"  # a C function needs no frame of its own
            assert "  leaf" not in lines
        else:
            assert run.slugs == []
            assert lines[-1] == "  leaf"
            assert all(line.endswith("!RecursionError") for line in lines[1:-1])

    def test_python_works_around_the_limit_as_without_us(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            def count(n):
                try: return count(n + 1)
                except RecursionError: return n
            print(count(0), count(0))
        """
        ours = _record(probe, tmp_path, source)
        plain = run_plain(probe, tmp_path, ["main.py"])
        assert ours.status == 0
        for mine, theirs in zip(ours.stdout.split(), plain.stdout.split(), strict=True):
            assert abs(int(mine) - int(theirs)) < 30

    def test_a_raised_limit(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import sys, threading
            sys.setrecursionlimit(100000)
            threading.stack_size(512 * 1024 * 1024)
            def deep(n):
                if n: deep(n - 1)
            thread = threading.Thread(target=deep, args=(20000,))
            thread.start()
            thread.join()
        """
        run = _record(probe, tmp_path, source)
        assert (run.status, run.stderr, run.slugs) == (0, "", [])
        raw = decode(run.traces)
        assert len(raw.code) == 20002
        assert (raw.parent[1:] == range(20001)).all()


@on_each_probe
class TestHooks:
    def test_a_program_that_profiles_itself_is_told_of(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import sys
            def leaf(): pass
            def main():
                leaf()
                sys.setprofile(lambda *event: None)
                leaf()
            main()
        """
        run = _record(probe, tmp_path, source)
        assert run.status == 0
        if probe.uses_setprofile:
            assert (run.slugs, run.tree) == (["hook-lost"], "main\n  leaf")
        else:
            assert (run.slugs, run.tree) == ([], "main\n  leaf\n  leaf")

    def test_the_hook_that_a_program_puts_back_goes_on(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import sys
            def leaf(): pass
            def main():
                before = sys.getprofile()
                sys.setprofile(None)
                leaf()
                sys.setprofile(before)
                leaf()
                leaf()
            main()
        """
        run = _record(probe, tmp_path, source)
        expected = 2 if probe.uses_setprofile else 3
        assert (run.status, run.stderr, run.tree.count("leaf")) == (0, "", expected)

    def test_the_program_still_traces_itself(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import sys
            def fail(): raise KeyError
            def f():
                try: fail()
                except KeyError: pass
            lines = []
            def trace(frame, event, arg):
                lines.append((frame.f_code.co_name, event))
                return trace
            sys.settrace(trace)
            f()
            assert sys.gettrace() is trace
            sys.settrace(None)
            print(lines)
        """
        run = _record(probe, tmp_path, source)
        plain = run_plain(probe, tmp_path, ["main.py"])
        assert run.stdout == plain.stdout

    def test_hooks_are_put_back(self, probe: Probe, tmp_path: Path) -> None:
        source = "def f(): pass\nf()"
        late = tmp_path / "late"
        late.mkdir()
        (late / "sitecustomize.py").write_text(
            textwrap.dedent("""
                import atexit, sys, threading
                def mine(*event): pass
                def check():
                    sys.stdout.write(str((sys.getprofile() is mine, threading._profile_hook is mine)))
                atexit.register(check)
                sys.setprofile(mine)
                threading.setprofile(mine)
            """)
        )
        run = _record(probe, tmp_path, source, env={"PYTHONPATH": str(late)})
        assert (run.status, run.stdout) == (0, "(True, True)")
        assert "f" in run.tree


@on_each_probe
class TestProcesses:
    def names(self, run: Run) -> list[str]:
        return run.tree.split("\n")

    def test_fork(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import os
            def before(): pass
            def child(): grand()
            def grand(): pass
            def parent(): pass
            def gen():
                yield before()
                yield before()
            def main():
                before()
                it = gen()
                next(it)
                pid = os.fork()
                if pid == 0:
                    child()
                    next(it)
                    os._exit(7)
                os.waitpid(pid, 0)
                parent()
            main()
        """
        run = _record(probe, tmp_path, source)
        assert (run.status, run.stderr) == (0, "")
        expected = """
            main
              before
              gen
                before
              parent
              child
                grand
              gen
                before
        """
        assert run.tree.replace(" !GeneratorExit", "") == tree(expected)
        assert [trace.complete for trace in run.traces] == [True, False]

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_multiprocessing(self, probe: Probe, tmp_path: Path, method: str) -> None:
        source = """
            import multiprocessing, sys
            def work(number): return leaf(number)
            def leaf(number): return number * 2
            def main(method):
                context = multiprocessing.get_context(method)
                first, second = context.Process(target=work, args=(1,)), context.Process(target=work, args=(2,))
                first.start()
                second.start()
                first.join()
                second.join()
            if __name__ == "__main__":
                main(sys.argv[1])
        """
        run = _record(probe, tmp_path, source, argv=[method])
        assert (run.status, run.stderr) == (0, "")
        again = ["  <module>"] if method == "spawn" else []  # the child runs the script's module anew
        assert self.names(run) == ["main", *[*again, "  work", "    leaf"] * 2]

    def test_pool(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import multiprocessing
            def work(number): return number * 2
            def main():
                pool = multiprocessing.Pool(2)
                print(pool.map(work, range(6), 1))
                pool.close()
                pool.join()
            if __name__ == "__main__":
                main()
        """
        run = _record(probe, tmp_path, source)
        assert (run.status, run.stderr, run.stdout) == (0, "", "[0, 2, 4, 6, 8, 10]\n")
        assert self.names(run) == ["main", *["  work"] * 6]

    def test_python_started_by_python(self, probe: Probe, tmp_path: Path) -> None:
        (tmp_path / "other.py").write_text("def other(): pass\nother()\n")
        source = """
            import subprocess, sys
            def f(): return subprocess.call([sys.executable, "other.py"])
            def g(): pass
            f()
            g()
        """
        run = _record(probe, tmp_path, source)
        assert (run.status, run.stderr) == (0, "")
        assert self.names(run) == ["f", "  <module>", "    other", "g"]

    def test_another_sitecustomize_still_runs(self, probe: Probe, tmp_path: Path) -> None:
        site = tmp_path / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text("import os\nos.environ['SEEN'] = os.environ.get('SEEN', '') + 'x'\n")
        source = """
            import os, subprocess, sys
            def f(): subprocess.call([sys.executable, "-c", "import os; print(os.environ['SEEN'])"])
            f()
        """
        run = _record(probe, tmp_path, source, env={"PYTHONPATH": str(site)})
        assert (run.status, run.stdout) == (0, "xx\n")


@on_each_probe
class TestSuddenEnds:
    SOURCE = """
        import os, sys, time
        def leaf(n): pass
        def main():
            for n in range(40000): leaf(n)
            END
        main()
    """

    @pytest.mark.parametrize(
        "end", ["os._exit(5)", "os.abort()", "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)"]
    )
    def test_nothing_is_lost(self, probe: Probe, tmp_path: Path, end: str) -> None:
        run = _record(probe, tmp_path, self.SOURCE.replace("END", end))
        assert run.status == {"5": 5, "": -6, "9": -9, "15": -15}[end.strip(")").rpartition("(")[2].rpartition(" ")[2]]
        assert run.slugs == ["trace-cut-short"]
        assert run.tree.count("leaf") == 40000

    def test_a_signal_from_outside(self, probe: Probe, tmp_path: Path) -> None:
        source = self.SOURCE.replace("END", "print('ready', flush=True); time.sleep(60)")
        run = _record(probe, tmp_path, source, signal_after=("ready", signal.SIGKILL))
        assert (run.status, run.slugs) == (-9, ["trace-cut-short"])
        assert run.tree.count("leaf") == 40000

    def test_an_interrupt_is_the_programs_own(self, probe: Probe, tmp_path: Path) -> None:
        source = self.SOURCE.replace("END", "print('ready', flush=True); time.sleep(60)")
        run = _record(probe, tmp_path, source, signal_after=("ready", signal.SIGINT))
        assert (run.status, run.slugs) == (130, [])
        assert "KeyboardInterrupt" in run.stderr
        assert run.tree.startswith("main !KeyboardInterrupt")


@on_each_probe
class TestLikePlainPython:
    def same(self, probe: Probe, folder: Path, source: str, *argv: str) -> Run:
        """Run with and without the probe; both must print the same and end the same."""
        ours = run_probed(probe, folder, source, argv=argv)
        plain = run_plain(probe, folder, [str(folder / "main.py"), *argv])
        assert (ours.status, ours.stdout, ours.stderr) == (plain.status, plain.stdout, plain.stderr)
        return ours

    def test_what_a_script_finds(self, probe: Probe, tmp_path: Path) -> None:
        self.same(
            probe,
            tmp_path,
            """
                import sys, __main__
                print(sys.argv, sys.path[0], __name__, __file__, __package__, __spec__, type(__loader__).__name__)
                print(__main__.__dict__ is globals(), sys.modules["__main__"] is __main__, __builtins__)
                print(sorted(name for name in globals() if name != "__cached__"), sys.flags, len(sys.path))
                print([name for name in ("json", "numpy", "random", "tempfile") if name in sys.modules and name == "json"])
            """,
            "--flag",
            "ünï",
        )

    @pytest.mark.parametrize(
        "end",
        [
            "raise ValueError('bad')",
            "sys.exit(3)",
            "sys.exit('text')",
            "sys.exit()",
            "sys.exit(None)",
            "sys.exit(300)",
            "sys.exit(-1)",
            "raise SystemExit([1, 2])",
            "1 / 0",
            "raise KeyError('x') from OSError(2)",
            "os._exit(4)",
            "sys.excepthook = lambda kind, error, tb: print('mine', kind, error, tb.tb_lineno)\n    raise ValueError(1)",
        ],
    )
    def test_ends(self, probe: Probe, tmp_path: Path, end: str) -> None:
        self.same(probe, tmp_path, f"import os, sys\ndef f():\n    {end}\nprint('started', flush=True)\nf()\n")

    @pytest.mark.parametrize("source", ["def f(:\n  pass\n", "x = '\n", "  indented\n", "# coding: nothing\nx = 1\n"])
    def test_a_syntax_error(self, probe: Probe, tmp_path: Path, source: str) -> None:
        (tmp_path / "main.py").write_text(source)
        ours = run_probed(probe, tmp_path, source)
        plain = run_plain(probe, tmp_path, [str(tmp_path / "main.py")])
        said, expected = (run.stderr.splitlines()[-1].partition(":")[0] for run in (ours, plain))
        assert (ours.status, said) == (plain.status, expected)
        assert str(tmp_path / "main.py") in ours.stderr

    def test_threads_and_exit_functions_finish(self, probe: Probe, tmp_path: Path) -> None:
        run = self.same(
            probe,
            tmp_path,
            """
                import atexit, threading, time
                def late(): print("late")
                def work():
                    time.sleep(0.1)
                    leaf()
                def leaf(): print("leaf")
                atexit.register(late)
                threading.Thread(target=work).start()
                print("main ended")
            """,
        )
        assert run.tree == "work\n  leaf"

    def test_a_failing_thread(self, probe: Probe, tmp_path: Path) -> None:
        run = _record(
            probe, tmp_path, "import threading\ndef f(): 1 / 0\nt = threading.Thread(target=f); t.start(); t.join()\n"
        )
        assert run.status == 0
        assert "ZeroDivisionError" in run.stderr
        assert run.tree == "f !ZeroDivisionError"

    def test_a_module(self, probe: Probe, tmp_path: Path) -> None:
        package = tmp_path / "package"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "tool.py").write_text(
            "import sys\ndef f(): return sys.argv[1:], __name__, __package__, sys.path[0]\nprint(f(), __spec__.name)\n"
        )
        ours = run_probed(probe, tmp_path, "", mode="module", target="package.tool", argv=["x"])
        plain = run_plain(probe, tmp_path, ["-m", "package.tool", "x"])
        assert (ours.status, ours.stdout, ours.stderr) == (plain.status, plain.stdout, plain.stderr)
        assert ours.tree.endswith("f")

    def test_a_missing_module(self, probe: Probe, tmp_path: Path) -> None:
        ours = run_probed(probe, tmp_path, "", mode="module", target="nowhere.at_all")
        assert ours.status == 1
        assert "nowhere" in ours.stderr

    def test_an_uncaught_exception_is_kept(self, probe: Probe, tmp_path: Path) -> None:
        source = "def f():\n    raise ValueError('bad', 2)\ndef g():\n    try:\n        f()\n    except ValueError as e:\n        raise KeyError('k') from e\ng()\n"
        run = _record(probe, tmp_path, source)
        script = str(tmp_path / "main.py")
        first, second = run.main.uncaught
        assert (first.type, first.message, run.main.status) == ("KeyError", "k", 1)
        assert first.frames == ((script, 1, "<module>", 8), (script, 3, "g", 7))
        assert (second.type, second.message, second.frames[-1]) == ("ValueError", "('bad', 2)", (script, 1, "f", 2))


@pytest.mark.parametrize("probe", [probe for probe in probes() if probe.python == sys.executable], ids=str)
def test_pytest_node(probe: Probe, tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text("def leaf(): pass\ndef test_one(): leaf()\ndef test_two(): raise ValueError\n")
    target = f"{test}::test_one"
    run = run_probed(
        probe,
        tmp_path,
        "",
        mode="pytest",
        target=target,
        argv=["-p", "no:cacheprovider", "-q"],
        env={"PYTEST_ADDOPTS": ""},
    )
    assert run.status == 0, run.stdout + run.stderr
    assert run.tree == "test_one\n  leaf"


@on_each_probe
class TestImports:
    def test_import_work_is_kept_apart(self, probe: Probe, tmp_path: Path) -> None:
        (tmp_path / "other.py").write_text("def helper(): pass\nhelper()\ndef f(): helper()\n")
        source = "import other\ndef main(): other.f()\nmain()\n"
        run = _record(probe, tmp_path, source)
        raw = decode(run.traces)
        assert run.tree == "main\n  f\n    helper"
        assert outline(raw, imports=True) == "import other\n  helper\nmain\n  f\n    helper"
        assert imported_calls(raw) == 2

    def test_files_outside_are_named(self, probe: Probe, tmp_path: Path) -> None:
        run = _record(probe, tmp_path, "import json\njson.dumps({})\n")
        assert any(path.endswith(os.path.join("json", "__init__.py")) for path in run.main.outside)
        assert not any("probe.py" in path or path.endswith("main.py") for path in run.main.outside)


@on_each_probe
class TestSeeds:
    def test_random_is_seeded_and_names_are_fixed(self, probe: Probe, tmp_path: Path) -> None:
        source = """
            import random, tempfile, os
            print(random.random(), random.Random(3).random(), os.path.basename(tempfile.mktemp()), hash("text"))
        """
        first, second = (_record(probe, tmp_path, source).stdout for _ in range(2))
        assert first == second
        assert _record(probe, tmp_path, source, seed=None).stdout != first

    def test_seeded_late_import(self, probe: Probe, tmp_path: Path) -> None:
        source = "def f():\n    import random\n    return random.random()\nprint(f())\n"
        assert _record(probe, tmp_path, source).stdout == _record(probe, tmp_path, source).stdout


@pytest.mark.parametrize("probe", [probe for probe in probes() if probe.python == sys.executable], ids=str)
def test_numpy_is_seeded(probe: Probe, tmp_path: Path) -> None:
    source = "import numpy\nprint(numpy.random.random(3))\n"
    first, second = (_record(probe, tmp_path, source).stdout for _ in range(2))
    assert first == second


# --- random programs ----------------------------------------------------------------------------------------------

NAMES = ["f0", "f1", "f2", "f3", "f4", "f5"]
KINDS = ["function", "generator", "failing", "lambda", "class"]


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, list[int]]]:
    """For each function its kind and the later functions that it calls (so that every program ends)."""
    count = len(NAMES)
    return [
        (
            draw(st.sampled_from(KINDS)),
            draw(st.lists(st.integers(number + 1, count - 1), max_size=3)) if number + 1 < count else [],
        )
        for number in range(count)
    ]


def _source(program: list[tuple[str, list[int]]]) -> str:
    lines = []
    for name, (kind, called) in zip(NAMES, program, strict=True):
        calls = [f"call({NAMES[number]})" for number in called]
        if kind == "lambda":
            lines += [f"{name} = lambda: [{', '.join(calls)}]"]
        elif kind == "class":
            lines += [f"def {name}():", f"    class {name.upper()}:", "        x = 1", *(f"        {c}" for c in calls)]
        else:
            ends = {"generator": "    yield 1", "failing": "    raise ValueError", "function": "    return None"}
            steps = [f"    {'yield ' if kind == 'generator' else ''}{call}" for call in calls]
            lines += [f"def {name}():", *steps, ends[kind]]
    drive = ["def call(function):", "    try:", "        result = function()", "        if hasattr(result, 'send'):"]
    drive += ["            for _ in result: pass", "    except ValueError: pass", "call(f0)"]
    return "\n".join([*lines, *drive])


def _expected(program: list[tuple[str, list[int]]]) -> str:
    lines: list[str] = []

    def call(number: int, depth: int) -> None:
        kind, called = program[number]
        name = "<lambda>" if kind == "lambda" else NAMES[number]
        lines.append("  " * depth + "call")
        lines.append("  " * (depth + 1) + name + (" !ValueError" if kind == "failing" else ""))
        if kind == "class":
            lines.append("  " * (depth + 2) + f"class {name.upper()}")
        for below in called:
            call(below, depth + 2 + (kind == "class"))

    call(0, 0)
    return "\n".join(lines)


@on_each_probe
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=programs())
def test_a_random_program_yields_its_own_tree(
    probe: Probe, tmp_path_factory: pytest.TempPathFactory, program: list[tuple[str, list[int]]]
) -> None:
    run = run_probed(probe, tmp_path_factory.mktemp("program"), _source(program))
    assert (run.status, run.stderr, run.slugs) == (0, "", [])
    assert run.tree == _expected(program)


def test_configuration_is_plain_json(tmp_path: Path) -> None:
    """Odd names survive the way through JSON and the probe's own reader."""
    folder = tmp_path / 'odd "name" \\ ünï \U0001f600'
    folder.mkdir()
    run = run_probed(probes()[0], folder, "def f(): pass\nf()\n", argv=['"', "\\", "\U0001f600", "\n"])
    assert (run.status, run.stderr, run.tree) == (0, "", "f")
    assert run.main.argv[1:] == ('"', "\\", "\U0001f600", "\n")
    assert json.loads((folder / "out" / "config.json").read_text("utf-8"))["argv"][1] == '"'

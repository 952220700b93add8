"""How much slower a program runs while it is observed: each backend of xlocal beside other tools and no tool.

    python benchmarks/trace_overhead.py [--quick] [--pythons 3.9 3.12] [--out FILE]

Three real programs (sympy, jinja2, pycodestyle) and a worst case (nothing but calls) run whole under each tool, in
turn, several times; the least CPU time counts, and every figure is a ratio within one run. `slowdown` is that of the
work alone; `whole` that of the process with start, imports and the writing of the result. `ns/call` is
what one Python call costs more; `B/call` is the growth of peak memory during the work beyond that of the bare run;
`file B/call` the size of the result. `closer look` is the second pass: lines and values of the first 150 calls of each
function, fewer where that would be more than 40,000 calls. Tools and programs are installed by uv into one cached
environment per Python; what does not install on one is said. --quick takes one Python of each kind and small work
(under a minute).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from needed import require

require("xlocal", "numpy", "rich", "uv")

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "experiments"))

from environments import UnavailableError, environment, found_interpreters, install, minor_of  # noqa: E402
from xlocal.ranking.closer import CAPS, MOST_CALLS  # noqa: E402
from xlocal.tracer.launch import Interpreter  # noqa: E402
from xlocal.tracer.native import build  # noqa: E402
from xlocal.tracer.trace import Trace  # noqa: E402

from xlocal.demo import cache_folder  # noqa: E402

WORKLOADS = HERE / "workloads"
PROBE = HERE.parent / "tracer" / "probe.py"
PROGRAMS = ("sympy", "jinja2", "pycodestyle")
TOOLS = ("viztracer", "coverage", "hunter")
OURS = ("native", "monitoring", "setprofile")
CLOSER = "closer look"


@dataclass(frozen=True, slots=True)
class Workload:
    """A script with its work (quick, full) and the packages that count as the program."""

    name: str
    sizes: tuple[int, int]
    scope: tuple[str, ...]


ALL_WORK = (
    Workload("sympy_calculus", (1, 2), ("sympy", "mpmath")),
    Workload("jinja2_render", (3, 40), ("jinja2", "markupsafe")),
    Workload("pycodestyle_check", (1, 4), ("pycodestyle.py",)),
    Workload("tiny_calls", (60, 1000), ()),
)
QUICK_WORK = ("jinja2_render", "tiny_calls")


@dataclass(frozen=True, slots=True)
class Run:
    """One observed process: CPU seconds of the work and of all of it, growth of memory, size of the result."""

    seconds: float
    whole: float
    grown_kib: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Slowdowns are ratios to the bare run, `of_cprofile` to the run under cProfile."""

    python: str
    work: str
    tool: str
    calls: int
    seconds: float
    slowdown: float
    whole_slowdown: float
    of_cprofile: float | None
    ns_per_call: float
    memory_per_call: float
    file_per_call: float


class Bench:
    """One interpreter with its environment: knows how to run a workload under a tool."""

    def __init__(self, python: Path, work: Workload, *, quick: bool, folder: Path) -> None:
        self.python, self.work, self.folder = python, work, folder
        self.native = build(python)
        self.script = str(WORKLOADS / f"{work.name}.py")
        self.size = str(work.sizes[0 if quick else 1])
        # Viztracer keeps a ring of events: long enough for all of them, and no longer, since it is allocated at once.
        self.entries = "1000000" if quick else "12000000"
        self._focus: list[tuple[str, int, str, list[tuple[int, int]]]] = []

    def run(self, tool: str) -> Run:
        """Run under `tool`. Raises UnavailableError when the process fails."""
        out = Path(tempfile.mkdtemp(dir=self.folder))
        report = out / "report.json"
        command, result = self._command(tool, out)
        env = {**os.environ, "WORK_REPORT": str(report), "COVERAGE_FILE": str(out / "result")}
        with (out / "stderr").open("wb") as stderr:
            process = subprocess.Popen(command, cwd=out, env=env, stdout=subprocess.DEVNULL, stderr=stderr)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or not report.exists():
            last = (out / "stderr").read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise UnavailableError(f"{tool}: {last[0]}")
        if tool in OURS:
            _require_backend(tool, result)
            self._focus = self._focus or _focus_of(Trace.load(result / "main.xtrace"))
        measured = json.loads(report.read_text())
        size = sum(file.stat().st_size for file in _files(result))
        shutil.rmtree(out)
        return Run(measured["seconds"], usage.ru_utime + usage.ru_stime, measured["grown_kib"], size)

    def calls(self) -> tuple[int, int]:
        """Calls of Python functions in the work alone, and in the whole process with its imports."""
        report, stats = self.folder / "calls.json", self.folder / "stats"
        env = {**os.environ, "WORK_REPORT": str(report)}
        subprocess.run([self.python, self.script, self.size], env={**env, "WORK_COUNT": "1"}, check=True)
        work = int(json.loads(report.read_text())["calls"])
        subprocess.run([self.python, "-m", "cProfile", "-o", stats, self.script, self.size], env=env, check=True)
        code = "import pstats, sys; print(sum(v[1] for k, v in pstats.Stats(sys.argv[1]).stats.items() if k[0] != '~'))"
        return work, int(subprocess.check_output([self.python, "-c", code, stats]))

    def _command(self, tool: str, out: Path) -> tuple[list[str], Path]:
        """The command line, and the file or folder where its result lands."""
        python, program, result = str(self.python), [self.script, self.size], out / "result"
        if tool in (*OURS, CLOSER):
            return self._our_command(tool, out)
        if tool == "cProfile":
            return [python, "-m", "cProfile", "-o", str(result), *program], result
        if tool == "coverage":
            return [python, "-m", "coverage", "run", *program], result
        if tool == "hunter":
            return [python, str(WORKLOADS / "under_hunter.py"), self.script, str(result), self.size], result
        if tool.startswith("viztracer"):
            result = out / "result.json"
            options = ["--quiet", "--tracer_entries", self.entries, "-o", str(result)]
            if tool == "viztracer":
                options.append("--ignore_c_function")
            return [python, "-m", "viztracer", *options, "--", *program], result
        return [python, *program], out / "nothing"

    def _our_command(self, backend: str, out: Path) -> tuple[list[str], Path]:
        packages = [next(self.python.parent.parent.glob(f"lib/*/site-packages/{name}")) for name in self.work.scope]
        scope = [str(path) if path.suffix == ".py" else f"{path}{os.sep}" for path in packages]
        traces = out / "traces"
        traces.mkdir()
        config = {
            "scope": [*scope, f"{WORKLOADS}{os.sep}"],
            "out": str(traces),
            "mode": "script",
            "target": self.script,
            "argv": [self.script, self.size],
            "seed": None,
            "backend": backend,
            "native": str(self.native.path) if self.native.path else None,
        }
        if backend == CLOSER:
            config |= {"backend": "setprofile", "focus": {"functions": self._focus, "values": True, "seconds": 300}}
        (out / "config.json").write_text(json.dumps(config))
        return [str(self.python), str(PROBE), str(out / "config.json")], traces


def _require_backend(wanted: str, folder: Path) -> None:
    """The probe falls back where a backend is not to be had; the figures would be another's."""
    used = Trace.load(folder / "main.xtrace").backend
    if used != wanted:
        raise UnavailableError(f"{wanted}: not to be had here, {used} recorded instead")


def _focus_of(trace: Trace) -> list[tuple[str, int, str, list[tuple[int, int]]]]:
    """The first calls of every function of a trace, as many of each as the closer look takes."""
    codes = [code for code in trace.codes if code.kind == "function"]
    cap = next((cap for cap in CAPS if cap * len(codes) <= MOST_CALLS), CAPS[-1])
    return [(code.filename, code.line, code.name, [(0, cap)]) for code in codes]


def _files(result: Path) -> list[Path]:
    if result.is_dir():
        return [file for file in result.rglob("*.xtrace*") if file.is_file()]
    return [result] if result.is_file() else []


def tools_of(interpreter: Interpreter, python: Path, notes: list[str]) -> list[str]:
    """The tools that run on this interpreter, bare first; notes say which do not and why."""
    tools = ["none", "cProfile"]
    for tool in TOOLS:
        try:
            install(python, tool)
        except UnavailableError as error:
            notes.append(f"{minor_of(interpreter)}: {tool} does not install ({error})")
            continue
        tools += ["viztracer", "viztracer+C"] if tool == "viztracer" else [tool]
    ours = [backend for backend in OURS if backend != "monitoring" or interpreter.version >= (3, 12)]
    return [*tools, *ours, CLOSER]


def measure(bench: Bench, tools: Iterable[str], *, repeat: int, notes: list[str], label: str) -> dict[str, Run]:
    """The best run per tool out of `repeat`, taken in turn so that a slow moment hits all tools alike."""
    best: dict[str, Run] = {}
    failed: set[str] = set()
    for _ in range(repeat):
        for tool in tools:
            if tool in failed:
                continue
            try:
                run = bench.run(tool)
            except UnavailableError as error:
                failed.add(tool)
                notes.append(f"{label}: {error}")
                continue
            known = best.get(tool, run)
            best[tool] = Run(
                min(run.seconds, known.seconds),
                min(run.whole, known.whole),
                min(run.grown_kib, known.grown_kib),
                run.file_bytes,
            )
    return best


def rows_of(python: str, bench: Bench, best: dict[str, Run]) -> list[Row]:
    """Ratios of each tool's best run to the bare one."""
    calls, all_calls = bench.calls()
    bare, profiled = best["none"], best.get("cProfile")
    return [
        Row(
            python=python,
            work=bench.work.name,
            tool=tool,
            calls=calls,
            seconds=run.seconds,
            slowdown=run.seconds / bare.seconds,
            whole_slowdown=run.whole / bare.whole,
            of_cprofile=run.seconds / profiled.seconds if profiled else None,
            ns_per_call=1e9 * (run.seconds - bare.seconds) / calls,
            memory_per_call=1024 * max(0, run.grown_kib - bare.grown_kib) / calls,
            file_per_call=run.file_bytes / all_calls,
        )
        for tool, run in best.items()
    ]


def table_of(rows: list[Row]) -> Table:
    """The rows as people read them."""
    table = Table(title="Overhead of observing a program (least CPU time, ratios within this run)")
    for name in ("Python", "work", "tool"):
        table.add_column(name, no_wrap=True)
    for name in ("calls", "CPU s", "slowdown", "whole", "/cProfile", "ns/call", "B/call", "file B/call"):
        table.add_column(name, justify="right")
    for place, row in enumerate(rows):
        group = (row.python, row.work)
        first = place == 0 or (rows[place - 1].python, rows[place - 1].work) != group
        last = place + 1 == len(rows) or (rows[place + 1].python, rows[place + 1].work) != group
        table.add_row(
            *(group if first else ("", "")),
            f"xlocal {row.tool}" if row.tool in (*OURS, CLOSER) else row.tool,
            f"{row.calls:,}",
            f"{row.seconds:.3f}",
            f"{row.slowdown:.2f}",
            f"{row.whole_slowdown:.2f}",
            "" if row.of_cprofile is None else f"{row.of_cprofile:.2f}",
            f"{row.ns_per_call:.0f}",
            f"{row.memory_per_call:.1f}",
            f"{row.file_per_call:.2f}",
            end_section=last,
        )
    return table


def chosen(minors: list[str] | None, *, quick: bool) -> list[Interpreter]:
    """The interpreters asked for; quickly, the newest with sys.monitoring and the newest without."""
    found = list(found_interpreters())
    if minors:
        return [one for one in found if minor_of(one) in minors]
    if not quick:
        return found
    kinds = ([one for one in found if one.version < (3, 12)], [one for one in found if one.version >= (3, 12)])
    return [kind[-1] for kind in kinds if kind]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one Python of each kind, small work")
    parser.add_argument("--pythons", nargs="+", metavar="3.N", help="minor versions (default: all that are found)")
    parser.add_argument("--work", nargs="+", choices=[work.name for work in ALL_WORK], help="workloads (default: all)")
    parser.add_argument("--repeat", type=int, help="runs per tool (default 5, quick 2)")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "benchmarks", help="environments")
    parser.add_argument("--out", type=Path, help="write all figures as JSON")
    options = parser.parse_args()
    console, progress = Console(), Console(stderr=True)
    if not console.is_terminal:
        console.width = 130
    wanted = options.work or (QUICK_WORK if options.quick else [work.name for work in ALL_WORK])
    repeat = options.repeat or (2 if options.quick else 5)
    rows: list[Row] = []
    notes: list[str] = []
    for interpreter in chosen(options.pythons, quick=options.quick):
        try:
            python = environment(minor_of(interpreter), PROGRAMS, folder=options.cache)
        except UnavailableError as error:
            notes.append(f"{minor_of(interpreter)}: the programs do not install ({error})")
            continue
        tools = tools_of(interpreter, python, notes)
        for work in ALL_WORK:
            if work.name not in wanted:
                continue
            progress.print(f"{minor_of(interpreter)} {work.name}: {', '.join(tools)}")
            with tempfile.TemporaryDirectory() as folder:
                bench = Bench(python, work, quick=options.quick, folder=Path(folder))
                best = measure(bench, tools, repeat=repeat, notes=notes, label=f"{minor_of(interpreter)} {work.name}")
                rows += rows_of(minor_of(interpreter), bench, best)
    console.print(table_of(rows))
    for note in notes:
        console.print(note, markup=False, highlight=False)
    if options.out:
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
        }
        options.out.write_text(
            json.dumps({"machine": machine, "rows": [asdict(row) for row in rows], "notes": notes}, indent=1)
        )


if __name__ == "__main__":
    main()

"""How long the difference of two call trees takes: ours, PyPI's apted and edist, from 100 to 1,000,000 nodes.

    python benchmarks/diff_speed.py [--quick] [--sizes 100,1000] [--pairs FOLDER] [--save FOLDER] [--out FILE]

Random pairs: a tree grown by a random program (functions that call one another in loops), and the same after random
deletions and insertions; also two trees grown apart by one program with other choices. All implementations get equal
trees and costs (rename forbidden) and must agree on the cost. Times are CPU seconds of one call in one process, after
a first call on small trees; what others would take too long for is left out. `--pairs` adds saved pairs: `.npz` files
with arrays `label`, `parent` of either tree (`a_label`, `a_parent`, `b_label`, `b_parent`; preorder, node 0 the
run with label -1), as `--save` writes them for random pairs. --quick ends within a minute.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from needed import require

require("xlocal", "numpy", "rich", "apted", "edist")

import edist.ted  # noqa: E402
import numpy as np  # noqa: E402
from apted import APTED, Config  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from xlocal.ranking.diff import diff  # noqa: E402
from xlocal.tracer.calltree import CallTree, Function  # noqa: E402

SIZES = (100, 1000, 3000, 10_000, 100_000, 1_000_000)
EDITS = ("0", "10", "100", "10%", "50%", "apart")
LARGEST = {"apted": 400, "edist": 1000}  # nodes; apted needs a minute for 1000


@dataclass(frozen=True, slots=True)
class Pair:
    """Two trees and how the second came about."""

    name: str
    edits: str
    a: CallTree
    b: CallTree


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; times are CPU seconds, None where left out."""

    pair: str
    edits: str
    nodes: tuple[int, int]
    cost: int
    lower: int
    exact: bool
    ours: float
    apted: float | None
    edist: float | None


def main() -> None:
    """Measure, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller pairs, within a minute")
    parser.add_argument("--sizes", help=f"node counts (default {','.join(map(str, SIZES))})")
    parser.add_argument(
        "--edits",
        help=f"numbers of edits, shares of the nodes, or 'apart' (default {','.join(EDITS).replace('%', '%%')})",
    )
    parser.add_argument("--pairs", type=Path, help="folder of saved pairs, measured too")
    parser.add_argument("--save", type=Path, help="write the random pairs here")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    sizes = (
        [int(s) for s in args.sizes.split(",")] if args.sizes else [s for s in SIZES if not args.quick or s <= 10_000]
    )
    first_call = warm_up()
    rows, limits = [], ({"apted": 200, "edist": 200} if args.quick else LARGEST)
    for pair in (*random_pairs(sizes, (args.edits or ",".join(EDITS)).split(",")), *saved_pairs(args.pairs)):
        if args.save:
            save(args.save, pair)
        rows.append(measured(pair, limits))
        last = rows[-1]
        print(f"{last.pair} {last.nodes[0]} {last.edits}: {last.ours:.2f} s", file=sys.stderr)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (30 if sys.platform == "darwin" else 20))
    Console().print(table(rows))
    print(f"first call (compiled or read from the cache): {first_call:.1f} s CPU; peak memory {peak:.1f} GB")
    if args.out:
        about = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "first_call": first_call,
            "peak_gb": peak,
        }
        args.out.write_text(json.dumps(about | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def warm_up() -> float:
    """CPU seconds of a first call that reaches every compiled loop."""
    begin = time.process_time()
    for seed in (1, 2):
        a = grown(400, 5, random.Random(seed))
        for b in (edited(a, 60, random.Random(seed)), grown(400, 5, random.Random(seed + 7))):
            diff(a, b)
    # Only some pairs need the banded search, this one among them.
    for pair in random_pairs([1000], ["100"]):
        diff(pair.a, pair.b)
    return time.process_time() - begin


def measured(pair: Pair, limits: dict[str, int]) -> Row:
    """Time every implementation that can take this pair; they must agree."""
    begin = time.process_time()
    result = diff(pair.a, pair.b)
    ours = time.process_time() - begin
    others: dict[str, float | None] = {}
    for name, cost in (("apted", apted_cost), ("edist", edist_cost)):
        others[name] = None
        if max(len(pair.a), len(pair.b)) <= limits[name]:
            others[name], found = timed(cost, pair)
            if result.exact and found != result.cost:
                sys.exit(f"{name} says {found} for {pair.name} {pair.edits}, we say {result.cost}")
    nodes = len(pair.a), len(pair.b)
    return Row(
        pair.name, pair.edits, nodes, result.cost, result.lower, result.exact, ours, others["apted"], others["edist"]
    )


def timed(cost: Callable[[CallTree, CallTree], int], pair: Pair) -> tuple[float, int]:
    """CPU seconds, and the cost found."""
    begin = time.process_time()
    found = cost(pair.a, pair.b)
    return time.process_time() - begin, found


def table(rows: list[Row]) -> Table:
    """What the console shows."""
    out = Table("pair", "edits", "nodes", "cost", "exact", "ours s", "edist s", "apted s")
    for column in out.columns[2:]:
        column.justify = "right"
    for row in rows:
        cost = str(row.cost) if row.exact else f"{row.lower}..{row.cost}"
        times = ["-" if s is None else f"{s:.2f}" for s in (row.ours, row.edist, row.apted)]
        out.add_row(row.pair, row.edits, "{} {}".format(*row.nodes), cost, "yes" if row.exact else "no", *times)
    return out


def random_pairs(sizes: list[int], edits: list[str]) -> Iterator[Pair]:
    """One pair for each size and kind of edit, always the same ones."""
    for n in sizes:
        functions = max(20, min(300, n // 20))
        a = grown(n, functions, random.Random(n))
        for edit in edits:
            rng = random.Random(f"{n} {edit}")
            if edit == "apart":
                b = grown(n, functions, rng)
            else:
                b = edited(a, n * int(edit[:-1]) // 100 if edit.endswith("%") else min(int(edit), n // 2), rng)
            yield Pair("random", edit, a, b)


def grown(n: int, functions: int, rng: random.Random) -> CallTree:
    """The calls of a random program: functions call later ones, in loops, skipping some calls."""
    plan = random.Random(functions)
    calls = [
        [
            (plan.randrange(f + 1, min(functions, f + 2 + functions // 4)), plan.choice([1, 1, 1, 2, 5]))
            for _ in range(plan.randrange(5))
        ]
        if f < functions - 5
        else []
        for f in range(functions)
    ]
    label, parent = [-1], [-1]
    while len(label) < n:
        stack = [(rng.randrange(functions // 3), 0)]
        while stack and len(label) < n:
            function, above = stack.pop()
            node = len(label)
            label.append(function)
            parent.append(above)
            for callee, repeats in reversed(calls[function]):
                times = repeats if rng.random() < 0.7 else rng.randrange(6)
                stack.extend((callee, node) for _ in range(times) if rng.random() < 0.85)
    return tree(label, parent, functions)


def edited(original: CallTree, edits: int, rng: random.Random) -> CallTree:
    """The tree after random edits: half delete a node, half put a new one above some of the children of another."""
    n, functions = len(original), len(original.functions)
    label = original.label.tolist()
    below: list[list[int]] = [[] for _ in range(n)]
    for node, above in enumerate(original.parent.tolist()):
        if above >= 0:
            below[above].append(node)
    gone = set(rng.sample(range(1, n), edits // 2))
    for _ in range(edits - edits // 2):
        calls = below[rng.randrange(n)]
        first = rng.randrange(len(calls) + 1)
        last = min(len(calls), first + rng.choice([0, 0, 1, 2, 3]))
        label.append(rng.randrange(functions))
        below.append(calls[first:last])
        calls[first:last] = [len(label) - 1]
    out, parent, stack = [], [], [(0, -1)]
    while stack:
        node, above = stack.pop()
        if node not in gone:
            out.append(label[node])
            parent.append(above)
            above = len(out) - 1
        stack.extend((call, above) for call in reversed(below[node]))
    return tree(out, parent, functions)


def tree(label: list[int], parent: list[int], functions: int) -> CallTree:
    """A call tree whose functions are f0, f1, ..."""
    names = [Function("m.py", f"f{i}") for i in range(functions)]
    return CallTree.from_columns(functions=names, exceptions=(), label=label, parent=parent)


def save(folder: Path, pair: Pair) -> None:
    """Write a pair as `saved_pairs` reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = {
        f"{side}_{name}": getattr(t, name) for side, t in (("a", pair.a), ("b", pair.b)) for name in ("label", "parent")
    }
    np.savez_compressed(folder / f"{pair.name} {len(pair.a)} {pair.edits}.npz".replace(" ", "_"), **columns)


def saved_pairs(folder: Path | None) -> Iterator[Pair]:
    """The pairs in a folder; labels are numbers of functions that both trees share."""
    for path in sorted(folder.glob("*.npz")) if folder else ():
        with np.load(path) as columns:
            functions = int(max(columns["a_label"].max(), columns["b_label"].max())) + 1
            a, b = (tree(columns[f"{s}_label"].tolist(), columns[f"{s}_parent"].tolist(), functions) for s in "ab")
        yield Pair(path.stem, "saved", a, b)


class Node:
    """A node as apted wants it."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.below: list[Node] = []


class NoRename(Config):  # type: ignore[misc]
    """A rename costs as much as deleting and inserting."""

    def rename(self, one: Node, two: Node) -> int:
        return 0 if one.name == two.name else 2

    def children(self, node: Node) -> list[Node]:
        return node.below


def apted_cost(a: CallTree, b: CallTree) -> int:
    """The cost by PyPI's apted."""
    roots = []
    for one in (a, b):
        nodes = [Node(name) for name in one.label.tolist()]
        for node, above in enumerate(one.parent.tolist()):
            if above >= 0:
                nodes[above].below.append(nodes[node])
        roots.append(nodes[0])
    return int(APTED(*roots, NoRename()).compute_edit_distance())


def edist_cost(a: CallTree, b: CallTree) -> int:
    """The cost by PyPI's edist."""

    def cost(x: Any, y: Any) -> float:
        return 1.0 if x is None or y is None else 2.0 * (x != y)

    lists: list[list[list[int]]] = []
    for one in (a, b):
        below: list[list[int]] = [[] for _ in range(len(one))]
        for node, above in enumerate(one.parent.tolist()):
            if above >= 0:
                below[above].append(node)
        lists.append(below)
    return round(edist.ted.ted(a.label.tolist(), lists[0], b.label.tolist(), lists[1], cost))


if __name__ == "__main__":
    main()

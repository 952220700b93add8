"""The exact search: in a band that grows until the optimum is proven, or full where that is cheaper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from xlocal.ranking import kernel
from xlocal.ranking.kernel import Band, Longs, Order
from xlocal.ranking.reduce import Side, classes, depths_of
from xlocal.tracer.calltree import IntArray

Progress = Callable[[str, float], None]
CHUNK = 200_000_000  # cells between two chances to report progress or to be interrupted: well under a second
TABLE_CELLS = 300_000_000  # most entries of one int32 table (1.2 GB)
WIDEST = 3000  # largest threshold of a banded search; its four string tables then take 290 MB
BAND_CELL = 4  # what a cell of the banded search takes, in cells of the full one
DENSE = 100_000_000  # most pairs of heads to visit for predicting a full search


@dataclass(slots=True)
class Best:
    """What is known of the distance so far; `pair` is a mapping of that cost, shape `(len(a),)`, -1: deleted."""

    cost: int
    lower: int
    pair: IntArray

    def offer(self, cost: int, pair: IntArray) -> None:
        """Keep this mapping if it is cheaper."""
        if cost < self.cost:
            self.cost, self.pair = cost, pair


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Both trees in one order; `back_a[i]` is the preorder number of node i of that order."""

    a: Order
    b: Order
    back_a: IntArray
    back_b: IntArray
    mirrored: bool

    def pair(self, match: IntArray) -> IntArray:
        """A mapping in this order as one in preorder."""
        pair = np.full(len(match), -1, np.int32)
        kept = match >= 0
        pair[self.back_a[kept]] = self.back_b[match[kept]]
        return pair


def cost_of(a: Side, b: Side, pair: IntArray) -> int:
    """The cost of a mapping: nodes without a pair, and renames."""
    kept = np.flatnonzero(pair >= 0)
    renames = np.count_nonzero(a.label[kept] != b.label[pair[kept]])
    return len(a) + len(b) - 2 * len(kept) + int(renames)


def improve(a: Side, b: Side, best: Best, *, budget: float, paper: bool, progress: Progress) -> None:
    """Bring `best` to the optimum (`lower == cost`), or as near as `budget` cells of work allow."""
    views = both_views(a, b)
    plans = [plan_full(view, paper) for view in views]
    full = min(plans, key=lambda plan: plan.cells)
    # A narrow band around the mapping often ends it. What may fail must be cheap beside the full search, which cannot.
    left = budget - refine(views, best, radii=(3,), most=min(budget, full.cells / 4), paper=paper, progress=progress)
    left -= banded(views, best, most=min(left, full.cells / 4), paper=paper, progress=progress)
    if best.lower < best.cost and full.cells <= left:
        pair = full.run(paper, progress)
        best.offer(cost_of(a, b, pair), pair)
        best.lower = best.cost
    if best.lower < best.cost:
        refine(views, best, radii=(12, 48, 200, 800), most=left, paper=paper, progress=progress)


def both_views(a: Side, b: Side) -> tuple[View, View]:
    """The trees in postorder and in reversed preorder (where last children take the place of first children)."""
    kind = classes(np.concatenate((a.label, b.label)), np.concatenate((a.size, b.size)))
    kinds = kind[: len(a)], kind[len(a) :]
    plain = [ordered(side, kind, mirrored=False) for side, kind in zip((a, b), kinds, strict=True)]
    mirror = [ordered(side, kind, mirrored=True) for side, kind in zip((a, b), kinds, strict=True)]
    return (
        View(plain[0][0], plain[1][0], plain[0][1], plain[1][1], False),
        View(mirror[0][0], mirror[1][0], mirror[0][1], mirror[1][1], True),
    )


def ordered(side: Side, kind: IntArray, *, mirrored: bool) -> tuple[Order, IntArray]:
    """One tree as an `Order`, and the preorder number of each of its nodes."""
    n = len(side)
    before = np.arange(n, dtype=np.int32)
    after = before - depths_of(side.size) + side.size - 1
    back = np.empty(n, np.int32)
    if mirrored:
        back, other = before[::-1].copy(), n - 1 - after
    else:
        back[after] = before
        other = before
    left = (before - side.size[back] + 1).astype(np.int32)
    slot = np.unique(kind[back], return_inverse=True)[1].astype(np.int32)
    order = Order(side.label[back], left, kind[back], slot, kernel.spine(left), other[back].astype(np.int32))
    return order, back


@dataclass(frozen=True, slots=True, eq=False)
class FullPlan:
    """A full search: which subtrees, and how many cells each of them takes."""

    view: View
    heads_a: IntArray
    heads_b: IntArray
    work: Longs
    cells: float

    def run(self, paper: bool, progress: Progress) -> IntArray:
        """An optimal mapping, in preorder numbers."""
        a, b = self.view.a, self.view.b
        known = np.zeros((a.slot.max() + 1, b.slot.max() + 1), np.int32)
        forest = np.empty((len(a.label) + 1) * (len(b.label) + 1), np.int32)
        for first, last, share in chunks(self.work):
            kernel.search_full(a, b, self.heads_a[first:last], self.heads_b, paper, known, forest)
            progress("full search", share)
        return self.view.pair(kernel.trace_full(a, b, paper, known, forest))


def plan_full(view: View, paper: bool) -> FullPlan:
    """The full search with this view; infinite cells where its tables would not fit."""
    a, b = view.a, view.b
    heads_a, heads_b = kernel.heads(a, paper), kernel.heads(b, paper)
    fits = (len(a.label) + 1) * (len(b.label) + 1) <= TABLE_CELLS
    if not fits or len(heads_a) * len(heads_b) > DENSE:
        return FullPlan(view, heads_a, heads_b, np.empty(0, np.int64), np.inf)
    work = kernel.predict_full(a, b, heads_a, heads_b, paper)
    return FullPlan(view, heads_a, heads_b, work, float(work.sum()))


def chunks(work: Longs) -> list[tuple[int, int, float]]:
    """Ranges of about CHUNK cells each, and the share of the work done after each."""
    if not len(work):
        return []
    total = np.cumsum(work)
    cuts = np.searchsorted(total, np.arange(CHUNK, total[-1], CHUNK), side="right")
    edges = np.unique(np.concatenate(([0], cuts, [len(work)])))
    share = total[edges[1:] - 1] / max(1, int(total[-1]))
    return [(int(f), int(t), float(s)) for f, t, s in zip(edges[:-1], edges[1:], share, strict=True)]


def banded(views: tuple[View, ...], best: Best, *, most: float, paper: bool, progress: Progress) -> float:
    """Search with growing thresholds until the optimum is proven or a round would pass `most` cells in all.

    A round with threshold t finds the optimum if that is at most t, and otherwise proves that it is larger.
    Returns the cells spent.
    """
    step = 1 if paper else 2  # without renames the distance has the parity of the sizes' sum
    spent, slack = 0.0, 0
    while best.lower < best.cost:
        limit = min(best.lower + slack, best.cost - step)
        tables = 16.0 * limit * limit  # four string tables, about two cells' time per entry
        if limit > WIDEST or spent + tables > most:
            break
        spent += tables
        plan = plan_band(views, plain_windows(views[0], limit, paper), paper=paper, most=most - spent)
        spent += plan.overhead
        if plan.work is None:
            break
        spent += plan.cells
        found = plan.run(plan.work, paper, progress)
        if found is not None:
            best.offer(*found)
        best.lower = best.cost if best.cost <= limit else limit + step
        slack = 2 * slack + step
    return spent


def refine(
    views: tuple[View, ...], best: Best, *, radii: tuple[int, ...], most: float, paper: bool, progress: Progress
) -> float:
    """Improve a mapping by the best one in a band around it, again while that pays; returns the cells spent."""
    spent = 0.0
    for radius in radii:
        gain = best.cost
        while best.lower < best.cost and gain > best.cost // 100:
            plan = plan_band(views, path_windows(views[0], best.pair, radius), paper=paper, most=(most - spent) / 2)
            spent += plan.overhead + plan.cells
            found = plan.run(plan.work, paper, progress) if plan.work is not None else None
            gain = best.cost - found[0] if found is not None else 0
            if found is not None:
                best.offer(*found)
    return spent


Rows = tuple[IntArray, IntArray]


def plain_windows(view: View, limit: int, paper: bool) -> tuple[Rows, Rows]:
    """`kernel.windows` of the postorder strings and of the preorder strings."""
    texts = [texts_of(order, view.mirrored) for order in (view.a, view.b)]
    post, pre = (string_windows(texts[0][end], texts[1][end], limit, paper) for end in (0, 1))
    return post, pre


def texts_of(order: Order, mirrored: bool) -> tuple[IntArray, IntArray]:
    """Labels in postorder and in preorder."""
    other = np.empty_like(order.label)
    other[order.other] = order.label
    return (other[::-1].copy(), order.label[::-1].copy()) if mirrored else (order.label, other)


def string_windows(a: IntArray, b: IntArray, limit: int, paper: bool) -> Rows:
    """`kernel.windows` of two strings for a threshold."""
    tables = []
    for one, two in ((a, b), (a[::-1].copy(), b[::-1].copy())):
        table = np.full((limit + 1, 2 * limit + 3), -1, np.int32)
        kernel.reach(one, two, limit, 1 << 60, paper, table)
        tables.append(table)
    return kernel.windows(len(a), len(b), limit, tables[0], tables[1])


def path_windows(view: View, pair: IntArray, radius: int) -> tuple[Rows, Rows]:
    """Rows around a mapping (in preorder numbers): between its neighbouring pairs, `radius` wider on both sides."""
    n, m = len(view.a.label), len(view.b.label)
    in_order = np.full(n, -1, np.int32)
    there = np.empty(m, np.int32)
    there[view.back_b] = np.arange(m, dtype=np.int32)
    kept = pair[view.back_a] >= 0
    in_order[kept] = there[pair[view.back_a[kept]]]
    post, pre = (around(match, m, radius) for match in (in_order, pair))
    return post, pre


def around(match: IntArray, m: int, radius: int) -> Rows:
    """Rows between the neighbouring pairs of an increasing matching."""
    before = np.maximum.accumulate(np.where(match >= 0, match + 1, 0))
    after = np.minimum.accumulate(np.where(match >= 0, match, m)[::-1])[::-1]
    low = np.maximum(np.concatenate(([0], before)) - radius, 0)
    high = np.minimum(np.concatenate((after, [m])) + radius, m)
    return low.astype(np.int32), high.astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class BandPlan:
    """A banded search: `work` is None when it would take too much; `overhead` is what planning itself took."""

    view: View
    band: Band
    work: Longs | None
    cells: float
    overhead: float

    def run(self, work: Longs, paper: bool, progress: Progress) -> tuple[int, IntArray] | None:
        """Cost and mapping (in preorder numbers) of the best mapping within the band, if there is one."""
        a, b, band = self.view.a, self.view.b, self.band
        n, m = len(a.label), len(b.label)
        known = np.full(band.base[-1], kernel.FAR, np.int32)
        forest = np.empty(band.base[-1], np.int32)
        for first, last, share in chunks(work[::-1]):
            kernel.search_band(a, b, band, n - first, n - last, paper, known, forest)
            progress("banded search", share)
        cost = kernel.FAR
        if band.low[n] <= m <= band.high[n]:
            cost = int(known[band.base[n] + m - band.low[n]])
        if cost >= kernel.FAR:
            return None
        return cost, self.view.pair(kernel.trace_band(a, b, band, paper, known, forest))


def plan_band(views: tuple[View, ...], rows: tuple[Rows, Rows], *, paper: bool, most: float) -> BandPlan:
    """The cheaper view for a banded search; the second is looked at only where the first takes long."""
    overhead = 0.0
    plans: list[BandPlan] = []
    for view in views:
        band = band_of(view, rows)
        room = float(band.base[-1])
        work, cells = None, 0.0
        if room <= min(TABLE_CELLS, most - overhead):
            overhead += BAND_CELL * room
            work = kernel.predict_band(
                view.a, view.b, band, paper, int(min(max(0.0, most - overhead) / BAND_CELL, 1e18))
            )
            cells = BAND_CELL * float(work.sum())
            if cells > most - overhead:
                work, cells = None, 0.0
        plans.append(BandPlan(view, band, work, cells, overhead))
        if work is not None and cells < CHUNK:
            break
    plan = min(plans, key=lambda plan: np.inf if plan.work is None else plan.cells)
    return replace(plan, overhead=overhead)


def band_of(view: View, rows: tuple[Rows, Rows]) -> Band:
    """The band of a view from the windows of the postorder and the preorder strings."""
    main, other = rows
    if view.mirrored:
        m = len(view.b.label)
        main, other = mirror(other, m), mirror(main, m)
    width = np.maximum(main[1].astype(np.int64) - main[0] + 1, 0)
    base = np.concatenate(([0], np.cumsum(width)))
    return Band(main[0], main[1], base, other[0], other[1])


def mirror(rows: Rows, m: int) -> Rows:
    """Windows of the reversed strings; empty rows stay empty."""
    return (m - rows[1][::-1]).astype(np.int32), (m - rows[0][::-1]).astype(np.int32)

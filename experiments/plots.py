"""Small plots as SVG, written by hand: bars in groups, and overlaps of sets."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import combinations

# Told apart by most colour-blind readers (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
_HEIGHT = 240
_LEFT, _TOP, _BOTTOM = 50, 40, 60
_BAR = 22


def bars(title: str, groups: Sequence[str], series: Mapping[str, Sequence[float]], *, unit: str = "%") -> str:
    """Bars in groups, one in each group for each of the series, whose values follow the groups; zero at the bottom."""
    names = list(series)
    highest = max((value for values in series.values() for value in values), default=0.0) or 1.0
    step = max(_BAR * len(names) + 24, 7 * max(map(len, groups), default=0) + 8)
    width = max(_LEFT + step * len(groups) + 20, 60 + 130 * len(names))
    parts = [_text(width / 2, 18, title, size=14, anchor="middle"), *_axis(width, highest, unit)]
    for place, group in enumerate(groups):
        left = _LEFT + place * step + (step - _BAR * len(names)) / 2
        parts.append(_text(left + _BAR * len(names) / 2, _TOP + _HEIGHT + 16, group, anchor="middle"))
        for number, name in enumerate(names):
            value = series[name][place]
            height = _HEIGHT * value / highest
            x, y = left + number * _BAR, _TOP + _HEIGHT - height
            parts.append(_bar(x, y, height, COLOURS[number % len(COLOURS)], f"{name}, {group}: {value:.1f}"))
            parts.append(_text(x + _BAR / 2 - 1, y - 3, f"{value:.0f}", size=9, anchor="middle"))
    parts += _legend(names)
    return _svg(width, _TOP + _HEIGHT + _BOTTOM, parts)


def overlap(title: str, sets: Mapping[str, frozenset[str]]) -> str:
    """How sets overlap: for each combination, how many are in just these; empty combinations are left out."""
    found = {names: members for names, members in exclusive(sets).items() if members}
    order = sorted(found, key=lambda names: (-len(found[names]), names))
    names = list(sets)
    highest = max((len(members) for members in found.values()), default=1)
    label = 12 + 7 * max(len(f"{name} ({len(members)})") for name, members in sets.items())
    width = label + (_BAR + 14) * max(1, len(order)) + 30
    parts = [_text(width / 2, 18, title, size=14, anchor="middle")]
    for row, name in enumerate(names):
        y = _TOP + _HEIGHT + 20 + row * 18
        parts.append(_text(label - 8, y + 4, f"{name} ({len(sets[name])})", anchor="end"))
    for place, together in enumerate(order):
        x = label + place * (_BAR + 14)
        height = _HEIGHT * len(found[together]) / highest
        parts.append(
            _bar(x, _TOP + _HEIGHT - height, height, COLOURS[0], f"{', '.join(together)}: {len(found[together])}")
        )
        parts.append(
            _text(x + _BAR / 2, _TOP + _HEIGHT - height - 3, str(len(found[together])), size=10, anchor="middle")
        )
        for row, name in enumerate(names):
            fill = COLOURS[0] if name in together else "#dddddd"
            parts.append(f'<circle cx="{x + _BAR / 2:.1f}" cy="{_TOP + _HEIGHT + 20 + row * 18}" r="5" fill="{fill}"/>')
    return _svg(width, _TOP + _HEIGHT + 30 + 18 * len(names), parts)


def exclusive(sets: Mapping[str, frozenset[str]]) -> dict[tuple[str, ...], frozenset[str]]:
    """For each combination of sets, what is in all of them and in no other."""
    found = {}
    for size in range(1, len(sets) + 1):
        for together in combinations(sets, size):
            inside = frozenset.intersection(*(sets[name] for name in together))
            outside = frozenset().union(*(sets[name] for name in sets if name not in together))
            found[together] = inside - outside
    return found


def _axis(width: float, highest: float, unit: str) -> list[str]:
    parts = []
    for fraction in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _TOP + _HEIGHT * (1 - fraction)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{width - 10:.0f}" y2="{y:.1f}" stroke="#cccccc"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{highest * fraction:.3g}{unit}", size=10, anchor="end"))
    return parts


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    for number, name in enumerate(names):
        x, y = _LEFT + number * 130, _TOP + _HEIGHT + 42
        parts.append(
            f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{COLOURS[number % len(COLOURS)]}"/>'
            + _text(x + 14, y, name[:18])
        )
    return parts


def _bar(x: float, y: float, height: float, colour: str, tip: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_BAR - 2}" height="{height:.1f}" fill="{colour}">'
        f"<title>{_escape(tip)}</title></rect>"
    )


def _escape(text: str) -> str:
    """Text for XML, which has no place for control characters."""
    return html.escape("".join(letter if letter.isprintable() else "?" for letter in text))


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{_escape(text)}</text>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"

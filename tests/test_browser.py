"""The HTML report in a real browser, opened as a file: search, keys, themes, every panel, no errors, and large sessions."""

from __future__ import annotations

import base64
import dataclasses
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small import located
from test_html_report import HOSTILE, NO_SOURCE, a_localization, random_tree
from trees import compared, raising
from xlocal.tracer.calltree import CallTree, Function

from xlocal.html_report import document, make_report, page
from xlocal.question import Question, investigate, rerank

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent

MINUS = "\u2212"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium (XLOCAL_CHROMIUM, else the first on the path) driven by Playwright; skips where one is absent."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra browser)")
    program = os.environ.get("XLOCAL_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium here (XLOCAL_CHROMIUM names one)")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()


class Opened:
    """A report in the browser; `problems` collects errors, warnings and requests to anything but the file."""

    def __init__(self, browser: Any, file: Path, *, width: int = 1280, scheme: str = "light", at: str = "") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.problems: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self._check(request.url))
        self.page.goto(file.as_uri() + at)
        self.page.wait_for_selector("html[data-ready]")

    def _check(self, url: str) -> None:
        if not url.startswith("file:"):
            self.problems.append(f"asked for {url}")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()

    def tab(self) -> str:
        return self.page.locator("[role=tab][aria-selected=true]").get_attribute("id")

    def suspect(self) -> str:
        return self.text("#suspects [aria-selected=true] .name")

    def row(self) -> str:
        return self.text(".row[aria-selected=true]")

    def overflows(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth > innerWidth")


MODULE = '''
    """A shop."""

    class Cart:
        def __init__(self):
            self.items = []

        def add(self, name, price):
            self.items.append((name, price))

        def total(self, code=""):
            amount = sum(price for _, price in self.items)
            for turn in range(4):
                helper(turn)
            if code:
                amount = discount(amount, code)
            return check(amount)

    def helper(turn):
        return turn

    def discount(amount, code):
        rate = parse(code)
        return amount - amount * rate

    def parse(code):
        return int(code[4:])

    def check(amount):
        if amount < 0:
            raise ValueError("negative")
        return amount
'''
SCRIPT = "import lib\ncart = lib.Cart()\ncart.add('tea', 30)\nprint(cart.total({code!r}))\n"


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    scripts = SCRIPT.format(code="SAVE30"), [SCRIPT.format(code="SAVE0"), SCRIPT.format(code="")]
    located(folder, MODULE, *scripts, issue="total() of a Cart with a discount code is negative")
    return folder / "session"


@pytest.fixture(scope="module")
def report(session) -> Path:
    file = session.parent / "report.html"
    file.write_text(make_report(session, rerank(session), budget=10), "utf-8")
    return file


@pytest.fixture
def opened(browser, report) -> Iterator[Opened]:
    shown = Opened(browser, report)
    yield shown
    assert shown.problems == []
    shown.page.close()


def written(folder: Path, *pairs: Any, name: str = "f", text: str = "runs once") -> Path:
    """A page of made-up runs."""
    file = folder / "made.html"
    file.write_text(page(document(a_localization(name, text=text), NO_SOURCE, pairs)), "utf-8")
    return file


# --- suspects and why ---------------------------------------------------------------------------------------------------


def test_it_opens_at_the_first_suspect_with_its_evidence_source_and_values(opened, session):
    first = rerank(session).suspects[0].suspect
    assert opened.tab() == "tab-why"
    assert opened.suspect() == first.function.qualname
    assert opened.count(".evidence dt") == len(first.evidence)
    assert opened.count(".source tbody tr") > 2


def test_j_and_k_walk_the_suspects_and_enter_opens_one(opened, session):
    names = [ranked.suspect.function.qualname for ranked in rerank(session).suspects]
    opened.press("j", "j")
    assert opened.suspect() == names[2]
    assert opened.text("#why h2") == names[2]
    opened.press("k")
    assert opened.suspect() == names[1]
    opened.press("ArrowUp", "ArrowUp", "ArrowUp")
    assert opened.suspect() == names[0]
    opened.press("2", "1", "Enter")
    assert opened.page.evaluate("document.activeElement.id") == "why"


def test_the_filter_narrows_the_suspects(opened):
    opened.press("/")
    opened.page.keyboard.type("discount")
    assert opened.count("#suspects [role=option]") >= 1
    found = opened.page.locator("#suspects [role=option]").all_inner_texts()
    assert all("discount" in text for text in found)
    assert opened.suspect() in found[0]
    assert " of " in opened.text("#count")
    opened.press("Escape")
    assert opened.page.locator("#filter").input_value() == ""
    opened.press("/")
    opened.page.keyboard.type("nothing is called so")
    assert opened.text("#suspects") == "None fits."


def test_lines_and_values_that_differ_are_marked(opened):
    opened.page.locator("#suspects .name", has_text="parse").first.click()
    assert opened.text(".values .differ .here") == "'SAVE30'"
    assert opened.text(".values .differ .there") == "'SAVE0'"
    opened.page.locator("#suspects .name", has_text="check").first.click()
    assert "raise ValueError" in opened.text(".source tr.bad")
    opened.page.locator("#suspects .name", has_text="Cart.total").first.click()
    opened.page.locator(".card-head button", has_text="reference-2").first.click()
    assert "amount = discount" in opened.text(".source tr.bad")


def test_values_that_only_look_alike_are_marked(browser, tmp_path):
    found = a_localization()
    [view] = found.comparison.views
    [(bad, _)] = view.pairs
    told = dataclasses.replace(
        bad, given=(("x", "1"), ("y", "2"), *((f"z{n}", "0") for n in range(9))), hidden=("y", "outcome")
    )
    other = dataclasses.replace(told, hidden=())
    views = (dataclasses.replace(view, pairs=((told, other),)),)
    found = dataclasses.replace(found, comparison=dataclasses.replace(found.comparison, views=views))
    file = tmp_path / "hidden.html"
    file.write_text(page(document(found, NO_SOURCE, ())), "utf-8")
    shown = Opened(browser, file)
    rows = shown.page.locator(".values tbody tr").all_inner_texts()
    assert rows[0].split("\t") == ["y", "2", "differs beyond what is shown"]
    assert rows[-1].split("\t")[-1] == "differs beyond what is shown"
    assert shown.count(".values tr.differ") == 2
    assert shown.problems == []
    shown.page.close()


def test_the_source_says_of_which_calls_its_numbers_are(opened):
    opened.page.locator("#suspects .name", has_text="check").first.click()
    told = "How often each line ran in the calls that were seen: all 1 in the buggy run, all 1 in reference-1"
    assert opened.page.get_by_role("heading", name=told).is_visible()


def test_a_function_of_one_run_tells_its_calls(browser, tmp_path):
    pair = compared([["top", ["f"], ["f"]], ["f", ["g"]]], [["top"]])
    found = a_localization()
    suspect = dataclasses.replace(found.suspects[0].suspect, function=Function("m.py", "f"), calls=(3, 0))
    found = dataclasses.replace(
        found,
        suspects=(dataclasses.replace(found.suspects[0], suspect=suspect),),
        comparison=dataclasses.replace(found.comparison, views=()),
    )
    file = tmp_path / "one.html"
    file.write_text(page(document(found, NO_SOURCE, [pair])), "utf-8")
    shown = Opened(browser, file)
    assert "only the buggy run calls it" in shown.text("#why")
    assert shown.page.locator(".around li").all_inner_texts() == [
        "3 times called in the buggy run, by top (2), the script itself (1).",
        "It calls g (1).",
        "Every call returned.",
    ]
    assert shown.problems == []
    shown.page.close()


# --- the tree -----------------------------------------------------------------------------------------------------------


def test_the_tree_opens_at_the_differences_alone(opened):
    opened.press("2")
    assert "make the same calls" in opened.text("#tree .told")
    assert "~" in opened.row() or MINUS in opened.row()
    alike = opened.page.locator(".row.group[aria-expanded=true]")
    assert alike.count() == 0
    assert opened.count(".row.group[aria-expanded=false]") > 0


def test_keys_walk_open_and_close_the_tree(opened):
    opened.press("2", "Home")
    first = opened.row()
    opened.press("j")
    assert opened.row() != first
    opened.press("k")
    assert opened.row() == first
    group = opened.page.locator(".row.group[aria-expanded=false]").first
    group.click()
    rows = opened.count(".row")
    opened.press("ArrowLeft")
    assert opened.count(".row") < rows
    opened.press("ArrowRight")
    assert opened.count(".row") == rows
    opened.press("ArrowRight")
    inner = int(opened.page.locator(".row[aria-selected=true]").get_attribute("aria-level"))
    opened.press("ArrowLeft")
    assert int(opened.page.locator(".row[aria-selected=true]").get_attribute("aria-level")) == inner - 1


def test_n_and_p_walk_the_differences(opened):
    opened.press("2", "Home", "n")
    kinds = opened.page.locator(".row[aria-selected=true] .sign").first.inner_text()
    assert kinds in (MINUS, "+", "~")
    first = opened.row()
    opened.press("n")
    second = opened.row()
    assert second != first
    opened.press("p")
    assert opened.row() == first


def test_search_finds_what_is_folded_away(opened):
    opened.press("2", "/")
    opened.page.keyboard.type("helper")
    assert "helper" in opened.row()
    assert opened.text("#tree .toolbar .soft").endswith("found")
    assert opened.count(".row.hit") >= 1
    opened.press("Enter", "Escape")
    assert opened.page.evaluate("document.activeElement.className").startswith("tree")


def test_enter_on_a_call_opens_the_suspect(opened):
    opened.press("2", "/")
    opened.page.keyboard.type("check")
    opened.press("Escape", "Enter")
    assert opened.tab() == "tab-why"
    assert opened.text("#why h2") == "check"
    opened.page.locator("button", has_text="Show in the tree").click()
    assert opened.tab() == "tab-tree"
    assert "check" in opened.row()


def test_the_second_reference_has_a_tree_of_its_own(opened):
    opened.press("2")
    opened.page.locator("#tree select").select_option("1")
    assert "buggy against reference-2" in opened.text("#tree .told")
    assert opened.text(".tree-head span:last-child") == "reference-2"
    assert opened.page.locator(".row .cell.bad .name", has_text="discount").count() == 1


def test_one_column_and_two(opened):
    opened.press("2")
    assert opened.page.locator(".row:not(.group)").first.locator(".cell").count() == 2
    opened.page.locator("button", has_text="One column").click()
    assert opened.page.locator(".row:not(.group)").first.locator(".cell").count() == 1


# --- flame, runs, keys, theme ---------------------------------------------------------------------------------------------


def test_the_flame_view_zooms_by_mouse_and_keys(opened):
    opened.press("3")
    frames = opened.count(".flame button")
    assert frames > 5
    outside = "(all) => all.filter((each) => each.getBoundingClientRect().right > all[0].getBoundingClientRect().right + 1).length"
    assert opened.page.eval_on_selector_all(".flame button", outside) == 0
    opened.page.locator(".flame button", has_text="Cart.total").first.click()
    assert "Cart.total" in opened.text("#flame .detail")
    assert opened.count(".flame button.up") == 1
    opened.press("ArrowDown")
    assert "Cart.total" not in opened.text("#flame .detail code")
    opened.press("Escape")
    assert opened.count(".flame button") == frames
    opened.press("/")
    opened.page.keyboard.type("check")
    assert opened.count(".flame button:not(.faint)") >= 1
    assert opened.count(".flame button.faint") > 1


def test_the_pointer_tells_of_a_frame_and_leaves_the_place_of_the_keys(opened):
    opened.press("3")
    opened.page.locator(".flame button", has_text="Cart.total").first.click()
    opened.press("ArrowDown")
    below = opened.text("#flame .detail code")
    opened.page.locator(".flame button").first.hover()
    assert opened.text("#flame .detail code") not in (below, "lib.py::Cart.total")
    opened.page.set_viewport_size({"width": 1100, "height": 800})
    opened.page.wait_for_function("document.activeElement.closest('.flame') !== null")
    opened.press("ArrowUp")
    assert opened.text("#flame .detail code") == "lib.py::Cart.total"


def test_the_flame_view_says_where_the_difference_is_a_bound(browser, tmp_path):
    exact, bound = (
        compared(random_tree(900, seed=1, changed=0.3), random_tree(900, seed=1), budget=budget) for budget in (1e9, 0)
    )
    assert not bound.difference.exact
    for pair in (exact, bound):
        shown = Opened(browser, written(tmp_path, pair), at="#flame=1")
        assert shown.page.locator(".doubt").is_visible() is not pair.difference.exact
        shown.page.close()


def test_the_runs_are_read_without_scrolling_sideways(browser, report):
    shown = Opened(browser, report, width=420, at="#runs=1")
    assert shown.page.evaluate(
        "document.querySelector('.runs').parentElement.scrollWidth <= document.querySelector('.runs').parentElement.clientWidth"
    )
    cells = shown.page.locator(".runs tbody tr").first.locator("td")
    assert cells.nth(3).evaluate("(cell) => getComputedStyle(cell, '::before').content") in (
        '"calls"',
        "attr(data-title)",
    )
    right = cells.last.bounding_box()
    assert right["x"] + right["width"] <= 420
    assert not shown.overflows()
    shown.page.close()


def test_runs_limits_and_noise_are_told(opened):
    opened.press("4")
    text = opened.text("#runs")
    for told in ("buggy", "reference-2", "2 runs alike", "Noise", "Limits of this file", "total() of a Cart"):
        assert told in text


def test_help_lists_the_keys_and_closes(opened):
    opened.press("?")
    assert opened.page.locator("dialog[open]").count() == 1
    assert "next, previous difference" in opened.text("dialog")
    opened.press("Escape")
    assert opened.page.locator("dialog[open]").count() == 0


def test_the_theme_follows_the_system_and_the_key(browser, report):
    for scheme, other in (("light", "dark"), ("dark", "light")):
        shown = Opened(browser, report, scheme=scheme)
        theme = "document.documentElement.dataset.theme"
        assert shown.page.evaluate(theme) == scheme
        shown.press("t")
        assert shown.page.evaluate(theme) == other
        shown.page.reload()
        shown.page.wait_for_selector("html[data-ready]")
        assert shown.page.evaluate(theme) == other
        shown.page.evaluate("localStorage.clear()")
        assert shown.problems == []
        shown.page.close()


def test_the_address_keeps_the_place(opened, browser, report):
    opened.press("j", "2")
    assert opened.page.evaluate("location.hash") == "#tree=2"
    again = Opened(browser, report, at="#runs=2")
    assert again.tab() == "tab-runs"
    assert again.text("#suspects [aria-selected=true] .rank") == "2"
    again.page.close()


# --- widths, contrast, hostility, size ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1920])
def test_nothing_sticks_out_at_any_width(browser, report, width):
    shown = Opened(browser, report, width=width)
    for key in "1234":
        shown.press(key)
        shown.page.wait_for_timeout(50)
        assert not shown.overflows(), f"tab {key}"
    assert shown.problems == []
    shown.page.close()


CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => { const [r, g, b] = rgb.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (element) => { for (; element; element = element.parentElement) {
    const colour = parts(getComputedStyle(element).backgroundColor); if (colour.length < 4 || colour[3] === 1) return colour.slice(0, 3); }
    return [255, 255, 255]; };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.getClientRects().length || element.closest(".hidden, .skip, :disabled, script, style, noscript")) continue;
    const style = getComputedStyle(element), a = light(parts(style.color).slice(0, 3)), b = light(behind(element));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${element.className || element.tagName} ${ratio.toFixed(2)} ${element.textContent.slice(0, 30)}`);
  }
  return low;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(browser, report, scheme):
    shown = Opened(browser, report, scheme=scheme)
    for key in "1234":
        shown.press(key)
        assert shown.page.evaluate(CONTRAST) == [], f"tab {key}"
    shown.page.close()


def test_every_control_has_a_name_and_a_role(opened):
    for key in "1234":
        opened.press(key)
        nameless = opened.page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, [role=tree], [role=listbox], [role=treeitem]")]
            .filter((each) => each.getClientRects().length && !each.getAttribute("aria-label") && !each.textContent.trim()).length"""
        )
        assert nameless == 0
        broken = opened.page.evaluate(
            """() => [...document.querySelectorAll("[aria-activedescendant], [aria-controls], [aria-labelledby]")]
            .flatMap((each) => ["aria-activedescendant", "aria-controls", "aria-labelledby"].map((name) => each.getAttribute(name)))
            .filter((id) => id && !document.getElementById(id))"""
        )
        assert broken == []


def test_hostile_names_do_nothing_but_show(browser, tmp_path):
    pair = compared([[HOSTILE, ["g"], [f"{HOSTILE}2"]]], [[HOSTILE]])
    shown = Opened(browser, written(tmp_path, pair, name=HOSTILE, text=HOSTILE))
    shown.page.on("dialog", lambda dialog: shown.problems.append("a dialog opened"))
    for key in "1234":
        shown.press(key)
    shown.press("2", "/")
    shown.page.keyboard.type("<script>")
    assert "alert(1)" in shown.row()
    assert shown.count("img") == 0
    assert shown.count("script") == 2
    assert shown.problems == []
    shown.page.close()


def test_the_pictures_of_the_docs_can_be_drawn_anew(browser, tmp_path, monkeypatch):
    """Each view once; the packed pictures are as the browser gave them, and those of the docs are small and shown."""
    specification = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "make_screenshots.py")
    program = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(program)
    monkeypatch.chdir(tmp_path)
    page = program.make_page(tmp_path)
    names = []
    for name, picture in program.pictures(browser, page):
        names.append(f"{name}.png")
        assert 20_000 < len(picture) < program.MOST_BYTES
        shown = browser.new_page()
        shown.set_content(f"<img src='data:image/png;base64,{base64.b64encode(picture).decode()}'>")
        assert (
            shown.evaluate(
                "(async () => { const image = document.images[0]; await image.decode(); return image.naturalWidth; })()"
            )
            == 1475
        )
        shown.close()
    kept = {file.name: file.stat().st_size for file in program.IMAGES.glob("*.png")}
    text = (ROOT / "docs" / "reports.md").read_text("utf-8")
    assert sorted(kept) == sorted(names)
    assert all(f"images/{name}" in text and size < program.MOST_BYTES for name, size in kept.items())


def test_no_suspects_and_equal_trees(browser, tmp_path):
    file = tmp_path / "empty.html"
    found = dataclasses.replace(a_localization(), suspects=())
    file.write_text(page(document(found, NO_SOURCE, [compared([["f"]], [["f"]])])), "utf-8")
    shown = Opened(browser, file)
    assert shown.text("#why h2") == "No suspects"
    shown.press("j", "2")
    assert "equal" in shown.text("#tree .told")
    shown.press("j", "n", "ArrowLeft", "ArrowRight", "Enter", "3", "j", "4")
    assert shown.problems == []
    shown.page.close()


def test_a_deep_recursion_is_shown_with_its_depth(browser, tmp_path):
    nested: list = ["leaf", ["odd"]]
    for level in range(300):
        nested = [f"f{level % 3}", [f"side{level % 5}"], nested]
    inner: list = ["leaf"]
    for level in range(300):
        inner = [f"f{level % 3}", [f"side{level % 5}"], inner]
    shown = Opened(browser, written(tmp_path, compared([nested], [inner])), at="#tree=1")
    assert "odd" in shown.row()
    assert shown.page.locator(".row[aria-selected=true] .deep").first.inner_text() == "301"
    assert not shown.overflows()
    assert shown.problems == []
    shown.page.close()


def test_endings_stand_on_their_own_side(browser, tmp_path):
    nested = [["f", ["g"]]]
    shown = Opened(
        browser, written(tmp_path, compared(raising(nested, "g"), CallTree.from_nested(nested))), at="#tree=1"
    )
    cells = shown.page.locator(".row[aria-selected=true] .cell").all_inner_texts()
    assert "raised Odd" in cells[0]
    assert "returned" in cells[1]
    shown.page.close()


def quick(shown: Opened, name: str) -> None:
    """The page answers: keys, search and the end of the tree; only what is in sight is in the document."""
    shown.press("2", "End", "Home", "n", "n", "n")
    assert shown.count(".row") < 120
    shown.press("/")
    shown.page.keyboard.type(name)
    assert name in shown.row()
    shown.press("Escape", "3")
    assert shown.count(".flame button") > 1
    assert shown.problems == []


def test_trees_with_many_differences_stay_quick(browser, tmp_path):
    pair = compared(random_tree(40_000, seed=5, changed=0.3), random_tree(40_000, seed=5), budget=0)
    file = written(tmp_path, pair)
    assert 300_000 < file.stat().st_size < 4_000_000
    quick(Opened(browser, file), "f1")


@pytest.mark.parametrize("width", [320, 420, 700, 860, 1000])
def test_a_narrow_window_draws_only_the_lines_in_sight(browser, tmp_path, width):
    pair = compared(random_tree(40_000, seed=5, changed=0.3), random_tree(40_000, seed=5), budget=0)
    file = written(tmp_path, pair)
    shown = Opened(browser, file, width=width)
    shown.press("2")
    lines = shown.page.locator(".rows").evaluate("(rows) => rows.offsetHeight / 26")
    assert lines > 5000
    assert shown.count("*") < 2500
    took = shown.page.evaluate(
        """() => { const box = document.querySelector(".tree"), began = performance.now();
        for (const share of [0.5, 1, 0.2]) { box.scrollTop = share * box.scrollHeight; box.dispatchEvent(new Event("scroll")); void box.offsetHeight; }
        return performance.now() - began; }"""
    )
    assert took < 2000
    shown.press("End")
    assert 5 < shown.count(".row") < 120
    assert shown.page.locator(".row[aria-selected=true]").bounding_box()["y"] < 800
    assert not shown.overflows()
    if width > 400:
        quick(shown, "f1")
    shown.page.close()


def walk_module() -> str:
    """200 functions that call one another at random, alike in every run."""
    lines = ["FUNCTIONS = []"]
    for number in range(200):
        lines += [
            f"def f{number}(draw, depth):",
            "    for _ in range(draw(4) if depth else 0):",
            "        FUNCTIONS[draw(200)](draw, depth - 1)",
            f"FUNCTIONS.append(f{number})",
        ]
    lines += [
        "def broken():",
        "    raise ValueError('odd')",
        "def extra():",
        "    pass",
        "def drive(turns, odd):",
        "    import random",
        "    draw = random.Random(1).randrange",
        "    for turn in range(turns):",
        "        FUNCTIONS[turn % 200](draw, 8)",
        "        if odd and turn % 97 == 0:",
        "            extra()",
        "    if odd:",
        "        broken()",
    ]
    return "\n".join(lines) + "\n"


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("turns", "least", "most"),
    [pytest.param(300, 1.5e6, 3e6, id="2MB"), pytest.param(68_000, 40e6, 70e6, id="50MB", marks=pytest.mark.slow)],
)
def test_large_sessions_become_small_pages_that_answer(browser, tmp_path, turns, least, most):
    (tmp_path / "walk.py").write_text(walk_module())
    for name, odd in (("bad.py", True), ("good.py", False)):
        (tmp_path / name).write_text(f"import walk\nwalk.drive({turns}, {odd})\n")
    question = Question(
        buggy=str(tmp_path / "bad.py"),
        references=(str(tmp_path / "good.py"),),
        scope=(str(tmp_path / "walk.py"),),
        cwd=tmp_path,
        budget=5,
    )
    folder = tmp_path / "session"
    investigate(question, session=folder)
    assert least < size_of(folder) < most
    text = make_report(folder, rerank(folder), budget=5)
    assert len(text) < 5_000_000
    file = tmp_path / "report.html"
    file.write_text(text, "utf-8")
    shown = Opened(browser, file)
    quick(shown, "extra")
    assert shown.count(".flame button.bad") >= 1

"""Draw docs/images anew: the report of examples/timesheet in Chromium, light and dark.

Needs the extra `browser` and a Chromium on the path (XLOCAL_CHROMIUM names another).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xlocal.html_report import make_report
from xlocal.question import Question, investigate

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1180, "height": 620}
SCALE = 1.25
MOST_BYTES = 200_000
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# The tab of each view, by its key.
VIEWS = {"suspects": "1", "difference": "2", "flame": "3"}
SHOWN = "in_minutes"  # the suspect that is chosen
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def make_page(folder: Path) -> Path:
    """The report of the example, made from a copy so that it names no folder of yours."""
    example = folder / "timesheet"
    shutil.copytree(ROOT / "examples" / "timesheet", example, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    os.chdir(example)
    issue = (example / "issue.txt").read_text("utf-8")
    question = Question(buggy="buggy.py", references=("reference.py",), cwd=example, issue=issue)
    session = folder / "session"
    found = investigate(question, session=session)
    file = folder / "report.html"
    file.write_text(make_report(session, found, budget=question.budget), "utf-8")
    return file


def pictures(browser: Any, page: Path) -> Iterator[tuple[str, bytes]]:
    """The name and the PNG of each view in each theme."""
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport=SIZE, device_scale_factor=SCALE, color_scheme=scheme)
        for name, key in VIEWS.items():
            tab = context.new_page()
            tab.goto(page.as_uri())
            tab.wait_for_selector("html[data-ready]")
            tab.locator("#suspects .name", has_text=SHOWN).click()
            tab.keyboard.press(key)
            tab.evaluate("document.activeElement.blur()")
            tab.wait_for_timeout(300)  # until the bars have grown
            yield f"report-{name}-{scheme}", smaller(tab.screenshot(animations="disabled"))
            tab.close()
        context.close()


def smaller(png: bytes) -> bytes:
    """The same picture, packed as tightly as zlib can; browsers pack for speed. Colour profiles and the like go."""
    header, pixels = b"", b""
    at = len(_SIGNATURE)
    while at < len(png):
        size, kind = int.from_bytes(png[at : at + 4]), png[at + 4 : at + 8]
        content = png[at + 8 : at + 8 + size]
        header = content if kind == b"IHDR" else header
        pixels += content if kind == b"IDAT" else b""
        at += size + 12
    packed = zlib.compress(zlib.decompress(pixels), 9)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return len(content).to_bytes(4) + kind + content + check.to_bytes(4)


def main(images: Path = IMAGES) -> int:
    """Write the pictures; 1 where a picture is too large or no Chromium is here."""
    from playwright.sync_api import sync_playwright

    program = os.environ.get("XLOCAL_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        print("no Chromium here (XLOCAL_CHROMIUM names one)", file=sys.stderr)
        return 1
    images.mkdir(exist_ok=True)
    large = False
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = make_page(Path(folder))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, picture in pictures(browser, page):
            (images / f"{name}.png").write_bytes(picture)
            print(f"{name}.png  {len(picture):,} bytes")
            large |= len(picture) > MOST_BYTES
        browser.close()
    if large:
        print(f"a picture is larger than {MOST_BYTES:,} bytes", file=sys.stderr)
    return int(large)


if __name__ == "__main__":
    sys.exit(main())

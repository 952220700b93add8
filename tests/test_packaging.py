"""The files around the code: what the Dockerfile copies exists, the Makefile explains each target, docs lead somewhere."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from xlocal.ranking.rank import KIND_RATES

ROOT = Path(__file__).resolve().parent.parent


def copied_into_the_image() -> list[str]:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [source for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]]


def test_every_source_that_the_dockerfile_copies_exists_and_is_not_ignored():
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = copied_into_the_image()
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), source


def test_the_dockerfile_copies_every_folder_that_is_packaged():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = settings["tool"]["setuptools"]["package-dir"].values()
    assert {folder.split("/")[0] for folder in folders} <= set(copied_into_the_image())


def test_the_image_does_not_run_as_root():
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER (?!root)\w+$", text, re.MULTILINE)


def test_make_alone_lists_every_target_with_its_help():
    targets = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    listed = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in listed.splitlines() if line.startswith("  make ")} == set(targets)


@pytest.mark.parametrize(
    "document", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")), ids=lambda p: p.name
)
def test_links_inside_the_checkout_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()) + re.findall(
        r'(?:src|srcset)="([^"]+)"', document.read_text()
    ):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_file_beside_the_modules_is_packaged():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    missing = []
    for package, folder in settings["package-dir"].items():
        patterns = settings["package-data"].get(package, [])
        listed = subprocess.run(
            ["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        beside = [Path(name).relative_to(folder) for name in listed.splitlines()]
        data = [path for path in beside if path.suffix != ".py" or len(path.parts) > 1]
        missing += [f"{folder}/{path}" for path in data if not any(path.match(pattern) for pattern in patterns)]
    assert missing == []


def test_every_kind_of_evidence_is_explained():
    explained = set(re.findall(r"`([a-z-]+)`", (ROOT / "docs" / "how_it_works.md").read_text()))
    assert set(KIND_RATES) <= explained

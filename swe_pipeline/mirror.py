"""A container's work tree, mirrored on the host: agents edit files here, and commands run over there."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from xlocal.swe_pipeline.checkout import Checkout, Run
from xlocal.swe_pipeline.clone import clone, git
from xlocal.swe_pipeline.issue import Issue
from xlocal.swe_pipeline.sandbox import disarm
from xlocal.tracer.errors import CheckoutError

_SECONDS = 120.0
_SCRATCH = ".xlocal"
# A command line holds at most 128 KiB in one word.
_PIECE = 90_000
_PACK = (
    "import json,glob,os;print(json.dumps({os.path.basename(p):open(p,encoding='utf-8',errors='replace').read() "
    f"for p in glob.glob('{_SCRATCH}/*.py') if os.path.isfile(p) and not os.path.islink(p)}}))"
)


class Mirrored:
    """Another checkout (a container) with a copy of its work tree in `folder/repo` on this machine.

    Before a command, the container gets what changed here since the base commit; after it, the copy gets what changed
    there. Only text travels, through the checkout's own methods, so that the engine may be on another machine.
    """

    def __init__(self, inner: Checkout, *, folder: Path, mirrors: Path | None = None) -> None:
        self.inner = inner
        self.tree = folder / "repo"
        self._mirrors = mirrors

    @property
    def issue(self) -> Issue:
        """The issue of the checkout."""
        return self.inner.issue

    @property
    def repository(self) -> str:
        """The work tree, where commands see it."""
        return self.inner.repository

    @property
    def python(self) -> str:
        """The interpreter, where commands see it."""
        return self.inner.python

    def prepare(self) -> bool:
        """Prepare the container, and copy the base commit."""
        made = self.inner.prepare()
        if not (self.tree / ".git").is_dir():
            clone(self.issue, self.tree, mirrors=self._mirrors)
            with (self.tree / ".git" / "info" / "exclude").open("a", encoding="utf-8") as file:
                file.write(f"/{_SCRATCH}/\n")
            made = True
        # Over there, too, scripts are no part of what changed.
        self._there(f"mkdir -p .git/info && echo /{_SCRATCH}/ >> .git/info/exclude")
        return made

    def run(
        self, command: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Run:
        """Run a command over there, on the files as they are here."""
        self._send()
        run = self.inner.run(command, timeout=timeout, env=env, cwd=cwd)
        self._fetch()
        return run

    def _send(self) -> None:
        self.inner.reset()
        self.inner.apply(self.diff())
        self._there(f"rm -rf {_SCRATCH} && mkdir -p {_SCRATCH}")
        for path in sorted((self.tree / _SCRATCH).glob("*")):
            if path.is_file() and not path.is_symlink():
                data = base64.b64encode(path.read_bytes()).decode("ascii")
                for start in range(0, max(len(data), 1), _PIECE):
                    piece = data[start : start + _PIECE]
                    self._there(f"printf %s '{piece}' | base64 -d >> '{_SCRATCH}/{path.name}'")

    def _fetch(self) -> None:
        git(self.tree, "checkout", "--quiet", "--force", self.issue.base_commit)
        git(self.tree, "clean", "--quiet", "-d", "--force", "--force")
        changes = self.inner.diff()
        if changes.strip():
            git(self.tree, "apply", "--whitespace=nowarn", "-", stdin=changes)
        run = self.inner.run([self.python, "-c", _PACK], timeout=_SECONDS)
        try:
            texts = json.loads(run.log.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise CheckoutError(f"{self.issue.id}: the scratch folder cannot be read: {run.log[-200:]}") from None
        folder = self.tree / _SCRATCH
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            # A base name of the container's choosing, never a path.
            (folder / Path(name).name).write_text(text, "utf-8", "surrogateescape")

    def _there(self, command: str) -> None:
        run = self.inner.run(["sh", "-c", command], timeout=_SECONDS)
        if run.exit_status != 0:
            raise CheckoutError(f"{self.issue.id}: files cannot be sent: {run.log.strip()[-200:]}")

    def apply(self, patch: str) -> None:
        """Apply a diff to the copy; the container gets it before the next command."""
        if patch.strip():
            self.disarm()
            text = patch if patch.endswith("\n") else patch + "\n"
            git(self.tree, "apply", "--whitespace=nowarn", "-", stdin=text)

    def diff(self) -> str:
        """What the copy changed since the base commit."""
        self.disarm()
        with tempfile.TemporaryDirectory(prefix="xlocal-") as scratch:
            index = {"GIT_INDEX_FILE": f"{scratch}/index"}
            git(self.tree, "read-tree", self.issue.base_commit, env=index)
            git(self.tree, "add", "--all", env=index)
            base = self.issue.base_commit
            return git(self.tree, "diff", "--cached", "--binary", "--no-ext-diff", base, env=index)

    def reset(self) -> None:
        """Put both work trees back to the base commit."""
        self.inner.reset()
        self.disarm()
        git(self.tree, "checkout", "--quiet", "--force", self.issue.base_commit)
        git(self.tree, "clean", "--quiet", "-d", "--force", "--force")

    def close(self) -> None:
        """End the container; the copy stays."""
        self.inner.close()

    def disarm(self) -> None:
        """Delete repositories inside the copy: their settings could make this machine's git start programs."""
        disarm(self.tree)

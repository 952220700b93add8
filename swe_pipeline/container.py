"""Checkouts in containers: the benchmark's official images, on a local or remote Docker engine."""

from __future__ import annotations

import contextlib
import io
import shlex
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xlocal.swe_pipeline.checkout import Run
from xlocal.swe_pipeline.issue import Issue
from xlocal.swe_pipeline.patches import check_paths
from xlocal.swe_pipeline.specs import Spec, spec_of
from xlocal.tracer.errors import CheckoutError, PatchError

# As the official images are laid out.
REGISTRY_OWNER = "swebench"
REPOSITORY = "/testbed"
ENVIRONMENT = "/opt/miniconda3/envs/testbed"
_PATH = f"{ENVIRONMENT}/bin:/opt/miniconda3/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SCRATCH = "/tmp"
_GRACE_SECONDS = 5
_OURS_SECONDS = 600.0
_TIMED_OUT = (124, 137)
_LOG_LIMIT = 64 << 20
# Everything that names or keeps a commit other than the current branch's, then the objects themselves; git never drops
# those in packs that are marked as kept or as a promisor's.
_FORGET_LATER = """set -e
git checkout --quiet -B base
git remote | xargs -r -n1 git remote remove
git for-each-ref --format='%(refname)' | grep -v '^refs/heads/base$' | grep -v '^refs/tags/' \
  | xargs -r -n1 git update-ref -d
git tag --no-merged base | xargs -r git tag -d > /dev/null
git reflog expire --expire=now --all
rm -f .git/FETCH_HEAD .git/ORIG_HEAD
git config --unset extensions.partialClone || true
git repack -a -d --quiet
rm -f .git/objects/pack/*.keep .git/objects/pack/*.promisor .git/objects/info/alternates
git gc --quiet --prune=now
kept=$(git cat-file --batch-all-objects --batch-check='%(objecttype)' | grep -c '^commit')
if [ "$kept" != "$(git rev-list --count --all)" ]; then
  echo 'commits that no branch or tag reaches are still there' >&2
  exit 1
fi
"""
# Unlike a plain sleep, it reaps what ends, and survives when all processes but the first are killed.
_FIRST_PROCESS = ["sh", "-c", "while :; do sleep 3600 & wait $!; done"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one container may use: bytes as Docker writes them (`4g`), processors, processes."""

    memory: str = "4g"
    processors: float = 2.0
    processes: int = 1024


def image_name(name: str, *, architecture: str = "x86_64") -> str:
    """The official image of an instance; `__` may not stand in an image's name."""
    return f"{REGISTRY_OWNER}/sweb.eval.{architecture}.{name.replace('__', '_1776_')}:latest".lower()


class DockerCheckout:
    """A container of an instance's official image, without network and with limits.

    `engine` is a `docker.DockerClient`; by default the one that DOCKER_HOST names, which may be another machine:
    nothing is mounted, files travel over the connection. `close` removes the container.
    """

    def __init__(
        self,
        issue: Issue,
        *,
        engine: Any = None,
        image: str | None = None,
        limits: Limits | None = None,
        network: bool = False,
    ) -> None:
        self.issue = issue
        self.image = image or image_name(issue.id)
        self.repository = REPOSITORY
        self.python = f"{ENVIRONMENT}/bin/python"
        self.spec: Spec = spec_of(issue)
        self._limits = limits or Limits()
        self._network = network
        self._engine = engine
        self._own_engine: Any = None
        self._container: Any = None
        self._base = ""

    def prepare(self) -> bool:
        """Start a container, unless one runs already; its history ends with the commit that the image stands at."""
        if self._container is not None:
            return False
        with _engine_errors(self.image):
            if self._engine is None:
                self._own_engine = _engine_of_environment()
            engine = self._engine or self._own_engine
            self._container = engine.containers.run(
                _present(engine, self.image),
                _FIRST_PROCESS,
                entrypoint="",
                detach=True,
                working_dir=REPOSITORY,
                network_disabled=not self._network,
                mem_limit=self._limits.memory,
                memswap_limit=self._limits.memory,
                nano_cpus=int(self._limits.processors * 1e9),
                pids_limit=self._limits.processes,
                cap_drop=["ALL"],
                # git and patch, run as root, write files that belong to others.
                cap_add=["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"],
                security_opt=["no-new-privileges"],
                labels={"xlocal.instance": self.issue.id},
            )
        try:
            self._git("config", "--global", "--add", "safe.directory", REPOSITORY)
            # The images commit what their installation changed on top of the base commit.
            self._git("merge-base", "--is-ancestor", self.issue.base_commit, "HEAD")
            self._checked(["sh", "-c", _FORGET_LATER], "later history cannot be removed")
            self._base = self._git("rev-parse", "HEAD").strip()
        except BaseException:
            self.close()
            raise
        return True

    def close(self) -> None:
        """Remove the container and all that ran in it."""
        container, self._container = self._container, None
        engine, self._own_engine = self._own_engine, None
        with _engine_errors(self.image):
            try:
                if container is not None:
                    container.remove(force=True)
            finally:
                if engine is not None:
                    engine.close()

    def __enter__(self) -> DockerCheckout:
        self.prepare()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, command: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Run:
        """Run a command in the container; `python` is the environment's. Afterwards nothing that it started is left."""
        merged = f"exec {shlex.join(command)} 2>&1"
        variables = {**dict(self.spec.env), **(env or {})}
        # Its own process group gets SIGTERM, then SIGKILL; what left the group is killed below.
        guarded = ["timeout", f"--kill-after={_GRACE_SECONDS}", f"{timeout:g}", "sh", "-c", merged]
        started = time.monotonic()
        code, out, _ = self._execute(guarded, env=variables, cwd=cwd)
        seconds = time.monotonic() - started
        self._execute(["sh", "-c", "kill -9 -1"])
        timed_out = code in _TIMED_OUT and seconds >= timeout
        ended = timed_out or code > 128
        return Run(None if ended else code, timed_out, seconds, out[-_LOG_LIMIT:].decode("utf-8", "replace"))

    def apply(self, patch: str) -> None:
        """Apply by git, and when it refuses by patch, which tolerates shifted and fuzzy surroundings."""
        check_paths(patch)
        if not patch.strip():
            return
        file = self._send("xlocal.patch", patch if patch.endswith("\n") else patch + "\n")
        code, _, said = self._execute(["git", "apply", "--whitespace=nowarn", file])
        if code:
            fuzzy = ["patch", "--batch", "--fuzz=5", "-p1", "--no-backup-if-mismatch", "--reject-file=-", "-i", file]
            if self._execute([*fuzzy, "--dry-run"])[0] or not self._patch_or_restore(fuzzy):
                self._execute(["rm", "-f", file])
                reason = said.decode("utf-8", "replace").strip().splitlines() or ["refused"]
                raise PatchError(f"{self.issue.id}: the patch does not apply: {reason[-1].removeprefix('error: ')}")
        self._execute(["rm", "-f", file])

    def _patch_or_restore(self, command: Sequence[str]) -> bool:
        """A dry run does not see what the patch itself puts in its own way, as a file where it wants a folder."""
        changes = self.diff()
        if self._execute(command)[0] == 0:
            return True
        self.reset()
        if changes:
            self._git("apply", "--whitespace=nowarn", self._send("xlocal.changes", changes))
        return False

    def diff(self) -> str:
        """The changes since the container was started, as a diff that `apply` takes; the index stays as it was."""
        index = {"GIT_INDEX_FILE": f"{_SCRATCH}/xlocal.index"}
        self._git("read-tree", self._base, env=index)
        self._git("add", "--all", env=index)
        return self._git("diff", "--cached", "--binary", "--no-ext-diff", self._base, env=index)

    def reset(self) -> None:
        """Back to what the container was started with; files that git ignores stay."""
        self._git("checkout", "--quiet", "--force", "-B", "base", self._base)
        self._git("clean", "--quiet", "-d", "--force", "--force")

    def _git(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        return self._checked(["git", *arguments], f"git {arguments[0]}", env=env)

    def _checked(self, command: Sequence[str], what: str, *, env: Mapping[str, str] | None = None) -> str:
        code, out, said = self._execute(command, env=env)
        if code:
            reason = said.decode("utf-8", "replace").strip().splitlines() or [f"exit status {code}"]
            raise CheckoutError(f"{self.issue.id}: in {self.image}: {what}: {reason[-1]}")
        return out.decode("utf-8", "surrogateescape")

    def _execute(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> tuple[int, bytes, bytes]:
        if self._container is None:
            raise CheckoutError(f"{self.issue.id}: the container was not prepared")
        with _engine_errors(self.image):
            code, (out, said) = self._container.exec_run(
                list(command),
                workdir=cwd or REPOSITORY,
                environment={"PATH": _PATH, "PYTHONHASHSEED": "0", **(env or {})},
                demux=True,
            )
        return code, out or b"", said or b""

    def _send(self, name: str, text: str) -> str:
        """Write a file in the container; returns its path there."""
        data = text.encode("utf-8", "surrogateescape")
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        with _engine_errors(self.image):
            self._container.put_archive(_SCRATCH, archive.getvalue())
        return f"{_SCRATCH}/{name}"


def _engine_of_environment() -> Any:
    try:
        import docker
    except ImportError:
        raise CheckoutError(
            "containers need the package docker (pip install 'xlocal[docker]'); the local backend does not"
        ) from None
    return docker.from_env(timeout=_OURS_SECONDS)


def _present(engine: Any, image: str) -> str:
    """The image's name, pulled when the engine does not have it."""
    import docker

    try:
        engine.images.get(image)
    except docker.errors.ImageNotFound:
        engine.images.pull(image)
    return image


@contextlib.contextmanager
def _engine_errors(image: str) -> Iterator[None]:
    """One line for an engine that is not there, goes away, or refuses."""
    try:
        import docker
        import requests
    except ImportError:
        # Without the package there is no engine either, and `_engine_of_environment` says so.
        yield
        return
    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckoutError(f"{image}: the Docker engine (DOCKER_HOST, or this machine's) says: {reason}") from error

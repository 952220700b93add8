"""A Docker engine that stands in for a real one: commands run on this machine, in a folder that stands for /testbed."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import types
from pathlib import Path

from xlocal.swe_pipeline.container import ENVIRONMENT


class FakeContainer:
    """Executes commands for real, on this machine, in the folder that stands for /testbed."""

    def __init__(self, testbed: Path, options: dict) -> None:
        self.testbed = testbed
        self.options = options
        self.removed = False
        self.commands: list[list[str]] = []

    def exec_run(self, command, *, workdir, environment, demux):
        assert demux
        assert not self.removed
        self.commands.append(command)
        if command == ["sh", "-c", "kill -9 -1"]:
            return 0, (None, None)  # as written, it would end this test and everything else
        given = {name: self._here(value) for name, value in environment.items()}
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        env = {**os.environ, **given, "PATH": path, "HOME": str(self.testbed.parent)}
        words = [self._here(word) for word in command]
        done = subprocess.run(words, cwd=self._here(str(workdir)), env=env, capture_output=True, check=False)
        return done.returncode, (done.stdout or None, done.stderr or None)

    def _here(self, word: str) -> str:
        """A word with paths of this machine for those of the container."""
        if word.startswith("/tmp/xlocal."):
            return f"{self.testbed.parent}/{self.testbed.name}.{word.removeprefix('/tmp/')}"
        return word.replace(f"{ENVIRONMENT}/bin/python", sys.executable).replace("/testbed", str(self.testbed))

    def put_archive(self, path, data):
        assert path == "/tmp"
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive.getmembers():
                Path(self._here(f"/tmp/{member.name}")).write_bytes(archive.extractfile(member).read())
        return True

    def remove(self, *, force):
        assert force
        self.removed = True


class FakeEngine:
    """Stands in for docker.DockerClient: knows the images given, pulls others, makes FakeContainers.

    The folder `testbed` is every image's /testbed. With `copies`, each container has a copy of it, as a real one would.
    """

    def __init__(self, testbed: Path, *, present: tuple[str, ...] = (), copies: bool = False) -> None:
        self.testbed = testbed
        self.present = list(present)
        self.copies = copies
        self.pulled: list[str] = []
        self.made: list[FakeContainer] = []
        self.images = types.SimpleNamespace(get=self._get, pull=self._pull)
        self.containers = types.SimpleNamespace(run=self._run)
        self.down = 0  # how many of the next containers cannot be started

    def _get(self, image):
        import docker

        if image not in self.present:
            raise docker.errors.ImageNotFound(f"no such image: {image}")

    def _pull(self, image):
        self.pulled.append(image)

    def _run(self, image, command, **options):
        import docker

        if self.down:
            self.down -= 1
            raise docker.errors.APIError("the engine\nis restarting")
        testbed = self.testbed
        if self.copies:
            testbed = testbed.with_name(f"{testbed.name}-{len(self.made)}")
            shutil.copytree(self.testbed, testbed, symlinks=True)
        container = FakeContainer(testbed, {"image": image, "command": command, **options})
        self.made.append(container)
        return container

    def close(self):
        """The connection ends; containers do not."""

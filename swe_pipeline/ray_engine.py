"""Jobs of a batch on a Ray cluster (extra `ray`): many machines, of which any may fail.

The run folder and the checkouts lie on a file system that all machines share, or each machine prepares checkouts of
its own; a machine imports the same xlocal.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from xlocal.swe_pipeline.engines import Answer, Call, Key
from xlocal.tracer.errors import UsageError

_ANSWER_SECONDS = 10.0


class _Located(NamedTuple):
    """An answer and the node that it came from."""

    answer: Answer
    node: str


def _run(call: Call) -> _Located:
    import ray

    return _Located(call(), ray.get_runtime_context().get_node_id())


def _check_reachable(address: str | None) -> None:
    """Raise UsageError when nothing listens at HOST:PORT: Ray itself would wait for minutes, and talk meanwhile."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--ray-address {address}: no cluster answers there: {reason}") from None


class RayEngine:
    """One Ray task for each job; the steps of an instance stay on one node as long as it has room.

    `address` is that of a running cluster (`auto` for the one this machine belongs to); None starts one on this
    machine. `workers` None uses all CPUs of the cluster, one for each job. Ray itself tries nothing again: the batch
    counts attempts. Raises UsageError when Ray is not installed or the cluster does not answer.
    """

    def __init__(self, *, address: str | None = None, workers: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise UsageError("--engine ray needs the package ray: pip install 'xlocal[ray]'") from None
        self._owner = not ray.is_initialized()
        if self._owner:
            _check_reachable(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                reason = " ".join(str(error).split())[:300]
                raise UsageError(f"--ray-address {address}: no cluster: {reason}") from None
        self._workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._remote = ray.remote(num_cpus=1, max_retries=0)(_run)
        self._running: dict[Any, Key] = {}
        self._nodes: dict[str, str] = {}

    @property
    def workers(self) -> int:
        """How many jobs run at a time."""
        return self._workers

    def describe(self) -> Mapping[str, Any]:
        """Name, size, Ray's version and the number of nodes."""
        import ray

        nodes = sum(bool(node["Alive"]) for node in ray.nodes())
        return {"name": "ray", "workers": self._workers, "version": ray.__version__, "nodes": nodes}

    def start(self, key: Key, call: Call) -> None:
        """Submit a task, to the node of the instance's former step when there is one and it is alive."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = self._remote
        if node := self._nodes.get(key.instance):
            task = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=True))
        self._running[task.remote(call)] = key

    def finished(self, timeout: float) -> list[tuple[Key, Answer]]:
        """The answers that came, and a transient fault for each task whose worker or node is gone."""
        import ray

        if not self._running:
            time.sleep(timeout)
            return []
        waiting = list(self._running)
        ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return [(key := self._running.pop(task), self._answer(task, key)) for task in ready]

    def _answer(self, task: Any, key: Key) -> Answer:
        import ray

        try:
            located: _Located = ray.get(task)
        except ray.exceptions.RayError as error:
            self._nodes.pop(key.instance, None)
            reason = (str(error).strip().splitlines() or [""])[0][:300]
            return Answer(None, f"the worker is gone ({type(error).__name__}): {reason}", True)
        self._nodes[key.instance] = located.node
        return located.answer

    def close(self) -> None:
        """Cancel what runs; a cluster that was started here ends."""
        import ray

        for task in self._running:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.cancel(task, force=True)
        self._running.clear()
        if self._owner and ray.is_initialized():
            ray.shutdown()

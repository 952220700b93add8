"""The first process inside a sandbox: starts the command, watches its memory and processes, and ends with its status.

Run by path with the standard library alone. As process 1 of its namespace, its end is the end of everything in there.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

PAGE = os.sysconf("SC_PAGE_SIZE")
LOOK = 0.05  # seconds between two looks
OVER = 137  # as after SIGKILL


def usage() -> tuple[int, int]:
    """Resident bytes and number of all processes of this namespace, this one left out."""
    resident = count = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/statm") as file:
                    resident += int(file.read().split()[1]) * PAGE
            except (OSError, ValueError):
                continue  # it ended while we looked
            count += 1
    return resident, count


def own_memory() -> int:
    """Bytes of all processes with shared pages counted once: forked workers share most of theirs. Slower to read."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/smaps_rollup") as file:
                    total += sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
            except (OSError, ValueError):
                continue
    return total


def reap(main: int) -> int | None:
    """Collect ended children; the exit status of the main one when it ended, else None."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1
        if pid == 0:
            return None
        if pid == main:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def main() -> int:
    """`guard.py MEMORY_BYTES PROCESSES FILE_BYTES COMMAND...`"""
    memory, processes, file_size = map(int, sys.argv[1:4])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    try:
        child = subprocess.Popen(sys.argv[4:], preexec_fn=unblock)  # noqa: PLW1509 - no threads here
    except OSError as error:
        print(f"{sys.argv[4]}: cannot be started: {error.strerror}", flush=True)
        return 127
    while True:
        signal.sigtimedwait({signal.SIGCHLD}, LOOK)
        code = reap(child.pid)
        if code is not None:
            return code
        resident, count = usage()
        if resident > memory and own_memory() > memory:
            print(f"[ended: more than {memory >> 20} MiB of memory in use]", flush=True)
            return OVER
        if count > processes:
            print(f"[ended: more than {processes} processes]", flush=True)
            return OVER


if __name__ == "__main__":
    # Not sys.exit: nothing is left to tidy up, and what runs on must end now.
    code = main()
    sys.stdout.flush()
    os._exit(code)

"""Measure a workload from inside its process: CPU seconds and memory of the work alone, without imports."""

import cProfile
import json
import os
import sys
import time


def measured(work):
    """Run `work(size)` with the size of the command line and write what it took to the file named by WORK_REPORT.

    With WORK_COUNT in the environment the calls of Python functions are counted instead of timed.
    """
    size = int(sys.argv[1])
    before, start = _peak_kib(), time.process_time()
    if os.environ.get("WORK_COUNT"):
        report = {"calls": _calls(lambda: work(size))}
    else:
        work(size)
        report = {"seconds": time.process_time() - start, "grown_kib": _peak_kib() - before}
    with open(os.environ["WORK_REPORT"], "w") as file:
        json.dump(report, file)


def _calls(work):
    """How many calls of Python functions `work` makes; a generator counts each time that it is resumed."""
    profile = cProfile.Profile(builtins=False)
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats() if not isinstance(entry.code, str))


def _peak_kib():
    """Peak of this process image alone; `ru_maxrss` would start from that of the parent before exec. 0 if unknown."""
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0

"""Run a script under hunter, which notes each call and return: under_hunter.py SCRIPT FILE [ARGUMENT...].

Its own printers show the arguments too, at many times the cost; a bare note is what compares with the other tools.
"""

import runpy
import sys

import hunter

script, out = sys.argv[1:3]
sys.argv[:] = [script, *sys.argv[3:]]
sys.path[0] = script.rpartition("/")[0]
events = []


def note(event):
    """Keep what a call tree needs."""
    events.append((event.kind, event.module, event.function))


hunter.trace(hunter.Q(kind_in=("call", "return")), action=note)
try:
    runpy.run_path(script, run_name="__main__")
finally:
    hunter.stop()
    with open(out, "w") as file:
        file.writelines(f"{kind} {module}.{function}\n" for kind, module, function in events)

"""The one way our numeric loops are compiled: numba, cached on disk where a cache folder can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function` compiled at its first call; the machine code is kept in `__pycache__` or numba's user cache.

    Where neither folder can be written the code is compiled again in each process (`NUMBA_CACHE_DIR` names another
    folder).
    """
    compile_: Any = numba.njit
    try:
        return cast(Callable[P, R], compile_(cache=True)(function))
    except RuntimeError:  # "cannot cache function: no locator available": a read-only installation and home
        return cast(Callable[P, R], compile_()(function))

"""A real program: symbolic integration and simplification."""

import sympy
from measured import measured
from sympy.core.cache import clear_cache


def work(size):
    """Do the same calculus `size` times, each time without what the last one cached."""
    x, y = sympy.symbols("x y")
    for _ in range(size):
        clear_cache()
        sympy.integrate(x**2 * sympy.exp(x) * sympy.cos(x), x)
        sympy.simplify((sympy.sin(x) ** 2 + sympy.cos(x) ** 2) * (x**2 - y**2) / (x - y))
        sympy.solve([x**2 + y - 3, x - y + 1], [x, y])


measured(work)

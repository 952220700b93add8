"""The worst case: a program that does nothing but call."""

from measured import measured


def fib(n):
    """Call twice unless done."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def nothing():
    """Return at once."""


def work(size):
    """Make about `size` thousand deep calls and as many flat ones."""
    for _ in range(size):
        fib(14)
        for _ in range(1000):
            nothing()


measured(work)

"""Every way to call: methods, properties, closures, lambdas, comprehensions, class bodies, callbacks of C functions."""

import functools


class Base:
    def __init__(self):
        self.items = [leaf(number) for number in range(2)]

    @property
    def first(self):
        return leaf(self.items[0])

    def __getattr__(self, name):
        return leaf(name)

    def __lt__(self, other):
        return leaf(self.items) < leaf(other.items)

    def __hash__(self):
        return leaf(1)


class Derived(Base):
    def __init__(self):
        super().__init__()
        self.size = {leaf(key): value for key, value in enumerate(self.items)}

    @staticmethod
    def static():
        return leaf(0)

    @classmethod
    def build(cls):
        return cls()


def leaf(value):
    return value


def decorated(function):
    @functools.wraps(function)
    def wrapper(*values, **named):
        return function(*values, **named)

    return wrapper


@decorated
def twice(value):
    def inner():
        return leaf(value)

    return inner(), inner()


def recursive(depth):
    return leaf(depth) if depth == 0 else recursive(depth - 1)


def main():
    one, two = Derived.build(), Derived()
    sorted([one, two])
    one.first, one.missing  # noqa: B018
    hash(one)
    Derived.static()
    twice(3)
    recursive(3)
    list(map(leaf, [1, 2]))
    sorted([2, 1], key=lambda value: leaf(-value))
    functools.reduce(lambda left, right: leaf(left + right), [1, 2, 3])

    class Local:
        value = leaf(4)

        def method(self):
            return any(leaf(number) for number in (0, 1, 2))

    Local().method()


main()

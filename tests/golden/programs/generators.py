"""Generators: resumed often, delegated to, closed early, thrown into, and driven by one another."""


def leaf(value):
    return value


def count(limit):
    for number in range(limit):
        yield leaf(number)


def delegate(limit):
    result = yield from count(limit)
    yield from [leaf(result)]


def guarded():
    try:
        while True:
            yield leaf("guarded")
    finally:
        leaf("cleanup")


def stubborn():
    while True:
        try:
            yield leaf("stubborn")
        except KeyError:
            leaf("caught")


def echo():
    received = None
    while True:
        received = yield received
        leaf(received)


def failing():
    yield leaf(1)
    raise ValueError("in a generator")


def returning():
    yield None
    return leaf("result")


def pairs():
    left, right = count(2), count(3)
    for first in left:
        yield first, next(right)


def main():
    list(count(3))
    list(delegate(2))
    early = guarded()
    next(early)
    next(early)
    early.close()
    thrown = stubborn()
    next(thrown)
    thrown.throw(KeyError("into"))
    next(thrown)
    sent = echo()
    next(sent)
    sent.send(1)
    sent.send(2)
    try:
        list(failing())
    except ValueError:
        leaf("handled")
    for _ in returning():
        leaf("body")
    list(pairs())
    unstarted = count(1)
    unstarted.close()
    fresh = guarded()
    try:
        fresh.throw(RuntimeError("before the start"))
    except RuntimeError:
        leaf("never began")
    sum(leaf(number) for number in (1, 2))


main()

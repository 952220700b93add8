"""Threads: one after another, nested, side by side, with generators handed from one to the next."""

import threading


def leaf(value):
    return value


def count(limit):
    for number in range(limit):
        yield leaf(number)


def worker(number):
    for _ in range(number):
        leaf(number)


def failing():
    try:
        raise KeyError(1)
    except KeyError:
        leaf("caught")


def nested(depth):
    leaf(depth)
    if depth:
        run(nested, depth - 1)
    leaf(depth)


def run(function, *values):
    thread = threading.Thread(target=function, args=values)
    thread.start()
    thread.join()


def main():
    for number in range(3):
        run(worker, number)
    run(failing)
    nested(2)
    shared = count(3)
    next(shared)
    run(lambda: leaf("other"))
    next(shared)
    together = [threading.Thread(target=worker, args=(number,)) for number in (2, 3)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    leaf("end")


main()

"""Exceptions: caught where they are raised, by a caller far above, replaced, re-raised, and used to end loops."""

import contextlib


class Failure(Exception):  # noqa: N818
    def __init__(self, *details):
        super().__init__(leaf(details))


def leaf(value):
    return value


def raising(kind):
    raise kind(leaf("text"))


def passing_on(kind):
    raising(kind)


def catching(kind):
    try:
        passing_on(kind)
    except kind:
        return leaf("caught")
    finally:
        leaf("finally")


def inside():
    try:
        raise KeyError(1)
    except KeyError:
        return leaf(None)


def replacing():
    try:
        raising(KeyError)
    except KeyError as error:
        raise Failure("instead") from error


def raising_again():
    try:
        raising(Failure)
    except Failure:
        leaf("again")
        raise


class Countdown:
    def __init__(self, start):
        self.left = start

    def __iter__(self):
        return self

    def __next__(self):
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return leaf(self.left)


@contextlib.contextmanager
def suppressing():
    try:
        yield leaf("entered")
    except Failure:
        leaf("suppressed")


def none():
    return None


def main():
    for kind in (ValueError, KeyError, Failure):
        catching(kind)
    inside()
    for function in (replacing, raising_again):
        try:
            function()
        except Failure:
            none()
    for value in Countdown(2):
        leaf(value)
    with suppressing():
        raising(Failure)
    try:
        raise SystemExit(1)
    except SystemExit:
        none()


main()

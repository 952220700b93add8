"""A real program: a style checker reads its own source."""

import pycodestyle
from measured import measured


def work(size):
    """Check the file `size` times."""
    for _ in range(size):
        pycodestyle.StyleGuide(quiet=2).check_files([pycodestyle.__file__])


measured(work)

"""`python -m xlocal` is the command line."""

from xlocal.cli import main

if __name__ == "__main__":
    main()

"""`python -m pyrometer` is `pyrometer`."""

from pyrometer.cli import main

main()

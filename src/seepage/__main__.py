"""`python -m seepage`."""

from seepage.cli import main

main()

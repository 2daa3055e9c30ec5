"""`python -m pappus.chaos.clock SECONDS WORDS …`: a command whose main process believes that it is earlier.

A clock that is turned back is seen by a process as smaller values of `time.time`. Only the main process stamps files
and lines with it; the clocks by which roles and supervision wait are monotonic, and no process can turn those back.
"""

from __future__ import annotations

import sys
import time

if __name__ == "__main__":
    seconds, real = float(sys.argv[1]), time.time
    time.time = lambda: real() - seconds  # before anything else imports it

    from pappus.cli import main

    sys.exit(main(sys.argv[2:]))

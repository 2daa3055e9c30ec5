"""What systems find, beside what theory says: `python -m tests.conformance [ROW …]`, to choose a new row's settings."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from tests.conformance.harness import deviations, learn, report
from tests.conformance.systems import ROWS, courses_of


def show(name: str) -> None:
    """All courses of a row, with the CPU seconds that each took."""
    for title, course in courses_of(ROWS[name]).items():
        began = time.process_time()
        with tempfile.TemporaryDirectory() as directory, redirect_stdout(StringIO()):
            learnt = learn(ROWS[name], course, Path(directory) / "run")
        print(f"{name} {title}: {time.process_time() - began:.1f} s")
        for world, exact in course.worlds.items():
            print(f"  {world}, off by {max(deviations(learnt, exact).values()):.3f}{report(learnt, exact)}")


if __name__ == "__main__":
    for row in sys.argv[1:] or ROWS:
        show(row)

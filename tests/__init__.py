"""Tests of Pappus. They compute with one thread: for small matrices threads only wait for each other."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is imported

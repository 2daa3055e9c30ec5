"""`python -m pappus` is `pappus`."""

import os
import sys

# Python puts the working directory first, where a stranger's yaml.py may lie. Named modules are found there all the
# same (`imports.py`).
if not sys.flags.safe_path and sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

from pappus.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m pappus` is `pappus`."""

from pappus.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""`pappus tune`: settings that make a run fast on this machine, found by measurement."""

"""`pappus compare`: aggregates finished runs. It needs no torch."""

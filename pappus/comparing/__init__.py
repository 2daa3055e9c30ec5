"""`pappus compare`: what finished runs say together. It needs no torch."""

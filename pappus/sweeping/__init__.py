"""`pappus sweep`: the settings of a system that suit an env best, by many short runs."""

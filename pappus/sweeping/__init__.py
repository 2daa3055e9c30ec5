"""`pappus sweep`: searches the best settings of a system on an env by many short runs."""

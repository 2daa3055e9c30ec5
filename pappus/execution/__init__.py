"""From a resolved config to the end of its run: what follows from it, its directory, its last checkpoint, the run."""

"""From a resolved config to the end of its run: derived settings, directory, checkpoint to resume from, the run."""

"""Who sees a run while it goes on: callbacks and loggers, each in a thread beside it."""

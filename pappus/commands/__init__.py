"""What `pappus NAME` does, each command in the module of its name: `main` takes the words behind the name, and when the
process began, and returns the exit code. Wrong input is a `UserError`. A module imports what it needs when it runs, so
that refusals are quick and need no torch."""

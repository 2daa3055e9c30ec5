"""Sharing policies: exported files, model cards, and folders in the layout of a hub's repository."""

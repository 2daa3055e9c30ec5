"""Edges of a program: what connects roles, one file per kind. `edge.py` says what an edge of your own needs."""

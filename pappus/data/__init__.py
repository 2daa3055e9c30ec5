"""Logged experience: data sets in Minari's format, recorded by runs and read by offline learners.

    run ──episodes──▶ data set (Minari: HDF5, Arrow or Parquet) ──episodes──▶ offline learner · estimates · tables

`episode.py` is the unit that everything here exchanges; `dataset.py` reads and writes the format.
"""

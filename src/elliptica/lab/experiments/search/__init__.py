"""Searching the settings of one row of a table: any sampler, pruning, and several workers on one storage."""

"""`elliptica watch`: how the runs of a folder stand, from its files alone."""

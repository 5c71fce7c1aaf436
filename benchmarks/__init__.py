"""What elliptic training costs, as ratios measured within one run (``make bench``)."""

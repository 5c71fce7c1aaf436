"""What `elliptica landscape` does: load a model and data, run the reports, draw the surface."""

"""Find problems of a trained model and its data; see `elliptica.diagnose`."""

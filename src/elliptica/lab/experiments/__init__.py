"""The paper's tables as specifications, runs and records."""

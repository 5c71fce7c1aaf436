"""Checks, random streams, statistics, files and text, shared by every package."""

"""Reproducing the papers' tables: what to run, and published next to measured figures."""

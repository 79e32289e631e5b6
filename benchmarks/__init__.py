"""Ratios measured in one run, on one machine: `make bench` writes them to benchmarks/results."""

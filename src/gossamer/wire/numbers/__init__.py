"""Codecs of numbers: floating-point values as they are, as halves, or compressed."""

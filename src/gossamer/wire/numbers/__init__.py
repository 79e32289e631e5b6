"""Codecs of floating-point values: raw, half precision, or compressed."""

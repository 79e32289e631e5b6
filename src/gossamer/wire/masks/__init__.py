"""Codecs of masks: Rice codes by row, few changes, range coding, and their entropy."""

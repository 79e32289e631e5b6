"""Mask codecs: Rice codes by row, few changes, and range coding; entropy bounds."""

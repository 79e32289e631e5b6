"""Tables of the papers: what to run, the published figures, and ours beside them."""

"""Any method on a Flower network: what travels between processes, and the two apps.

Only `gossamer.flower.apps` needs Flower itself; the rest is the conversation, without a network.
"""

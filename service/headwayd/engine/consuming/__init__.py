"""Consuming on a stream: leases within a credit, settled on the same stream, and all given back at its end.

consuming     the door: one stream from its start to its end
outstanding   what is leased to one stream and not settled, against its credit
inbox         what one stream's consumer asked for and was not done yet
"""

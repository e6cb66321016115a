"""Counting what happens, for metrics. Knows no format and nobody who asks; when nobody will, none of this is there.

counts          the numbers of this process
counted_store   a store whose steps are counted
census          the state of queues, read from the store for all who ask at about the same time
"""

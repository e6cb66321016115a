"""Watching: where messages are and how long queues are, told to any number of people by few looks at the store.

watching    the door: the feeds and boards of this process, by queue
attended    withdraws what an attended watch left behind
feed        one watched queue: reads what happened, and asks for places
known       what is known of the watched messages, and who is to be told
roll        the watches of one feed: by reference, and by when they are next to be looked at
line        the line as it is known here, from which every position is worked out
watch       one message on one stream; one stream
rousing     wakes those who wait for news, some in each turn of the event loop
alarms      who is to be looked at when a number gets so far
board       a queue's numbers, for dashboards
estimates   what is learnt about how long one waits
"""

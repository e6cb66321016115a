"""Standing in the consumer line on a stream: the place as it moves, the turn when it comes, and everything given up at
the end.

    standing    the door: one stream from its first place to its end
    stance      what one stream knows of how it stands
    follower    one queue's streams: finds out, for few of them at a time, how they stand
"""

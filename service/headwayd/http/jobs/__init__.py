"""The door for whoever has nothing but HTTP: verbs that put, set, take and finish jobs, and places in line by X-Queue.

doors    the routes, and the verbs
names    queue and id from a path
asking   what else a request says
items    a job as it is handed out
answers  results and errors
places   the place that belongs to a connection
"""

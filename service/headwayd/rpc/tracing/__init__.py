"""Traced job flows at the edge: which calls tell of a job, and how a message carries its trace. Only looked at if
tracing is on: then `edge` lets the calls of `calls.py` be wrapped."""

"""The second port: plain HTTP, for those who watch over the service. Off unless `http_listen` says where.

doors      what it answers: /metrics, /healthz, /readyz, and what follows
connecting the calls, by Connect, gRPC-Web and JSON
jobs       verbs of RQMS, and X-Queue
events     what becomes of messages, as server-sent events: `gathering` writes, `resuming` remembers nothing
pages      the files that browsers load
guards     which browsers may ask
dashboard  pages for people, and the stream that brings each what it shows (overview, shows)
server     listening, and the end in good order
protocol   what one connection may do
"""

"""The second port: plain HTTP, for those who watch over the service. Off unless `http_listen` says where.

doors      what it answers: /metrics, /healthz, /readyz
guards     which browsers may ask
server     listening, and the end in good order
protocol   what one connection may do
"""

"""The peers: which driver and server each has, how durable it can be, and in which mode it is at its best."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.peers import servers
from bench.peers.servers import ALWAYS, EVERYSEC

BOTH = (EVERYSEC, ALWAYS)
DURABILITY = {
    EVERYSEC: "what was confirmed is fsynced within about a second",
    ALWAYS: "what was confirmed has been fsynced",
}
ONE, EACH_CORE = "one worker process", "a worker process for each core"
PROJECT, PEERS, ARQ, NODE, GO = "project", "peers", "arq", "node", "go"


def _one(_clients: int) -> int:
    return 1


def _per_core(clients: int) -> int:
    """A worker is a process, and frameworks have one for each core; and threads, which put, share one core."""
    return min(clients, os.cpu_count() or 1)


def _per_worker(clients: int) -> int:
    """A worker that does one job at a time is a process; more than two for each core only take turns."""
    return min(clients, 2 * (os.cpu_count() or 1))


@dataclass(frozen=True, kw_only=True)
class Peer:
    """`consumers` says over how many processes that many consuming clients are spread, which is to be chosen
    (`--processes`) where `workers` tells what is best, and `producers` the same of those that put; `library` is the
    package whose version is told. `mode` has {batch}, {ahead} (batches), {unconfirmed} (messages) and {workers}."""

    driver: str
    server: servers.Starts
    environment: str
    mode: str
    library: str = ""
    durabilities: tuple[str, ...] = BOTH
    producers: Callable[[int], int] = _one
    consumers: Callable[[int], int] = _one
    workers: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_unconfirmed(self) -> bool:
        """Whether a client sends, or holds, more than one batch before the first is confirmed."""
        return "{unconfirmed}" in self.mode or "{ahead}" in self.mode


CATALOGUE: dict[str, Peer] = {
    "Headway, streams": Peer(
        driver="headway_streams",
        server=servers.headway,
        environment=PROJECT,
        mode="Produce, Consume; batches of {batch}, {ahead} put ahead of answers",
        library="grpcio",
    ),
    "Headway, calls": Peer(
        driver="headway_unary",
        server=servers.headway,
        environment=PROJECT,
        mode="Put of {batch}; Get of {batch} with the acks of the last",
        library="grpcio",
    ),
    "Headway, Python client": Peer(
        driver="headway_client",
        server=servers.headway,
        environment=PROJECT,
        mode=(
            "a producer, which makes ids, with batches of {batch}, {ahead} ahead of answers; `run` with {batch}"
            " handlers at a time, each with its own ack, of {unconfirmed} leased"
        ),
        library="headway",
    ),
    "Headway, Go": Peer(
        driver="headway_go",
        server=servers.headway,
        environment=GO,
        mode=(
            "its streams by the stub of its Go client; batches of {batch}, {ahead} put ahead of answers; credit for"
            " {unconfirmed}"
        ),
        library="headway.dev/go",
    ),
    "Headway, Go, 2 workers": Peer(
        driver="headway_go",
        server=servers.headway_of_two,
        environment=GO,
        mode=(
            "the same with a service of two processes (`--workers 2`); batches of {batch}, {ahead} put ahead of"
            " answers; credit for {unconfirmed}"
        ),
        library="headway.dev/go",
    ),
    "Redis list": Peer(
        driver="redis_list",
        server=servers.store,
        environment=PEERS,
        mode="the floor: LPUSH of {batch}, RPOP of {batch}, no acks",
        library="redis",
    ),
    "Redis streams": Peer(
        driver="redis_streams",
        server=servers.store,
        environment=PEERS,
        mode="plain commands: XADD of {batch}; XREADGROUP of {batch}, then XACK and XDEL of these, in pipelines",
        library="redis",
    ),
    "NATS JetStream": Peer(
        driver="nats_jetstream",
        server=servers.nats,
        environment=PEERS,
        mode="work queue in files; {unconfirmed} published ahead of confirmations; fetch of {batch}",
        library="nats-py",
    ),
    "NATS JetStream, Go": Peer(
        driver="nats_go",
        server=servers.nats,
        environment=GO,
        mode="work queue in files, by its Go client; {unconfirmed} published ahead of confirmations, and pulled ahead",
        library="nats.go",
    ),
    "NATS JetStream, Go, acks answered": Peer(
        driver="nats_go",
        server=servers.nats,
        environment=GO,
        mode=(
            "the same, and the server says of acks that they are done, as Headway does; {unconfirmed} published ahead"
            " of confirmations, and pulled ahead"
        ),
        library="nats.go",
        options={"acks": "answered"},
    ),
    "NATS JetStream, Go, fast": Peer(
        driver="nats_go",
        server=servers.nats,
        environment=GO,
        mode=(
            "the same, put by the fast publisher of its makers' extension, whose messages are confirmed by the batch;"
            " {unconfirmed} published ahead of confirmations, and pulled ahead"
        ),
        library="orbit.go/jetstreamext",
        options={"put": "fast"},
    ),
    "NATS JetStream, Go, atomic": Peer(
        driver="nats_go",
        server=servers.nats,
        environment=GO,
        mode=(
            "the same, put by atomic batches of {batch}, {ahead} ahead of confirmations, of all clients together 50;"
            " {unconfirmed} pulled ahead"
        ),
        library="orbit.go/jetstreamext",
        options={"put": "atomic"},
    ),
    "NSQ, Go": Peer(
        driver="nsq_go",
        server=servers.nsqd,
        environment=GO,
        mode="MPUB of {batch}, {ahead} ahead of answers; {unconfirmed} in flight, each finished by itself",
        library="go-nsq",
        durabilities=(EVERYSEC,),
    ),
    "beanstalkd": Peer(
        driver="beanstalkd",
        server=servers.beanstalkd,
        environment=PEERS,
        mode="{unconfirmed} puts pipelined; {batch} reserves ahead, each job deleted with the next of them",
    ),
    "beanstalkd, Go": Peer(
        driver="beanstalkd_go",
        server=servers.beanstalkd,
        environment=GO,
        mode="the same by Go; {unconfirmed} puts pipelined; {batch} reserves ahead",
    ),
    "RabbitMQ, classic": Peer(
        driver="rabbitmq",
        server=servers.rabbitmq,
        environment=PEERS,
        mode="persistent, by aio-pika; {unconfirmed} published ahead of confirmations; acks of up to {batch}",
        library="aio-pika",
        durabilities=(ALWAYS,),
        options={"queue_type": "classic"},
    ),
    "RabbitMQ, quorum": Peer(
        driver="rabbitmq",
        server=servers.rabbitmq,
        environment=PEERS,
        mode="the same on one node; {unconfirmed} published ahead of confirmations; acks of up to {batch}",
        library="aio-pika",
        durabilities=(ALWAYS,),
        options={"queue_type": "quorum"},
    ),
    "RabbitMQ, classic, Go": Peer(
        driver="rabbitmq_go",
        server=servers.rabbitmq,
        environment=GO,
        mode="persistent, by its Go client; {unconfirmed} published ahead of confirmations; acks of up to {batch}",
        library="amqp091-go",
        durabilities=(ALWAYS,),
        options={"queue_type": "classic"},
    ),
    "RabbitMQ, quorum, Go": Peer(
        driver="rabbitmq_go",
        server=servers.rabbitmq,
        environment=GO,
        mode=(
            "the same by its Go client, on one node; {unconfirmed} published ahead of confirmations; acks of up to"
            " {batch}"
        ),
        library="amqp091-go",
        durabilities=(ALWAYS,),
        options={"queue_type": "quorum"},
    ),
    "BullMQ": Peer(
        driver="bullmq.mjs",
        server=servers.store,
        environment=NODE,
        mode="addBulk of {batch}; {workers}, 100 jobs at a time, or 4 for each client if that is more",
        library="bullmq",
        workers=ONE,
    ),
    "asynq, Go": Peer(
        driver="asynq_go",
        server=servers.store,
        environment=GO,
        mode="one by one; a worker for each client, 100 jobs at a time together",
        library="asynq",
    ),
    "SAQ": Peer(
        driver="saq_jobs",
        server=servers.store,
        environment=PEERS,
        mode="{batch} enqueued at once; {workers}, each at least 10 jobs at a time",
        library="saq",
        consumers=_per_core,
        workers=EACH_CORE,
    ),
    "arq": Peer(
        driver="arq_jobs",
        server=servers.store,
        environment=ARQ,
        mode="{batch} enqueued at once; {workers}, at least 100 jobs at a time",
        library="arq",
        workers=ONE,
    ),
    "Dramatiq": Peer(
        driver="dramatiq_actors",
        server=servers.store,
        environment=PEERS,
        mode=(
            "one by one, by threads of a process for each core; {workers}, a thread for each client, each worker 100"
            " messages ahead"
        ),
        library="dramatiq",
        producers=_per_core,
        consumers=_per_core,
        workers=EACH_CORE,
    ),
    "Celery": Peer(
        driver="celery_tasks",
        server=servers.store,
        environment=PEERS,
        mode=(
            "one by one, by threads of a process for each core; {workers}, late acks, a thread for each client (solo"
            " pool for one)"
        ),
        library="celery",
        producers=_per_core,
        consumers=_per_core,
        workers=EACH_CORE,
    ),
    "RQ": Peer(
        driver="rq_jobs",
        server=servers.store,
        environment=PEERS,
        mode="enqueue_many of {batch}, by threads of a process for each core; {workers}, which do not fork",
        library="rq",
        producers=_per_core,
        consumers=_per_worker,
        workers="at most two workers for each core",
    ),
}

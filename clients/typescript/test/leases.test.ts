import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";
import { Code, ConnectError, type ServiceImpl } from "@connectrpc/connect";
import { Client, ErrorReason, type HeadwayError, type Lease } from "@headway/client";
import { type DelayRequest, type ExtendRequest, type GetRequest, type QueueService, Settled } from "@headway/client/v1";
import { broken, DELIVERY, pass, refusal, settle, transportOf } from "./service.js";

const warn = mock.method(console, "warn", () => undefined);

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
});

type Calls = Partial<ServiceImpl<typeof QueueService>>;
const results = (settled: Settled) => ({ results: [{ lease: "token", settled }] });

/** A service with one message to lease, which notes what becomes of it. */
function serviceOf(more: Calls = {}) {
  const delays: DelayRequest[] = [];
  const acks: string[] = [];
  const extensions: ExtendRequest[] = [];
  let isLeased = false;
  const calls: Calls = {
    get: async ({ wait }, { signal }) => {
      if (isLeased) {
        await (wait && new Promise((resolve) => signal.addEventListener("abort", resolve)));
        return {};
      }
      isLeased = true;
      return { deliveries: [DELIVERY] };
    },
    extend: (request) => {
      extensions.push(request);
      return results(Settled.EXTENDED);
    },
    ack: ({ result }) => {
      acks.push(Buffer.from(result).toString());
      return results(Settled.ACKED);
    },
    delay: (request) => {
      delays.push(request);
      return results(Settled.RELEASED);
    },
    ...more,
  };
  const transport = transportOf(calls);
  return { client: new Client(transport), transport, delays, acks, extensions };
}

test("withLease acks when the function returns, with its bytes", async () => {
  const { client, acks } = serviceOf();
  assert.equal(await client.queue("q").withLease(async () => Buffer.from("made")), true);
  assert.deepEqual(acks, ["made"]);
});

test("withLease gives the message to the backoff when the function throws, and throws the same", async () => {
  const { client, acks, delays } = serviceOf();
  const failure = new TypeError("a secret");
  const scope = client.queue("q").withLease(async () => {
    throw failure;
  });
  await assert.rejects(scope, (error) => error === failure);
  assert.deepEqual(acks, []);
  assert.equal(delays.length, 1);
  assert.equal(delays[0]?.available.case, undefined);
  assert.equal(delays[0]?.reason, "TypeError");
  assert.equal(delays[0]?.keepAttempt, false);
});

test("withLease gives the message back for free when it is cancelled", async () => {
  const { client, delays } = serviceOf();
  const cancel = new AbortController();
  const handler = () =>
    new Promise<void>((_, reject) => cancel.signal.addEventListener("abort", () => reject(cancel.signal.reason)));
  const scope = client.queue("q").withLease(handler, { signal: cancel.signal });
  await settle();
  cancel.abort();
  await assert.rejects(scope);
  assert.equal(delays[0]?.keepAttempt, true);
  assert.equal(delays[0]?.available.case, "delay");
});

test("a lease that is given back goes back for free, unless it was acked", async () => {
  const { client, delays, acks } = serviceOf();
  const lease = await client.queue("q").lease();
  assert.equal(lease?.message.id, "m");
  await lease?.giveBack();
  assert.equal(delays[0]?.keepAttempt, true);
  const other = serviceOf();
  const acked = await other.client.queue("q").lease();
  await acked?.ack();
  await acked?.giveBack();
  assert.deepEqual([acks.length, other.acks.length, other.delays.length], [0, 1, 0]);
});

test("a client that is closed gives back what is held, once", async () => {
  const { client, delays } = serviceOf();
  const scope = client.queue("q").withLease(untilGivenUp);
  await settle();
  await Promise.all([client.close(), assert.rejects(scope)]);
  assert.equal(delays.length, 1);
});

test("a lease is extended at a third of its span, until it is settled", async () => {
  let count = 0;
  const { client } = serviceOf({
    extend: () => {
      count++;
      return results(Settled.EXTENDED);
    },
  });
  const lease = await client.queue("q").lease();
  await pass(9_900);
  assert.equal(count, 0);
  await pass(200);
  assert.equal(count, 1);
  await pass(10_000);
  assert.equal(count, 2);
  await lease?.ack();
  await pass(60_000);
  assert.equal(count, 2);
});

test("a lease that was not asked to last is extended as the policy says, be that ever so short or not known", async () => {
  const short = { ...DELIVERY, leaseExpiresAt: { seconds: 10n, nanos: 150_000_000 } };
  for (const delivery of [short, { ...DELIVERY, putAt: undefined, waited: undefined }]) {
    const asked: ExtendRequest[] = [];
    const { client } = serviceOf({
      get: () => ({ deliveries: [delivery] }),
      extend: (request) => {
        asked.push(request);
        return results(Settled.EXTENDED);
      },
    });
    const lease = await client.queue("q").lease();
    await pass(50);
    assert.equal(asked.length, 1);
    assert.equal(asked[0]?.lease, undefined);
    await lease?.ack();
  }
});

test("a lease that the store's clock made last no time is extended no more often than the shortest", async () => {
  let count = 0;
  const { client } = serviceOf({
    get: () => ({ deliveries: [{ ...DELIVERY, leaseExpiresAt: { seconds: 5n } }] }), // it was put at 8
    extend: () => {
      count++;
      return results(Settled.EXTENDED);
    },
  });
  const lease = await client.queue("q").lease();
  for (let ms = 0; ms < 200; ms++) {
    await pass(1);
  }
  assert.ok(count > 0 && count <= 6, `${count}`);
  await lease?.ack();
});

test("a lease that is found lost says so, and its scope throws why", async () => {
  const { client, acks } = serviceOf({ extend: () => results(Settled.STALE) });
  let held: Lease | undefined;
  const scope = client.queue("q").withLease(async (lease) => {
    held = lease;
    await untilGivenUp(lease).catch(() => undefined);
  });
  scope.catch(() => undefined);
  await settle();
  await pass(10_100);
  assert.ok(held?.signal.aborted);
  await assert.rejects(scope, (error: HeadwayError) => error.is(ErrorReason.LEASE_STALE));
  assert.deepEqual(acks, []);
});

test("an ack that finds its message with the dead came too late, but a delay may send it there", async () => {
  const dead = () => results(Settled.DEAD);
  const { client } = serviceOf({ get: () => ({ deliveries: [DELIVERY] }), ack: dead, delay: dead });
  let held: Lease | undefined;
  const scope = client.queue("q").withLease(async (lease) => {
    held = lease;
  });
  await assert.rejects(scope, (error: HeadwayError) => {
    return error.is(ErrorReason.LEASE_STALE) && error.code === Code.FailedPrecondition && !error.isOutcomeUnknown;
  });
  assert.ok(held?.signal.aborted);
  const other = await client.queue("q").lease();
  assert.equal((await other?.delay())?.settled, Settled.DEAD);
  assert.ok(!other?.signal.aborted);
});

test("a result that is refused gives the message to the backoff", async () => {
  const { client, delays, extensions } = serviceOf({
    ack: () => {
      throw refusal(Code.InvalidArgument, ErrorReason.TOO_LARGE);
    },
  });
  const scope = client.queue("q").withLease(async () => new Uint8Array(4097));
  await assert.rejects(scope, (error: HeadwayError) => error.is(ErrorReason.TOO_LARGE));
  assert.equal(delays.length, 1);
  assert.equal(delays[0]?.available.case, undefined);
  assert.equal(delays[0]?.keepAttempt, false);
  await pass(60_000);
  assert.equal(extensions.length, 0);
});

test("an ack that is refused leaves the lease alive, to be acked again", async () => {
  let count = 0;
  const { client, extensions } = serviceOf({
    ack: () => {
      if (count++ === 0) {
        throw refusal(Code.Unauthenticated, ErrorReason.UNAUTHENTICATED);
      }
      return results(Settled.ACKED);
    },
  });
  const lease = await client.queue("q").lease();
  await assert.rejects(lease?.ack() ?? Promise.resolve(), (error: HeadwayError) =>
    error.is(ErrorReason.UNAUTHENTICATED),
  );
  await pass(10_100);
  assert.equal(extensions.length, 1);
  assert.equal((await lease?.ack())?.settled, Settled.ACKED);
  await pass(60_000);
  assert.equal(extensions.length, 1);
});

test("a lease that could not be given back lapses", async () => {
  const { client, extensions } = serviceOf({
    delay: () => {
      throw refusal(Code.Unauthenticated, ErrorReason.UNAUTHENTICATED);
    },
  });
  const lease = await client.queue("q").lease();
  await lease?.giveBack();
  assert.equal(client.held.size, 0);
  await pass(60_000);
  assert.equal(extensions.length, 0);
});

test("a lease is extended while its ack is being tried", async () => {
  let answer: (() => void) | undefined;
  const { client, extensions } = serviceOf({
    ack: async () => {
      await new Promise<void>((resolve) => {
        answer = resolve;
      });
      return results(Settled.ACKED);
    },
  });
  const lease = await client.queue("q").lease({ leaseMs: 3_000 });
  const ack = lease?.ack();
  await pass(3_100);
  assert.equal(extensions.length, 3);
  answer?.();
  assert.equal((await ack)?.settled, Settled.ACKED);
  await pass(60_000);
  assert.equal(extensions.length, 3);
});

test("an extension that an ack overtakes does not make the lease look lost", async () => {
  let answer: (() => void) | undefined;
  const { client, acks } = serviceOf({
    extend: async () => {
      await new Promise<void>((resolve) => {
        answer = resolve;
      });
      return results(acks.length > 0 ? Settled.GONE : Settled.EXTENDED);
    },
  });
  const lease = await client.queue("q").lease();
  await pass(10_100);
  const ack = lease?.ack();
  await settle();
  answer?.();
  assert.equal((await ack)?.settled, Settled.ACKED);
  await settle();
  assert.ok(!lease?.signal.aborted);
});

test("a lease is extended while the answer to its progress does not come, and an ack does not wait for that", async () => {
  const extensions: boolean[] = [];
  const { client, acks } = serviceOf({
    extend: async ({ progress }, { signal }) => {
      extensions.push(progress !== undefined);
      await (progress && new Promise((resolve) => signal.addEventListener("abort", resolve)));
      return results(Settled.EXTENDED);
    },
  });
  const lease = await client.queue("q").lease({ leaseMs: 3_000 });
  const isUnknown = (error: HeadwayError) => error.isOutcomeUnknown;
  const told = assert.rejects(lease?.progress(0.5) ?? Promise.resolve(), isUnknown);
  await pass(2_100);
  assert.deepEqual(extensions, [true, false, false]);
  await lease?.ack(Buffer.from("made"));
  assert.deepEqual(acks, ["made"]);
  await pass(10_000);
  await told;
});

test("a handler that returns while its lease is being found lost has worked in vain", async () => {
  const stale = () => results(Settled.STALE);
  const { client } = serviceOf({ ack: stale, extend: () => new Promise(() => undefined) });
  const ending = new AbortController();
  const handler = () => new Promise<void>((resolve) => ending.signal.addEventListener("abort", () => resolve()));
  const isStale = (error: HeadwayError) => error.is(ErrorReason.LEASE_STALE);
  const scope = assert.rejects(client.queue("q").withLease(handler), isStale);
  await settle();
  await pass(10_100);
  ending.abort();
  await scope;
  await pass(10_000);
});

test("a lease that a repeated get brings is extended at once", async () => {
  let gets = 0;
  const { client, extensions } = serviceOf({
    get: () => {
      if (gets++ === 0) {
        throw broken();
      }
      return { deliveries: [DELIVERY] };
    },
  });
  const leased = client.queue("q").lease();
  await pass(200);
  const lease = await leased;
  await pass(50);
  assert.deepEqual([gets, extensions.length], [2, 1]);
  await pass(9_800);
  assert.equal(extensions.length, 1);
  await lease?.ack();
});

test("what is settled is not settled again, and is not lost by that", async () => {
  const { client, acks, delays } = serviceOf({ delay: () => results(Settled.STALE) });
  const lease = await client.queue("q").lease();
  await lease?.ack();
  assert.equal((await lease?.delay())?.settled, Settled.ACKED);
  assert.equal((await lease?.ack())?.settled, Settled.ACKED);
  assert.deepEqual([acks.length, delays.length, lease?.signal.aborted], [1, 0, false]);
});

test("a client that is closed waits for no message any more", async () => {
  const { client, delays } = serviceOf();
  const held = await client.queue("q").lease();
  const isCancelled = (error: HeadwayError) => error.code === Code.Canceled;
  const waiting = assert.rejects(client.queue("q").lease({ waitMs: 60_000 }), isCancelled);
  await settle();
  await client.close();
  await waiting;
  assert.ok(held?.signal.aborted);
  assert.equal(delays.length, 1);
});

test("a client that is closed lets an ack end, but does not wait for ever", async () => {
  const alive = setInterval(() => undefined, 10); // as a connection would keep the process
  for (const isAnswered of [true, false]) {
    let answer: (() => void) | undefined;
    const { transport, delays } = serviceOf({
      ack: async () => {
        await new Promise<void>((resolve) => {
          answer = resolve;
        });
        return results(Settled.ACKED);
      },
    });
    const client = new Client(transport, isAnswered ? 10_000 : 50);
    const lease = await client.queue("q").lease();
    let isAcked = false;
    const ack = lease?.ack().then(() => {
      isAcked = true;
    });
    await settle();
    const closing = client.close();
    await settle();
    void (isAnswered && answer?.());
    await closing;
    assert.deepEqual([isAcked, delays.length], [isAnswered, 0]);
    answer?.();
    await ack;
  }
  clearInterval(alive);
});

test("a message that comes although the client was closed goes back, and nobody works on it", async () => {
  let come: (() => void) | undefined;
  const { transport, delays, extensions } = serviceOf({
    get: async () => {
      await new Promise<void>((resolve) => {
        come = resolve;
      });
      return { deliveries: [DELIVERY] };
    },
  });
  // It does not hear of what is cancelled.
  const unary: typeof transport.unary = (method, _, ...rest) => transport.unary(method, undefined, ...rest);
  const client = new Client({ ...transport, unary });
  const handler = mock.fn(async () => undefined);
  const scope = assert.rejects(client.queue("q").withLease(handler), { name: "AbortError" });
  await settle();
  await client.close();
  come?.();
  await scope;
  assert.equal(handler.mock.callCount(), 0);
  assert.equal(delays[0]?.keepAttempt, true);
  await pass(60_000);
  assert.equal(extensions.length, 0);
});

test("a worker finishes what it holds when it is stopped", async () => {
  const { client, acks } = serviceOf();
  const stop = new AbortController();
  let finish: (() => void) | undefined;
  const handler = () =>
    new Promise<void>((resolve) => {
      finish = resolve;
    });
  const worker = client.queue("q").work(handler, { stop: stop.signal, concurrency: 2 });
  await settle();
  stop.abort();
  await settle();
  assert.deepEqual(acks, []);
  finish?.();
  await worker;
  assert.deepEqual(acks, [""]);
});

test("what a get leased that was cancelled while it was answered goes back for free", async () => {
  const asked: GetRequest[] = [];
  const { client, delays } = serviceOf({
    get: async (request, { signal }) => {
      asked.push(request);
      await (request.wait && new Promise((resolve) => signal.addEventListener("abort", resolve)));
      return { deliveries: [DELIVERY] };
    },
  });
  const [queue, stop, cancel] = [client.queue("q"), new AbortController(), new AbortController()];
  const handler = mock.fn(async () => undefined);
  const worker = queue.work(handler, { stop: stop.signal });
  await settle();
  stop.abort();
  await worker;
  const isCancelled = (error: HeadwayError) => error.code === Code.Canceled;
  const waiting = assert.rejects(queue.withLease(handler, { waitMs: 60_000, signal: cancel.signal }), isCancelled);
  await settle();
  cancel.abort();
  await waiting;
  const [one, again, other, otherAgain] = asked.map(({ attemptId }) => attemptId);
  assert.deepEqual([asked.length, again, otherAgain], [4, one, other]);
  assert.deepEqual([handler.mock.callCount(), delays.length], [0, 2]);
  assert.ok(delays.every(({ keepAttempt, available }) => keepAttempt && available.case === "delay"));
});

test("a worker acks when the service is back, and ends when the queue is drained", async () => {
  let [gets, acks] = [0, 0];
  const { client } = serviceOf({
    get: () => {
      if (gets++ > 0) {
        throw refusal(Code.FailedPrecondition, ErrorReason.QUEUE_DRAINED);
      }
      return { deliveries: [DELIVERY] };
    },
    ack: () => {
      if (acks++ < 6) {
        throw refusal(Code.Unavailable, ErrorReason.SHUTTING_DOWN);
      }
      return results(Settled.ACKED);
    },
  });
  let isEnded = false;
  const worker = client
    .queue("q")
    .work(async () => undefined)
    .then(() => {
      isEnded = true;
    });
  while (!isEnded) {
    await pass(1_000);
  }
  await worker;
  assert.deepEqual([gets, acks], [2, 7]);
});

test("a worker goes on with the token of now, and ends when that is refused", async () => {
  for (const code of [Code.Unauthenticated, Code.PermissionDenied]) {
    const names: string[] = [];
    const { client, acks } = serviceOf({
      get: ({ attemptId }) => {
        if (names.push(attemptId) === 2) {
          return { deliveries: [DELIVERY] };
        }
        throw refusal(code, ErrorReason.UNAUTHENTICATED);
      },
    });
    const worker = client.queue("q").work(async () => undefined);
    const ended = assert.rejects(worker, (error: HeadwayError) => error.code === code);
    await pass(3_000);
    await ended;
    assert.equal(acks.length, 1);
    assert.deepEqual([names.length, new Set(names).size, names[0], names[2]], [4, 2, names[1], names[3]]);
  }
});

test("a worker keeps the name of its get until one is answered, and extends what that brings at once", async () => {
  const names: string[] = [];
  const { client, extensions } = serviceOf({
    get: ({ attemptId }) => {
      if (names.push(attemptId) === 1) {
        throw new ConnectError("lost, and not asked for again by the call itself", Code.Internal);
      }
      if (names.length > 2) {
        throw refusal(Code.FailedPrecondition, ErrorReason.QUEUE_DRAINED);
      }
      return { deliveries: [DELIVERY] };
    },
  });
  const worker = client.queue("q").work(async () => settle());
  await pass(1_000);
  await worker;
  assert.equal(names[0], names[1]);
  assert.notEqual(names[1], names[2]);
  assert.equal(extensions.length, 1);
});

test("a worker that is stopped behind a get that failed gives back what that may have leased", async () => {
  const [names, stop] = [[] as string[], new AbortController()];
  const { client, delays } = serviceOf({
    get: ({ attemptId }) => {
      if (names.push(attemptId) === 1) {
        throw refusal(Code.FailedPrecondition, ErrorReason.QUEUE_PAUSED, {}, 60_000);
      }
      return { deliveries: [DELIVERY] };
    },
  });
  const worker = client.queue("q").work(untilGivenUp, { stop: stop.signal });
  await pass(1_000); // it pauses
  assert.equal(names.length, 1);
  stop.abort();
  await worker;
  assert.equal(new Set(names).size, 1);
  assert.deepEqual(
    delays.map((it) => it.keepAttempt),
    [true],
  );
});

test("a get that does not wait, and is refused, is not made again", async () => {
  let asked = 0;
  const get = () => {
    asked++;
    throw refusal(Code.Unauthenticated, ErrorReason.UNAUTHENTICATED);
  };
  for (const waitMs of [undefined, 0]) {
    const refused = serviceOf({ get }).client.queue("q").lease({ waitMs });
    await assert.rejects(refused, (error: HeadwayError) => error.is(ErrorReason.UNAUTHENTICATED));
  }
  assert.equal(asked, 2);
});

test("a worker of a queue that is not there fails, and all of its slots end", async () => {
  const get = () => {
    throw refusal(Code.NotFound, ErrorReason.QUEUE_NOT_FOUND);
  };
  const worker = serviceOf({ get }).client.queue("q").work(untilGivenUp, { concurrency: 3 });
  await assert.rejects(worker, (error: HeadwayError) => error.is(ErrorReason.QUEUE_NOT_FOUND));
});

test("a worker that gRPC itself refuses, for its metadata is too large, fails", async () => {
  const get = () => {
    throw new ConnectError("received metadata size exceeds hard limit", Code.ResourceExhausted);
  };
  const worker = serviceOf({ get }).client.queue("q").work(untilGivenUp);
  await assert.rejects(worker, (error: HeadwayError) => error.code === Code.ResourceExhausted);
});

test("a worker refuses a concurrency that is none", async () => {
  for (const concurrency of [0, -1, Number.NaN]) {
    await assert.rejects(serviceOf().client.queue("q").work(untilGivenUp, { concurrency }), RangeError);
  }
});

test("a worker says why a handler failed, and goes on", async () => {
  const { client, delays } = serviceOf();
  const stop = new AbortController();
  const worker = client.queue("q").work(
    async () => {
      throw new RangeError("x");
    },
    { stop: stop.signal },
  );
  await settle();
  assert.equal(delays[0]?.reason, "RangeError");
  assert.ok(warn.mock.calls.some((call) => call.arguments.some((each) => each instanceof RangeError)));
  stop.abort();
  await worker;
});

/** A handler that works until it is told to give up. */
function untilGivenUp(lease: Lease): Promise<void> {
  return new Promise((_, reject) => lease.signal.addEventListener("abort", () => reject(lease.signal.reason)));
}

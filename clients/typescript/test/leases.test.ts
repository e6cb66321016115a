import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";
import { Code, type ServiceImpl } from "@connectrpc/connect";
import { ErrorReason, type HeadwayError, type Lease } from "@headway/client";
import { type DelayRequest, type ExtendRequest, type QueueService, Settled } from "@headway/client/v1";
import { clientOf, DELIVERY, pass, refusal, settle } from "./service.js";

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
  let isLeased = false;
  const calls: Calls = {
    get: async (_, { signal }) => {
      if (isLeased) {
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        return {};
      }
      isLeased = true;
      return { deliveries: [DELIVERY] };
    },
    extend: () => results(Settled.EXTENDED),
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
  return { client: clientOf(calls), delays, acks };
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

test("a worker of a queue that is not there fails, and all of its slots end", async () => {
  const get = () => {
    throw refusal(Code.NotFound, ErrorReason.QUEUE_NOT_FOUND);
  };
  const worker = serviceOf({ get }).client.queue("q").work(untilGivenUp, { concurrency: 3 });
  await assert.rejects(worker, (error: HeadwayError) => error.is(ErrorReason.QUEUE_NOT_FOUND));
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

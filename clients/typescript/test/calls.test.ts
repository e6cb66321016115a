import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { ErrorReason, type HeadwayError } from "@headway/client";
import { GetRequestSchema, OnDuplicate, PutRequestSchema } from "@headway/client/v1";
import { broken, clientOf, pass, refusal } from "./service.js";

beforeEach(() => mock.timers.reset());

const away = () => refusal(Code.Unavailable, ErrorReason.SHUTTING_DOWN, {}, 100);

test("a call that reads is made again while the service is away, until its deadline", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
  let count = 0;
  const describe = () => {
    count++;
    throw away();
  };
  const call = assert.rejects(clientOf({ describe }).queues.describe({}), (error: HeadwayError) =>
    error.is(ErrorReason.SHUTTING_DOWN),
  );
  await pass(10_000);
  await call;
  assert.ok(count >= 6, `${count}`);
});

test("a put without ids, and a get without an attempt, are made once", async () => {
  const counts = { put: 0, get: 0 };
  const client = clientOf({
    put: () => {
      counts.put++;
      throw broken();
    },
    get: () => {
      counts.get++;
      throw broken();
    },
  });
  const isUnknown = (error: HeadwayError) => error.isOutcomeUnknown;
  await assert.rejects(client.queue("q").put([{ id: "a" }, {}]), isUnknown);
  await assert.rejects(client.queues.get({ queue: "q" }), isUnknown);
  assert.deepEqual(counts, { put: 1, get: 1 });
});

test("a put with ids whose answer was lost is made again, and finds its own messages there", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const asked: OnDuplicate[] = [];
  const client = clientOf({
    put: ({ onDuplicate }) => {
      if (asked.push(onDuplicate) % 2 === 1) {
        throw broken();
      }
      return { results: [{ id: "a", deduplicated: true }] };
    },
  });
  const request = { queue: "q", messages: [{ id: "a" }] };
  const call = client.queues.put(request);
  await pass(1_000);
  assert.ok((await call).results[0]?.deduplicated);
  assert.deepEqual(asked, [OnDuplicate.UNSPECIFIED, OnDuplicate.KEEP]);
  const unnamed = client.queues.put({ queue: "q", messages: [{}] });
  await assert.rejects(unnamed, (error: HeadwayError) => error.isOutcomeUnknown);
  assert.equal(asked.length, 3);
});

test("the error of a try that may have happened is not hidden by a later one", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
  let count = 0;
  const ack = () => {
    throw count++ === 0 ? refusal(Code.Unavailable, ErrorReason.OUTCOME_UNKNOWN) : away();
  };
  const call = assert.rejects(clientOf({ ack }).queues.ack({}), (error: HeadwayError) =>
    error.is(ErrorReason.OUTCOME_UNKNOWN),
  );
  await pass(10_000);
  await call;
  assert.ok(count > 1);
});

/** How a put ends whose first answer was lost, and whose second is this. */
async function putAgain(code: Code, reason: ErrorReason): Promise<HeadwayError> {
  let count = 0;
  const put = () => {
    throw count++ === 0 ? broken() : refusal(code, reason);
  };
  const failed = clientOf({ put })
    .queue("q")
    .put([{ id: "a" }])
    .catch((error) => error);
  await pass(10_000);
  assert.ok(count > 1);
  return failed;
}

test("a repeat that is refused unseen leaves it unknown what its first try did", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
  for (const [code, reason] of [
    [Code.Unavailable, ErrorReason.SHUTTING_DOWN],
    [Code.ResourceExhausted, ErrorReason.OVERLOADED],
    [Code.ResourceExhausted, ErrorReason.QUOTA_EXCEEDED],
    [Code.ResourceExhausted, ErrorReason.STORE_FULL],
    [Code.Unauthenticated, ErrorReason.UNAUTHENTICATED],
    [Code.PermissionDenied, ErrorReason.PERMISSION_DENIED],
    [Code.FailedPrecondition, ErrorReason.QUEUE_CLOSED],
  ] as const) {
    const error = await putAgain(code, reason);
    assert.ok(error.isOutcomeUnknown && error.code === Code.Unavailable, `${ErrorReason[reason]}: ${error}`);
  }
});

test("a repeat that tells what became of the call is believed", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
  for (const [code, reason] of [
    [Code.NotFound, ErrorReason.QUEUE_NOT_FOUND],
    [Code.AlreadyExists, ErrorReason.DUPLICATE_MESSAGE],
    [Code.InvalidArgument, ErrorReason.TOO_LARGE],
  ] as const) {
    assert.ok((await putAgain(code, reason)).is(reason));
  }
});

test("a repeated get that finds the queue drained says so", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
  let count = 0;
  const get = () => {
    throw count++ === 0 ? broken() : refusal(Code.FailedPrecondition, ErrorReason.QUEUE_DRAINED);
  };
  const call = clientOf({ get }).queues.get({ queue: "q", attemptId: "a" });
  const failed = assert.rejects(call, (error: HeadwayError) => error.is(ErrorReason.QUEUE_DRAINED));
  await pass(10_000);
  await failed;
  assert.equal(count, 2);
});

test("a withdraw whose answer was lost is not made again, for that would say that it was too late", async () => {
  let count = 0;
  const withdraw = () => {
    count++;
    throw broken();
  };
  const call = clientOf({ withdraw }).queues.withdraw({ queue: "q", messageIds: ["a"] });
  await assert.rejects(call, (error: HeadwayError) => error.isOutcomeUnknown);
  assert.equal(count, 1);
});

test("a call has a deadline of its wait and ten seconds more, in whole milliseconds", async () => {
  const left: (number | undefined)[] = [];
  const client = clientOf({
    put: (_, context) => {
      left.push(context.timeoutMs());
      return { results: [{}] };
    },
  });
  await client.queue("q").put([{}], { waitMs: 5_000.25 });
  await client.queues.put({ queue: "q" }, { timeoutMs: 700.5 });
  const [given = 0, own = 0] = left;
  assert.ok(given > 14_000 && given <= 15_001, `${given}`);
  assert.ok(own > 0 && own <= 701, `${own}`);
});

test("a call that is not answered is made again where that is safe, with the wait that is left", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
  const asked: number[] = [];
  const client = clientOf({
    get: async ({ wait }, { signal }) => {
      if (asked.push(Number(wait?.seconds)) === 1) {
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
      }
      return {};
    },
    withdraw: async (_, { signal }) => {
      asked.push(-1);
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      return {};
    },
  });
  const request = create(GetRequestSchema, { queue: "q", attemptId: "a", wait: { seconds: 3n } });
  const got = client.queues.get(request);
  await pass(8_500);
  await got;
  assert.deepEqual(asked, [3, 0]);
  assert.equal(request.wait?.seconds, 3n);
  const withdrawn = assert.rejects(client.queues.withdraw({}), (error: HeadwayError) => error.isOutcomeUnknown);
  await pass(10_500);
  await withdrawn;
  assert.deepEqual(asked, [3, 0, -1]);
});

test("a put that is made again leaves its caller's request as it is", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  let count = 0;
  const put = () => {
    if (count++ === 0) {
      throw broken();
    }
    return { results: [{ id: "a" }] };
  };
  const request = create(PutRequestSchema, { queue: "q", messages: [{ id: "a" }] });
  const call = clientOf({ put }).queues.put(request);
  await pass(1_000);
  await call;
  assert.deepEqual([count, request.onDuplicate], [2, OnDuplicate.UNSPECIFIED]);
});

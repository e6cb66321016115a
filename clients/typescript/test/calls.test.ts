import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";
import { Code, createContextValues } from "@connectrpc/connect";
import { ErrorReason, HeadwayError, mostTries } from "@headway/client";
import { OnDuplicate } from "@headway/client/v1";
import { broken, clientOf, pass, refusal } from "./service.js";

beforeEach(() => mock.timers.reset());

const away = () => refusal(Code.Unavailable, ErrorReason.SHUTTING_DOWN, {}, 100);

test("a call that reads is made four times while the service is away, and no more", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  let count = 0;
  const describe = () => {
    count++;
    throw away();
  };
  const call = assert.rejects(clientOf({ describe }).queues.describe({}), (error: HeadwayError) =>
    error.is(ErrorReason.SHUTTING_DOWN),
  );
  await pass(5_000);
  await call;
  assert.equal(count, 4);
});

test("mostTries bounds that", async () => {
  let count = 0;
  const describe = () => {
    count++;
    throw away();
  };
  const contextValues = createContextValues().set(mostTries, 1);
  await assert.rejects(clientOf({ describe }).queues.describe({}, { contextValues }), HeadwayError);
  assert.equal(count, 1);
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
  await assert.rejects(client.queue("q").putAll([{ id: "a" }, {}]), isUnknown);
  await assert.rejects(client.queues.get({ queue: "q" }), isUnknown);
  assert.deepEqual(counts, { put: 1, get: 1 });
});

test("a put with ids whose answer was lost is made again, and its own message is no duplicate", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const asked: OnDuplicate[] = [];
  const client = clientOf({
    put: ({ onDuplicate }) => {
      asked.push(onDuplicate);
      if (asked.length === 1) {
        throw broken();
      }
      return {
        results: [
          { id: "a", deduplicated: true },
          { id: "b", deduplicated: true, bodyDiffers: true },
        ],
      };
    },
  });
  const call = client.queue("q").putAll([{ id: "a" }, { id: "b" }]);
  await pass(1_000);
  const results = await call;
  assert.deepEqual(asked, [OnDuplicate.UNSPECIFIED, OnDuplicate.KEEP]);
  assert.equal(results[0]?.error, undefined);
  assert.equal(results[1]?.error?.reason, ErrorReason.DUPLICATE_MESSAGE);
});

test("the error of a try that may have happened is not hidden by a later one", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  let count = 0;
  const put = () => {
    throw count++ === 0 ? refusal(Code.Unavailable, ErrorReason.OUTCOME_UNKNOWN) : away();
  };
  const call = assert.rejects(clientOf({ put }).queue("q").put({ id: "a" }), (error: HeadwayError) =>
    error.is(ErrorReason.OUTCOME_UNKNOWN),
  );
  await pass(5_000);
  await call;
  assert.equal(count, 4);
});

test("a call has a deadline of its wait and ten seconds more, in whole milliseconds", async () => {
  const left: (number | undefined)[] = [];
  const client = clientOf({
    put: (_, context) => {
      left.push(context.timeoutMs());
      return { results: [{}] };
    },
  });
  await client.queue("q").put({}, { waitMs: 5_000.25 });
  await client.queues.put({ queue: "q" }, { timeoutMs: 700.5 });
  const [given = 0, own = 0] = left;
  assert.ok(given > 14_000 && given <= 15_001, `${given}`);
  assert.ok(own > 0 && own <= 701, `${own}`);
});

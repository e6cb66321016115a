import assert from "node:assert/strict";
import { test } from "node:test";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorReason, HeadwayError } from "@headway/client";
import { BadRequestSchema, ErrorInfoSchema } from "#dist/gen/google/rpc/error_details_pb.js";
import { broken, clientOf, refusal, settle } from "./service.js";

test("an error has the code, reason, metadata and time that the service told", async () => {
  const client = clientOf({
    put: () => {
      throw refusal(Code.ResourceExhausted, ErrorReason.QUEUE_FULL, { bound: "1" }, 1500);
    },
  });
  await assert.rejects(client.queue("q").put([{}]), (error: HeadwayError) => {
    assert.ok(error instanceof HeadwayError && error.is(ErrorReason.QUEUE_FULL, ErrorReason.QUEUE_CLOSED));
    assert.equal(error.code, Code.ResourceExhausted);
    assert.deepEqual({ ...error.metadata }, { bound: "1" });
    assert.equal(error.retryAfterMs, 1500);
    assert.equal(error.message, "QUEUE_FULL: said for people");
    assert.ok(!error.isOutcomeUnknown && error.isPassing);
    return true;
  });
});

test("violations name the fields", () => {
  const refused = new ConnectError("no", Code.InvalidArgument);
  const fieldViolations = [{ field: "queue", description: "is empty" }];
  refused.details.push({ desc: BadRequestSchema, value: { fieldViolations } });
  const [violation] = HeadwayError.from(refused).violations;
  assert.equal(violation?.field, "queue");
  assert.equal(violation?.description, "is empty");
});

test("a connection that broke is Unavailable and its outcome unknown, unless the caller cancelled", () => {
  assert.equal(HeadwayError.from(broken()).code, Code.Unavailable);
  assert.ok(HeadwayError.from(broken()).isOutcomeUnknown);
  assert.equal(HeadwayError.from(broken(), AbortSignal.abort()).code, Code.Canceled);
  const reset = Object.assign(new Error("read"), { code: "ECONNRESET" });
  assert.equal(HeadwayError.from(new ConnectError("read", Code.Internal, {}, [], reset)).code, Code.Unavailable);
});

test("what breaks fetch is Unavailable, too, and so is a stream without its end", () => {
  const thrown = [new TypeError("Failed to fetch"), "missing EndStreamResponse", "missing trailer"];
  assert.deepEqual(
    thrown.map((each) => HeadwayError.from(ConnectError.from(each)).code),
    thrown.map(() => Code.Unavailable),
  );
});

test("a reason of the service's makes its code its own word, whatever the protocol", () => {
  const refused = new ConnectError("no", Code.Aborted, { "content-type": "application/json" });
  refused.details.push({ desc: ErrorInfoSchema, value: { domain: "headway.v1", reason: "ROLE_IN_USE" } });
  assert.equal(HeadwayError.from(refused).code, Code.Aborted);
});

test("what the service says stays as it is, but Canceled, which gRPC says for it, is Unavailable to who did not cancel", () => {
  const refused = new ConnectError("no room to refuse", Code.Canceled, { "grpc-status": "1" });
  assert.equal(HeadwayError.from(refused).code, Code.Unavailable);
  assert.equal(HeadwayError.from(refused, AbortSignal.abort()).code, Code.Canceled);
  const aborted = new ConnectError("said for people", Code.Aborted, { "grpc-status": "10" });
  assert.equal(HeadwayError.from(aborted).code, Code.Aborted);
});

test("a reason that this client does not know leaves the code to speak", () => {
  const error = HeadwayError.from(refusal(Code.NotFound, 9999 as ErrorReason));
  assert.equal(error.reason, ErrorReason.UNSPECIFIED);
  assert.equal(error.code, Code.NotFound);
  assert.ok(!error.isPassing);
});

test("a stream that fails before anybody reads it tells whoever does", async () => {
  const client = clientOf({
    // biome-ignore lint/correctness/useYield: it fails before its first answer
    watchPosition: async function* () {
      throw refusal(Code.NotFound, ErrorReason.QUEUE_NOT_FOUND);
    },
  });
  const answers = client.queues.watchPosition({ queue: "q" })[Symbol.asyncIterator]();
  await settle(); // an error that nobody hears of would end the process here
  await assert.rejects(answers.next(), (error: HeadwayError) => error.is(ErrorReason.QUEUE_NOT_FOUND));
});

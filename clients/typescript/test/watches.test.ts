import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorReason, type HeadwayError } from "@headway/client";
import { Outcome, type WatchPositionRequest, type WatchPositionResponseSchema } from "@headway/client/v1";
import { broken, clientOf, pass, refusal, settle } from "./service.js";

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
});

type Answer = MessageInitShape<typeof WatchPositionResponseSchema>;
const at = (id: string, position: bigint, seconds: bigint): Answer => ({
  asOf: { seconds },
  event: { case: "position", value: { subject: { case: "id", value: id }, position } },
});
const end = (id: string, seconds: bigint): Answer => ({
  asOf: { seconds },
  event: { case: "finished", value: { id, outcome: Outcome.DONE } },
});

/** A client whose watches answer one script after the other; an error in a script breaks its stream. */
function scripted(...scripts: (Answer | Error)[][]) {
  const asked: string[][] = [];
  async function* watchPosition({ subject }: WatchPositionRequest) {
    asked.push(subject.case === "messages" ? subject.value.ids : []);
    for (const each of scripts.shift() ?? [refusal(Code.Unavailable, ErrorReason.STORE_UNAVAILABLE)]) {
      if (each instanceof Error) {
        throw each;
      }
      yield each;
    }
  }
  return { client: clientOf({ watchPosition }, 1_000), asked };
}

async function told(updates: AsyncIterable<{ event: { case?: string; value?: unknown } }>): Promise<string[]> {
  const seen: string[] = [];
  for await (const { event } of updates) {
    seen.push(`${event.case} ${(event.value as { position?: bigint }).position ?? ""}`.trim());
  }
  return seen;
}

test("a watch goes on where its stream broke, with those that have not ended", async () => {
  const { client, asked } = scripted(
    [at("a", 2n, 20n), at("b", 3n, 20n), end("b", 21n), broken()],
    [at("a", 1n, 30n)], // the stream ends before its last word
    [refusal(Code.Unavailable, ErrorReason.SHUTTING_DOWN, {}, 100)],
    [end("a", 40n)],
  );
  const seen = told(client.queue("q").watch(["a", "b"]));
  await pass(3_000);
  assert.deepEqual(await seen, ["position 2", "position 3", "finished", "position 1", "finished"]);
  assert.deepEqual(asked, [["a", "b"], ["a"], ["a"], ["a"]]);
});

test("a watch whose stream says nothing asks anew when the call timeout is over", async () => {
  let asked = 0;
  const client = clientOf(
    {
      watchPosition: async function* (_, { signal }) {
        await (asked++ === 0 && new Promise((resolve) => signal.addEventListener("abort", resolve)));
        yield at("a", 1n, 1n);
        await pass(2_000); // of a later answer nobody knows when it comes
        yield end("a", 3n);
      },
    },
    1_000,
  );
  const seen = told(client.queue("q").watch(["a"]));
  await pass(2_000);
  assert.deepEqual(await seen, ["position 1", "finished"]);
  assert.equal(asked, 2);
});

test("a watch of a queue that is not there fails at once", async () => {
  const { client } = scripted([refusal(Code.NotFound, ErrorReason.QUEUE_NOT_FOUND)]);
  await assert.rejects(told(client.queue("q").watch(["a"])), (error: HeadwayError) =>
    error.is(ErrorReason.QUEUE_NOT_FOUND),
  );
});

test("a watch of more than gRPC takes in one request fails at once", async () => {
  const { client, asked } = scripted([new ConnectError("received message larger than max", Code.ResourceExhausted)]);
  await assert.rejects(told(client.queue("q").watch(["a"])), { code: Code.ResourceExhausted });
  assert.equal(asked.length, 1);
});

test("a watch that was served goes on with the token of now, and ends when that is refused", async () => {
  for (const code of [Code.Unauthenticated, Code.PermissionDenied]) {
    const expired = refusal(code, ErrorReason.UNAUTHENTICATED);
    const { client, asked } = scripted([at("a", 2n, 20n), expired], [at("a", 1n, 30n), expired], [expired]);
    const seen: (bigint | undefined)[] = [];
    const watching = async () => {
      for await (const { event } of client.queue("q").watch(["a"])) {
        seen.push(event.case === "position" ? event.value.position : undefined);
      }
    };
    const ended = assert.rejects(watching(), (error: HeadwayError) => error.code === code);
    await pass(3_000);
    await ended;
    assert.deepEqual(seen, [2n, 1n]);
    assert.equal(asked.length, 3);
  }
});

test("a watch that is refused before it is served fails at once", async () => {
  const { client, asked } = scripted([refusal(Code.Unauthenticated, ErrorReason.UNAUTHENTICATED)]);
  await assert.rejects(told(client.queue("q").watch(["a"])), (error: HeadwayError) =>
    error.is(ErrorReason.UNAUTHENTICATED),
  );
  assert.equal(asked.length, 1);
});

test("a watch of nothing ends at once", async () => {
  assert.deepEqual(await told(scripted().client.queue("q").watch([])), []);
});

test("a watch ends when its client is closed", async () => {
  const client = clientOf({
    watchPosition: async function* (_, { signal }) {
      yield at("a", 1n, 1n);
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
    },
  });
  const answers = client.queue("q").watch(["a"]);
  assert.equal((await answers.next()).value?.event.case, "position");
  const ended = assert.rejects(answers.next(), (error: HeadwayError) => error.code === Code.Canceled);
  await client.close();
  await ended;
});

test("leaving the loop ends the stream", async () => {
  let isEnded = false;
  const client = clientOf({
    watchPosition: async function* (_, { signal }) {
      signal.addEventListener("abort", () => {
        isEnded = true;
      });
      yield at("a", 1n, 1n);
      yield at("a", 2n, 2n);
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
    },
  });
  for await (const { event } of client.queue("q").watch(["a"])) {
    assert.equal(event.case, "position");
    assert.ok(!isEnded);
    break;
  }
  await settle();
  assert.ok(isEnded);
});

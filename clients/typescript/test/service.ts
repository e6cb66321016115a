/** A service in this process that answers as a test says, and what the tests of calls need besides. */
import { mock } from "node:test";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createRouterTransport, type ServiceImpl, type Transport } from "@connectrpc/connect";
import { Client, ErrorReason } from "@headway/client";
import { type DeliverySchema, QueueService } from "@headway/client/v1";
import { ErrorInfoSchema, RetryInfoSchema } from "#dist/gen/google/rpc/error_details_pb.js";

/** A client of a service that has only the calls given. */
export function clientOf(calls: Partial<ServiceImpl<typeof QueueService>>, callTimeoutMs?: number): Client {
  return new Client(transportOf(calls), callTimeoutMs);
}

/** The transport to such a service. */
export function transportOf(calls: Partial<ServiceImpl<typeof QueueService>>): Transport {
  return createRouterTransport(({ service }) => service(QueueService, calls));
}

/** An error as the service sends it. */
export function refusal(code: Code, reason: ErrorReason, metadata = {}, retryAfterMs = 0): ConnectError {
  const info = { domain: "headway.v1", reason: ErrorReason[reason], metadata };
  const error = new ConnectError("said for people", code, { "grpc-status": String(code) });
  error.details.push({ desc: ErrorInfoSchema, value: info });
  error.details.push({ desc: RetryInfoSchema, value: { retryDelay: durationFromMs(retryAfterMs) } });
  return error;
}

/** A connection that broke: no word of the service's. */
export function broken(): ConnectError {
  return new ConnectError("http/2 stream closed with error code CANCEL (0x8)", Code.Canceled);
}

/** A message that is leased for 30 s. */
export const DELIVERY = {
  message: { id: "m", payload: new Uint8Array([1]) },
  lease: "token",
  leaseExpiresAt: { seconds: 40n },
  putAt: { seconds: 8n },
  waited: { seconds: 2n },
  attempt: 1,
} satisfies MessageInitShape<typeof DeliverySchema>;

/** Lets timers of up to so many milliseconds run out at once, and what they began go on. */
export async function pass(ms: number): Promise<void> {
  for (let left = ms; left > 0; left -= 50) {
    mock.timers.tick(Math.min(left, 50));
    await settle();
  }
}

/** Lets everything go on that needs no timer. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) {
    await new Promise(setImmediate);
  }
}

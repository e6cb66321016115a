/** What does not need Node: the client over a transport that is given to it. */
export { Code } from "@connectrpc/connect";
export * from "./client.js";
export * from "./errors.js";
export { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
export type { Handler, Lease } from "./lease.js";
export * from "./queue.js";

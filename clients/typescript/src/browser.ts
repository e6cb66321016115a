/** What does not need Node: the client over a transport that is given to it. */
export { Code } from "@connectrpc/connect";
export { Client, type ClientOptions } from "./client.js";
export { HeadwayError, type Violation } from "./errors.js";
export { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
export { type DelayOptions, Lease } from "./lease.js";
export { type Handler, type LeaseOptions, type PutOptions, Queue } from "./queue.js";
export { mostTries } from "./transport.js";
export type { WatchOptions } from "./watch.js";
export type { WorkOptions } from "./work.js";

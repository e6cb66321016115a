/** The generated messages, enums and services of headway.v1. */
export * from "./gen/headway/v1/admin_service_pb.js";
export * from "./gen/headway/v1/error_reason_pb.js";
export * from "./gen/headway/v1/message_pb.js";
export * from "./gen/headway/v1/queue_pb.js";
export * from "./gen/headway/v1/queue_service_pb.js";

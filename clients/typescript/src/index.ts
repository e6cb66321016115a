/** Headway for TypeScript. See README.md. */
export * from "./browser.js";
export { type ConnectOptions, connect, type SecureOptions } from "./node.js";

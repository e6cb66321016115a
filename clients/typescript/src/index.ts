/** Headway for TypeScript. See README.md. */
export * from "./browser.js";
export { type ConnectOptions, connect } from "./node.js";

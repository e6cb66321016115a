import { readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { bearer, connect } from "@headway/client";

const { HEADWAY_CA = "", HEADWAY_CERT = "", HEADWAY_KEY = "", HEADWAY_TOKEN_FILE = "" } = process.env;
const tls = {
  ca: readFileSync(HEADWAY_CA), // without it: whom Node trusts
  cert: readFileSync(HEADWAY_CERT), // if the service wants a certificate
  key: readFileSync(HEADWAY_KEY),
};
const token = bearer(() => readFile(HEADWAY_TOKEN_FILE, "utf8")); // asked for each call: a token may expire

await using client = connect({ tls, interceptors: [token] });
await client.queues.create({ queue: "typescript-secure" });
console.log("created over TLS");

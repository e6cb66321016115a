import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import type { AddressInfo } from "node:net";
import { afterEach, test } from "node:test";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { Code, connect, HeadwayError } from "@headway/client";
import { AdminService } from "@headway/client/v1";

/** A server on a port of its own, which counts its calls. */
class Counting {
  count = 0;
  readonly #sessions = new Set<ServerHttp2Session>();
  readonly #server: Http2Server = createServer(
    connectNodeAdapter({
      routes: ({ service }) =>
        service(AdminService, {
          getServerInfo: () => {
            this.count++;
            return {};
          },
        }),
    }),
  );

  async listen(): Promise<string> {
    this.#server.on("session", (session) => this.#sessions.add(session));
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Tells all connections to go elsewhere, as a service does that goes down. */
  sayGoodBye(): void {
    for (const session of this.#sessions) {
      session.goaway();
    }
    this.#sessions.clear();
  }

  stop(): void {
    this.#server.close();
    for (const session of this.#sessions) {
      session.destroy();
    }
  }
}

const servers: Counting[] = [];

afterEach(() => {
  for (const server of servers.splice(0)) {
    server.stop();
  }
});

async function started(): Promise<[Counting, string]> {
  const server = new Counting();
  servers.push(server);
  return [server, await server.listen()];
}

test("a good-bye on a connection without calls is survived", async () => {
  const [server, here] = await started();
  await using client = connect({ addresses: [here] });
  for (let turns = 0; turns < 20; turns++) {
    await client.admin.getServerInfo({});
    server.sayGoodBye();
    // One of them comes while the old connection is closing: then its error is nobody's, and would end the process.
    for (let turn = 0; turn < turns; turn++) {
      await new Promise(setImmediate);
    }
    await client.admin.getServerInfo({});
  }
  assert.equal(server.count, 40);
});

test("calls go to every address in turn, and to the one that is left", async () => {
  const [[one, here], [two, there]] = [await started(), await started()];
  await using client = connect({ addresses: [here, there] });
  while (one.count === 0 || two.count === 0) {
    await client.admin.getServerInfo({}); // until both are connected
  }
  [one.count, two.count] = [0, 0];
  for (let call = 0; call < 10; call++) {
    await client.admin.getServerInfo({});
  }
  assert.deepEqual([one.count, two.count], [5, 5]);
  one.stop();
  for (let call = 0; call < 10; call++) {
    await client.admin.getServerInfo({});
  }
  assert.equal(two.count, 15);
});

test("an address where nobody listens is passed over, and alone is Unavailable", async () => {
  const [[gone, nowhere], [server, here]] = [await started(), await started()];
  gone.stop();
  await using client = connect({ addresses: [nowhere, `http://${here}`] });
  await client.admin.getServerInfo({});
  assert.equal(server.count, 1);
  await using alone = connect({ addresses: [nowhere], callTimeoutMs: 100 });
  await assert.rejects(alone.admin.getServerInfo({}), (error: HeadwayError) => error.code === Code.Unavailable);
});

test("blanks and a comma at the end of HEADWAY_ADDRESS are no addresses", async () => {
  const [server, here] = await started();
  process.env.HEADWAY_ADDRESS = `${here}, `;
  try {
    await using client = connect();
    await client.admin.getServerInfo({});
    await client.admin.getServerInfo({});
  } finally {
    delete process.env.HEADWAY_ADDRESS;
  }
  assert.equal(server.count, 2);
});

test("a client that is closed makes no more calls", async () => {
  const [server, here] = await started();
  const client = connect({ addresses: [here] });
  await client.close();
  const isCancelled = (error: unknown) => error instanceof HeadwayError && error.code === Code.Canceled;
  await assert.rejects(client.admin.getServerInfo({}), isCancelled);
  assert.equal(server.count, 0);
});

// BullMQ: `addBulk` of a batch; a worker for each client, which have 100 jobs at a time, together, or four each if that is
// more. The same interface as bench/peers/driving.py. What is done with is counted in the file that all share every few
// milliseconds, and only where this process has something to count.
import { openSync, readFileSync, readSync, writeSync } from "node:fs";
import { createRequire } from "node:module";

const JOBS = 100; // of all workers at a time
const DIGITS = 10;
const FLUSH_MS = 2;
const MIN_JOBS = 4; // of one worker at a time

const task = JSON.parse(process.argv[2]);
const { Queue, Worker } = createRequire(task.options.modules)("bullmq");
const { hostname, port } = new URL(task.address);
const connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null };

function begin() {
  console.log("ready");
  readFileSync(task.fifo); // until it is closed by the one who opened it to write
}

function payload(number) {
  return String(number).padStart(DIGITS, "0").padEnd(task.size, "x");
}

async function put() {
  const queues = Array.from({ length: task.clients }, () => new Queue(task.queue, { connection }));
  await Promise.all(queues.map((queue) => queue.waitUntilReady()));
  begin();
  await Promise.all(
    queues.map(async (queue, n) => {
      const [start, end] = [n, n + 1].map((k) => Math.floor((task.count * (task.first + k)) / task.of));
      for (let first = start; first < end; first += task.batch) {
        const jobs = [];
        for (let one = first; one < Math.min(first + task.batch, end); one++) {
          jobs.push({ name: "job", data: payload(one), opts: { removeOnComplete: true } });
        }
        await queue.addBulk(jobs);
      }
    }),
  );
  console.log("done");
}

async function take() {
  const file = openSync(task.tally, "r+");
  let done = [];
  const flush = () => {
    const numbers = done.sort((one, other) => one - other);
    done = [];
    for (let from = 0, to; from < numbers.length; from = to) {
      for (to = from + 1; to < numbers.length && numbers[to] - numbers[to - 1] <= 1; ) to++;
      const first = numbers[from];
      const counts = Buffer.alloc(numbers[to - 1] - first + 1);
      readSync(file, counts, 0, counts.length, first);
      for (const number of numbers.slice(from, to)) counts[number - first] = Math.min(counts[number - first] + 1, 255);
      writeSync(file, counts, 0, counts.length, first);
    }
  };
  const job = async () => {};
  const options = { connection, concurrency: Math.max(MIN_JOBS, JOBS / task.clients), autorun: false };
  const workers = Array.from({ length: task.clients }, () => new Worker(task.queue, job, options));
  for (const worker of workers) {
    worker.on("completed", ({ data }) => done.push(Number(data.slice(0, DIGITS))));
  }
  await Promise.all(workers.map((worker) => worker.waitUntilReady()));
  begin();
  setInterval(flush, FLUSH_MS);
  await Promise.all(workers.map((worker) => worker.run()));
}

await (task.role === "put" ? put() : take());
process.exit(0);

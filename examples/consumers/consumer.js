// Works off a domain: leases one entry after the other, runs a command for each with its value on
// standard input and its URI in FASTJOURNAL_URI, extends the lease, then completes or fails it.
//   node consumer.js HOST PORT DOMAIN LEASE_S COMMAND...
"use strict";
const { spawn } = require("node:child_process");
const { connect } = require("node:net");

const [DELETE, NEXT, RELEASE, TOUCH] = [4, 11, 13, 14];
const [KEY16, VALUE_U32, TIMEOUT, WORKED_ON, TWO_KEYS, CURSOR] = [1, 6, 8, 0x40, 0x80, 0x100];
const [DATA, LISTEN, COUNT, TTL] = [0x400, 0x800, 0x2000, 0x4000];

const [host, port, domain, leaseS, ...command] = process.argv.slice(2);
const lease = number(8, leaseS * 1e6);
const daemon = connect(port, host);
daemon.on("error", (error) => fail(error.message));
daemon.on("end", () => fail("the daemon closed the connection"));
daemon.on("readable", () => wake());
let wake = () => {};

function fail(text) {
  console.error(`consumer: ${text}`);
  process.exit(69);
}

function number(bytes, value) {
  return Buffer.from(value.toString(16).padStart(2 * bytes, "0"), "hex");
}

async function take(bytes) {
  let data = bytes ? null : Buffer.alloc(0);
  while (data === null && (data = daemon.read(bytes)) === null) {
    await new Promise((resolve) => (wake = resolve));
  }
  if (data.length < bytes) fail("the daemon closed the connection");
  return data;
}

const sized = async (width) => take((await take(width)).readUIntBE(0, width));

// Requests follow each other, so that each reply is that of the request before it.
async function request(fn, flags, fields, key, value = "") {
  const parts = [Buffer.from("FJ\0\x01"), number(2, fn), number(2, 0), number(2, flags | KEY16)];
  parts.push(number(8, Date.now() * 1000), ...fields, number(2, key.length), Buffer.from(key));
  const data = Buffer.from(value);
  if (flags & VALUE_U32) parts.push(number(4, data.length + 1), number(1, 2), data); // 2: string
  daemon.write(Buffer.concat(parts));

  const head = await take(16); // magic, version, identifier, flags, timestamp
  if (head.toString("latin1", 0, 2) !== "JR") fail("this is no fastjournald");
  const has = head.readUInt16BE(6);
  const width = has & KEY16 ? 2 : 1;
  const reply = { token: has & TIMEOUT ? await take(8) : null, job: null };
  if (has & TTL) await take(8);
  const count = has & COUNT ? (await take(2)).readUInt16BE() : 0; // NEXT gives one job at most
  reply.error = String(await sized(width));
  if (has & CURSOR) await sized(width);
  if (count) {
    const key = await sized(width);
    const uri = has & TWO_KEYS ? await sized(width) : "";
    const value = await sized([0, 1, 2, 4][(has & VALUE_U32) >> 1]);
    reply.job = { key, uri, value: value.subarray(1) }; // behind its type
  }
  return reply;
}

function run(job) {
  return new Promise((resolve) => {
    const env = { ...process.env, FASTJOURNAL_URI: job.uri };
    const stdio = ["pipe", "inherit", "inherit"];
    const child = spawn(command[0], command.slice(1), { env, stdio });
    child.on("error", (error) => resolve(error.message));
    child.on("close", (code, signal) => resolve(code === 0 ? "" : `exit ${code ?? signal}`));
    child.stdin.on("error", () => {}); // it need not read its input
    child.stdin.end(job.value);
  });
}

async function work() {
  for (;;) {
    let { token, job, error } = await request(NEXT, TIMEOUT | DATA | LISTEN, [lease], domain);
    if (error) fail(error);
    if (!job) continue;
    let why, timer;
    const ended = run(job);
    const third = () => new Promise((next) => (timer = setTimeout(next, (leaseS * 1000) / 3)));
    while ((why = await Promise.race([ended, third()])) === undefined) {
      const extended = await request(TOUCH, TIMEOUT | WORKED_ON | TTL, [token, lease], job.key);
      if (!extended.error) token = extended.token;
    }
    clearTimeout(timer);
    const end = why
      ? await request(RELEASE, TIMEOUT | WORKED_ON | VALUE_U32, [token], job.key, why)
      : await request(DELETE, TIMEOUT | WORKED_ON, [token], job.key);
    if (end.error) console.error(`consumer: ${job.key}: ${end.error}`); // lease-lost: done twice
  }
}

work();

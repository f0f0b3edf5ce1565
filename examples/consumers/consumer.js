// Works off a domain: leases one entry after the other, runs a command for each with its value on
// standard input and its URI in FASTJOURNAL_URI, extends the lease meanwhile, then completes or fails it.
//   node consumer.js HOST:PORT|unix:PATH DOMAIN COMMAND [ARGUMENT...]
"use strict";
const { spawn } = require("node:child_process");
const { connect } = require("node:net");

const LEASE_US = BigInt(process.env.LEASE_MS ?? 60000) * 1000n;
const [DELETE, NEXT, RELEASE, TOUCH] = [4, 11, 13, 14];
const [KEY16, VALUE_U32, TIMEOUT, WORKED_ON, DATA, LISTEN, TTL] = [1, 6, 8, 0x40, 0x400, 0x800, 0x4000];
const [TWO_KEYS, CURSOR, COUNT] = [0x80, 0x100, 0x2000];

function number(bytes, value) {
  return Buffer.from(BigInt(value).toString(16).padStart(2 * bytes, "0"), "hex");
}

class Connection {
  #chunks = Buffer.alloc(0);
  #wake = () => {};
  #last = Promise.resolve();

  constructor(address) {
    const [host, port] = address.split(/:(?=\d+$)/);
    this.socket = address.startsWith("unix:") ? connect(address.slice(5)) : connect(Number(port), host);
    this.socket.on("data", (data) => {
      this.#chunks = Buffer.concat([this.#chunks, data]);
      this.#wake();
    });
    this.socket.on("error", (error) => fail(error.message));
    this.socket.on("end", () => fail("the daemon closed the connection"));
  }

  async #take(bytes) {
    while (this.#chunks.length < bytes) await new Promise((resolve) => (this.#wake = resolve));
    const taken = this.#chunks.subarray(0, bytes);
    this.#chunks = this.#chunks.subarray(bytes);
    return taken;
  }

  async #number(bytes) {
    return BigInt("0x" + (await this.#take(bytes)).toString("hex"));
  }

  async #sized(bytes) {
    return this.#take(Number(await this.#number(bytes)));
  }

  async #reply() {
    const head = await this.#take(16); // magic, version, identifier, flags, timestamp
    if (head.toString("latin1", 0, 2) !== "JR") fail("this is no fastjournald");
    const flags = head.readUInt16BE(6);
    const width = flags & KEY16 ? 2 : 1;
    const token = flags & TIMEOUT ? await this.#number(8) : 0n;
    if (flags & TTL) await this.#take(8);
    let count = flags & COUNT ? Number(await this.#number(2)) : 0;
    const reply = { token, error: (await this.#sized(width)).toString(), pairs: [] };
    if (flags & CURSOR) await this.#sized(width);
    for (; count > 0; count--) {
      const key = await this.#sized(width);
      const uri = flags & TWO_KEYS ? await this.#sized(width) : Buffer.alloc(0);
      const value = await this.#sized([0, 1, 2, 4][(flags & VALUE_U32) >> 1]);
      reply.pairs.push({ key, uri, value: value.subarray(1) });
    }
    return reply;
  }

  // Requests wait for each other, so that each reply is that of the request before it.
  request(fn, flags, fields, key, value = null) {
    const parts = [number(2, 1), number(2, fn), number(2, 0), number(2, flags | KEY16)];
    parts.push(number(8, BigInt(Date.now()) * 1000n), ...fields.map((field) => number(8, field)));
    parts.push(number(2, key.length), key);
    if (value) parts.push(number(4, value.length + 1), number(1, 2), value); // type 2: string
    const send = () => {
      this.socket.write(Buffer.concat([Buffer.from("FJ"), ...parts]));
      return this.#reply();
    };
    return (this.#last = this.#last.then(send));
  }
}

function fail(text) {
  console.error(`consumer: ${text}`);
  process.exit(69);
}

function run(command, job) {
  return new Promise((resolve) => {
    const env = { ...process.env, FASTJOURNAL_URI: job.uri.toString() };
    const child = spawn(command[0], command.slice(1), { env, stdio: ["pipe", "inherit", "inherit"] });
    child.on("error", (error) => resolve(error.message));
    child.on("close", (code, signal) => resolve(code === 0 ? "" : `exit ${code ?? signal}`));
    child.stdin.on("error", () => {}); // it need not read its input
    child.stdin.end(job.value);
  });
}

async function work(connection, domain, command) {
  for (;;) {
    const next = await connection.request(NEXT, TIMEOUT | DATA | LISTEN, [LEASE_US], domain);
    if (next.error) fail(next.error);
    for (const job of next.pairs) {
      let token = next.token;
      const extend = async () => {
        const reply = await connection.request(TOUCH, TIMEOUT | WORKED_ON | TTL, [token, LEASE_US], job.key);
        if (!reply.error) token = reply.token;
      };
      const timer = setInterval(extend, Number(LEASE_US / 3000n));
      const why = Buffer.from(await run(command, job));
      clearInterval(timer);
      await connection.request(0, 0, [], Buffer.alloc(0)); // NOP: an extension has its token by now
      const end = why.length
        ? await connection.request(RELEASE, TIMEOUT | WORKED_ON | VALUE_U32, [token], job.key, why)
        : await connection.request(DELETE, TIMEOUT | WORKED_ON, [token], job.key);
      if (end.error) console.error(`consumer: ${job.key}: ${end.error}`); // lease-lost: done twice
    }
  }
}

const [address, domain, ...command] = process.argv.slice(2);
work(new Connection(address), Buffer.from(domain), command);

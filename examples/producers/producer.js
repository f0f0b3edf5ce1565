// Spools each line of standard input as work on a URI, durably and without fastjournal:
//   node producer.js SPOOL URI <lines
"use strict";
const { randomBytes } = require("node:crypto");
const fs = require("node:fs");
const { domainToASCII } = require("node:url");

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = (n >>> 1) ^ (n & 1 ? 0x82f63b78 : 0);
  return n;
});
const crc32c = (data) =>
  ~data.reduce((crc, byte) => TABLE[(crc ^ byte) & 255] ^ (crc >>> 8), -1) >>> 0;

const number = (bytes, value) => Buffer.from(value.toString(16).padStart(2 * bytes, "0"), "hex");
const sized = (bytes, data) => Buffer.concat([number(bytes, data.length), data]);

const URI = /^(?:[a-z][a-z0-9+.-]*:)?\/\/(?:[^/?#]*@)?(\[.*\]|[^:/?#]*?)\.?(?::(\d*))?(?:[/?#]|$)/i;
const HOST = /^(\[[0-9a-f:.]+\]|[0-9a-z_][0-9a-z_-]*(\.[0-9a-z_-]+)*)$/;

function domainOf(uri) {
  let [, host = "", port] = URI.exec(uri) ?? [];
  host = /[^\0-\x7f]/.test(host) ? domainToASCII(host) : host.toLowerCase();
  if (!HOST.test(host) || port > 65535) throw new Error(`no host in ${uri}`);
  return (port ? `${host}:${Number(port)}` : host).replace(/[[\]]/g, "").replaceAll(":", "%3A");
}

let last = 0;
function setRecord(uri, value) {
  const timestamp = (last = Math.max(last + 1, Date.now() * 1000));
  const id = `${timestamp.toString(16)}-${randomBytes(6).toString("hex")}`;
  const key = `${domainOf(uri)}:128:${String(timestamp).padStart(16, "0")}:${id}`;
  if (Math.max(key.length, Buffer.byteLength(uri)) > 4096)
    throw new Error("the key or the URI is over 4096 bytes");
  const frame = Buffer.concat([
    Buffer.from("464a000100020000" + "0287", "hex"), // FJ, 1, SET; KEY16, VALUE u32, RANGE, PERSIST
    number(8, timestamp),
    sized(2, Buffer.from(key)),
    sized(2, Buffer.from(uri)),
    sized(4, Buffer.concat([number(1, 1), value])), // type 1: bytes
  ]);
  const body = sized(4, frame);
  return Buffer.concat([Buffer.from("P"), body, number(4, crc32c(body))]);
}

function spool(directory, records) {
  const slot = new Date().toISOString().replace(/[-:]|\.\d+/g, "");
  const name = `${slot}-node-${randomBytes(8).toString("hex")}.fjs`;
  const temporary = `${directory}/.${name}.tmp`;
  try {
    const file = fs.openSync(temporary, "wx", 0o600);
    fs.writeFileSync(file, Buffer.concat([Buffer.from("fjsp\0\0\0\x01"), ...records]));
    fs.fchmodSync(file, 0o660); // whatever the umask
    fs.fsyncSync(file);
    fs.closeSync(file);
    fs.linkSync(temporary, `${directory}/${name}`);
  } finally {
    fs.rmSync(temporary, { force: true });
  }
  const folder = fs.openSync(directory);
  fs.fsyncSync(folder); // the name survives a power cut, too
  fs.closeSync(folder);
}

const [directory, uri] = process.argv.slice(2);
const lines = fs.readFileSync(0, "latin1").split("\n"); // bytes as they are
if (!lines.at(-1)) lines.pop();
spool(directory, lines.map((line) => setRecord(uri, Buffer.from(line, "latin1"))));

// Spools each line of standard input as work on a URI, without fastjournal:
//   node producer.js SPOOL URI <lines
"use strict";
const crypto = require("node:crypto");
const fs = require("node:fs");

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = (n >>> 1) ^ (n & 1 ? 0x82f63b78 : 0);
  return n;
});

function crc32c(data) {
  let crc = 0xffffffff;
  for (const byte of data) crc = TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

function number(bytes, value) {
  return Buffer.from(BigInt(value).toString(16).padStart(2 * bytes, "0"), "hex");
}

function domainOf(uri) {
  // The class URL drops the default port of a scheme; a port that is named is a part of the domain.
  const port = /^[^/]*\/\/[^/?#]*:(\d+)(?:[/?#]|$)/.exec(uri);
  const host = new URL(uri).hostname.replace(/^\[|\]$|\.$/g, "");
  if (!host) throw new Error(`no host in ${uri}`);
  return (host + (port ? `:${Number(port[1])}` : "")).replaceAll(":", "%3A");
}

let last = 0;
function setRecord(uri, value) {
  const timestamp = (last = Math.max(last + 1, Date.now() * 1000));
  const id = `${timestamp.toString(16)}-${crypto.randomBytes(6).toString("hex")}`;
  const key = Buffer.from(`${domainOf(uri)}:128:${String(timestamp).padStart(16, "0")}:${id}`);
  const [name, data] = [Buffer.from(uri), Buffer.from(value)];
  const parts = [number(2, 1), number(2, 2), number(2, 0), number(2, 0x0287), number(8, timestamp)];
  parts.push(number(2, key.length), key, number(2, name.length), name);
  parts.push(number(4, data.length + 1), number(1, 1), data);
  const frame = Buffer.concat([Buffer.from("FJ"), ...parts]);
  const body = Buffer.concat([number(4, frame.length), frame]);
  return Buffer.concat([Buffer.from("P"), body, number(4, crc32c(body))]);
}

function spool(directory, records) {
  const slot = new Date().toISOString().replace(/[-:]|\.\d+/g, "");
  const name = `${slot}-node-${crypto.randomBytes(8).toString("hex")}.fjs`;
  const file = fs.openSync(`${directory}/.${name}.tmp`, "wx", 0o600);
  fs.writeFileSync(file, Buffer.concat([Buffer.from("fjsp"), number(4, 1), ...records]));
  fs.fchmodSync(file, 0o660);
  fs.fsyncSync(file);
  fs.closeSync(file);
  fs.renameSync(`${directory}/.${name}.tmp`, `${directory}/${name}`);
}

const [directory, uri] = process.argv.slice(2);
const lines = fs.readFileSync(0, "utf8").replace(/\n$/, "").split("\n");
spool(directory, lines.map((line) => setRecord(uri, line)));

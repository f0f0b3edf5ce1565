#!/usr/bin/env bash
# NATS JetStream: a restart of the server ends the deduplication of a consumed message in a work queue.
#
# Versions: nats-server 2.9.10-1+b3 (Debian 12), nats-py 2.16.0.
# Behaviour: `duplicate_window` of a stream is one hour. A message is published twice with one
#   `Nats-Msg-Id`: the second is a duplicate. The message is consumed and acknowledged, the server is
#   stopped with SIGTERM and started again on the same files. With retention `limits` a third
#   publication is still a duplicate. With retention `workqueue` it is stored, as a new message. A
#   message that still waits is a duplicate with both. The ids are kept with the messages, and a work
#   queue removes a message when it is acknowledged.
# Output seen:
#   limits, waiting: duplicate
#   limits, consumed: duplicate
#   workqueue, waiting: duplicate
#   workqueue, consumed: stored again
# Needs: bash, python3, apt-get and dpkg-deb of Debian 12. Fails if the output differs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq nats-server=2.9.10-1+b3
dpkg-deb -x nats-server_*.deb server
python3 -m venv venv
venv/bin/pip install --quiet nats-py==2.16.0
cat >publish.py <<'PYTHON'
import asyncio
import socket
import subprocess

import nats
from nats.js.api import StreamConfig

with socket.create_server(("127.0.0.1", 0)) as free:
    PORT = free.getsockname()[1]
COMMAND = ["server/usr/sbin/nats-server", "-a", "127.0.0.1", "-p", str(PORT), "-js", "-sd", "store"]


async def server():
    process = subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", PORT), 1).close()
            return process
        except OSError:
            await asyncio.sleep(0.1)
    raise SystemExit("the server did not start")


async def publish(stream):
    answer = await stream.publish(NAME, b"value", headers={"Nats-Msg-Id": "one"})
    return "duplicate" if answer.duplicate else "stored"


async def main():
    global NAME
    process = await server()
    cases = [(kind, end) for kind in ("limits", "workqueue") for end in ("waiting", "consumed")]
    for kind, end in cases:
        NAME = f"{kind}-{end}"
        client = await nats.connect(f"nats://127.0.0.1:{PORT}")
        stream = client.jetstream()
        config = {"retention": kind, "duplicate_window": 3600}
        await stream.add_stream(StreamConfig(name=NAME, subjects=[NAME], **config))
        assert [await publish(stream) for _ in range(2)] == ["stored", "duplicate"]
        if end == "consumed":
            consumer = await stream.pull_subscribe(NAME, "worker")
            (message,) = await consumer.fetch(1)
            await message.ack_sync()
            assert await publish(stream) == "duplicate"
        await client.close()
    process.terminate()
    process.wait()
    process = await server()
    client = await nats.connect(f"nats://127.0.0.1:{PORT}")
    for kind, end in cases:
        NAME = f"{kind}-{end}"
        again = await publish(client.jetstream())
        print(f"{kind}, {end}: {'stored again' if again == 'stored' else again}")
    await client.close()
    process.terminate()
    process.wait()


asyncio.run(main())
PYTHON
venv/bin/python publish.py | tee output
diff output - <<'EXPECTED'
limits, waiting: duplicate
limits, consumed: duplicate
workqueue, waiting: duplicate
workqueue, consumed: stored again
EXPECTED

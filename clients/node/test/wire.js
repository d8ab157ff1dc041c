'use strict';
// A proxy in front of the server that delivers each answer after a delay, and counts how often a
// client waits: the server ends each answer with ReadyForQuery, after which a client can go on.
const net = require('node:net');

const READY = 'Z'.charCodeAt(0);

class Wire {
  static async open({ delay = 0 } = {}) {
    const wire = new Wire();
    wire.delay = delay;
    wire.waits = 0;
    wire.sockets = new Set();
    wire.listener = net.createServer((client) => wire.connect(client));
    await new Promise((resolve) => { wire.listener.listen(0, '127.0.0.1', resolve); });
    wire.port = wire.listener.address().port;
    return wire;
  }

  connect(client) {
    const server = net.connect(Number(process.env.PGPORT ?? 5432), process.env.PGHOST ?? '127.0.0.1');
    const end = () => { client.destroy(); server.destroy(); };
    for (const socket of [client, server]) {
      this.sockets.add(socket);
      socket.on('error', end).on('close', end).setNoDelay();
    }
    client.pipe(server);
    let rest = Buffer.alloc(0);
    server.on('data', (bytes) => {
      rest = Buffer.concat([rest, bytes]);
      let ready = 0;
      while (rest.length >= 5 && rest.length > rest.readUInt32BE(1)) { // a type, and a length without it
        if (rest[0] === READY) ready++;
        rest = rest.subarray(1 + rest.readUInt32BE(1));
      }
      const deliver = () => { this.waits += ready; client.write(bytes); };
      setTimeout(deliver, this.delay).unref();
    });
  }

  // How often the call waits for the server before it returns.
  async counted(call) {
    const before = this.waits;
    await call();
    return this.waits - before;
  }

  close() {
    for (const socket of this.sockets) socket.destroy();
    this.listener.close();
  }
}

module.exports = { Wire };

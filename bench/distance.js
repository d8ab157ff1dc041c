'use strict';
// A proxy in front of a server. Each direction takes some time, and the proxy counts how often a
// client waits.
const net = require('node:net');

class Distance {
  // In milliseconds each way. The server is { host, port }.
  static async open(server, delay) {
    const distance = new Distance();
    distance.waits = 0; // those whose answer has arrived at the client
    const listener = net.createServer((client) =>
      distance.connect(client, net.connect(server), delay));
    await new Promise((resolve) => { listener.listen(0, '127.0.0.1', resolve); });
    distance.port = listener.address().port;
    listener.unref();
    return distance;
  }

  // However many messages are sent before the answer begins, they wait once.
  connect(client, server, delay) {
    let asked = false;
    const end = () => { client.destroy(); server.destroy(); };
    for (const socket of [client, server]) socket.on('error', end).on('close', end).setNoDelay();
    client.on('data', (bytes) => setTimeout(() => { asked = true; server.write(bytes); }, delay));
    server.on('data', (bytes) => {
      const answers = asked;
      asked = false;
      setTimeout(() => { this.waits += answers; client.write(bytes); }, delay);
    });
  }
}

module.exports = { Distance };

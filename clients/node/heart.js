'use strict';
// A connection beside the pool for the renewal of leases: when all connections of a pool are busy,
// leases would end.
const { send } = require('./statements.js');
const { timer } = require('./values.js');

const hearts = new WeakMap(); // by pool

class Heart {
  #pool; #connecting;
  #members = 0;

  static of(pool) {
    if (!hearts.has(pool)) hearts.set(pool, new Heart(pool));
    return hearts.get(pool);
  }

  constructor(pool) { this.#pool = pool; }

  join() { this.#members++; }

  // The connection is closed with the last lease, and opened with the first renewal.
  leave() {
    this.#members--;
    if (this.#members === 0) this.#close();
  }

  // Sends the statement, and gives the connection up if there is no answer in time.
  async ask(statement, milliseconds) {
    this.#connecting ??= this.#connect();
    const connecting = this.#connecting;
    let timeout;
    const late = new Promise((_, reject) => {
      const fail = () => reject(new Error('the server does not answer'));
      timeout = setTimeout(fail, timer(milliseconds));
    });
    try {
      await Promise.race([late, connecting.then(({ client }) => send(client, statement))]);
    } catch (error) {
      // An ERROR leaves the connection as it is.
      if (error.severity !== 'ERROR' && this.#connecting === connecting) this.#close(true);
      throw error;
    } finally {
      clearTimeout(timeout);
    }
  }

  // A pool that cannot make connections of its own kind lends one. Others are set up like those of
  // the pool: the application may take on a role there, and without it the renewal is refused.
  async #connect() {
    const { Client, options } = this.#pool;
    const client = Client ? new Client(options) : await this.#pool.connect();
    client.on('error', () => {}); // the next renewal notices
    const close = () => (Client ? client.end() : client.release(true));
    if (!Client) return { client, close };
    try {
      await client.connect();
      await options?.onConnect?.(client);
      this.#pool.emit?.('connect', client);
    } catch (cause) { // perhaps an ERROR, after which this connection is of no use
      close().catch(() => {});
      throw new Error('no connection to renew the lease on', { cause });
    }
    return { client, close };
  }

  // Without waiting. If it is broken, the server may never say that it is closed.
  #close(broken) {
    const connecting = this.#connecting;
    this.#connecting = undefined;
    connecting?.then(({ client, close }) => {
      if (broken) client.connection?.stream.destroy();
      return close();
    }).catch(() => {});
  }
}

module.exports = { Heart };

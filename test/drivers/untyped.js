// Runs the statements of standard input with node-postgres, and prints the result of each.
const { readFileSync } = require('node:fs');
const { Client } = require('pg');

const mode = process.argv[2];
const saved = {};

function parameter(field) {
  const [, kind, value] = /^(\w+):(.*)$/.exec(field);
  if (kind === 'null') return null;
  return value.startsWith('$') ? saved[value.slice(1)] : value;
}

async function result(client, name, text, values) {
  try {
    const { rows } = await client.query({
      ...(mode === 'prepared' && { name }), text, values, rowMode: 'array',
    });
    return rows[0][0];
  } catch (error) {
    const fields = [error.schema, error.constraint, error.dataType, error.column];
    return ['ERROR', error.code, ...fields.map((field) => field ?? '-')].join(' ');
  }
}

async function main() {
  const client = new Client();
  await client.connect();
  const lines = readFileSync(0, 'utf8').trimEnd().split('\n');
  for (const [number, line] of lines.entries()) {
    const [name, statement, ...fields] = line.split('\t');
    saved[name] = await result(client, `statement ${number}`, statement, fields.map(parameter));
    console.log(saved[name]);
  }
  await client.end();
}

main();

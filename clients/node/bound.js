'use strict';
// What is bound to the key: all that a handler can read of the content of a request, and nothing
// else. Otherwise the request is refused, because another one would get its answer.
const { createHash } = require('node:crypto');
const { createReadStream } = require('node:fs');
const { isNothing } = require('./values.js');

const JSON_TYPE = /^application\/(?:[^;]*\+)?json$/;

// before: of the same request, whose files are not read again.
async function boundRequest(request, before) {
  const { method, originalUrl, url, headers, body } = request;
  const raw = request.raw ?? request.req ?? request; // of Fastify, Koa, Express
  const bound = { method, url: originalUrl ?? url };
  const files = before?.files ?? await Promise.all(uploads(request).map(uploaded));
  if (files.length) bound.files = files;
  const hasContent = headers['transfer-encoding'] !== undefined
    || Number(headers['content-length']) > 0 || raw.stream?.endAfterHeaders === false; // of HTTP/2
  if (!hasContent) return { ...bound, body };

  const type = String(headers['content-type'] ?? '').toLowerCase().trim();
  const media = type.split(';')[0].trim(); // without the boundary, which differs in a retry
  if (media !== 'application/json') bound.type = media;
  // Express 4 makes {} of what its parsers do not read.
  const isParsed = JSON_TYPE.test(media) || files.length > 0
    || !(isNothing(body) || (body.constructor ?? Object) === Object && !Object.keys(body).length);
  if (raw.readableDidRead === false || body === undefined || !isParsed) throw unread(type);
  if (ArrayBuffer.isView(body)) return { ...bound, type, sha256: digest(body) };
  return { ...bound, body: media.startsWith('multipart/') ? await fields(body) : body };
}

const unread = (type) => new Error('nothing has parsed the body of the request '
  + `(Content-Type: ${type || 'none'}), so it cannot be bound to the key: `
  + 'a parser for this type must run before the route');

// The files of multer; in Fastify, these members are functions.
const uploads = ({ file, files }) => [file, files].filter((of) => of && typeof of === 'object')
  .flatMap((of) => (of.fieldname ? [of] : Object.values(of).flat()));

async function uploaded(file) {
  const { fieldname, originalname, mimetype, buffer, path } = file;
  if (typeof fieldname !== 'string') { // it and the other fields would not be bound
    throw new Error('a file cannot be bound to the key: another parser than multer has made it');
  }
  if (!buffer && !path) {
    throw new Error(`the file of "${fieldname}" cannot be bound to the key: `
      + 'it has neither a buffer nor a path');
  }
  const sha256 = buffer ? digest(buffer) : await digestOf(createReadStream(path));
  return { field: fieldname, file: originalname, type: mimetype, sha256 };
}

// The form of @fastify/multipart with attachFieldsToBody, or that of another parser.
async function fields(body) {
  const field = async (part) => {
    if (ArrayBuffer.isView(part)) return { sha256: digest(part) };
    if (part?.fields !== body) return part; // of another parser: it may only look like a part
    if (part.type !== 'file') return part.value;
    const bytes = part._buf ?? (part.file.readableEnded ? undefined : await part.toBuffer());
    if (!bytes) throw new Error(`the file of "${part.fieldname}" cannot be bound to the key`);
    return { file: part.filename, type: part.mimetype, sha256: digest(bytes) };
  };
  const made = Object.entries(body ?? {}).map(async ([name, value]) =>
    [name, await (Array.isArray(value) ? Promise.all(value.map(field)) : field(value))]);
  return Object.fromEntries(await Promise.all(made));
}

const digest = (bytes) => createHash('sha256').update(bytes).digest('hex');

async function digestOf(stream) {
  const hash = createHash('sha256');
  for await (const chunk of stream) hash.update(chunk);
  return hash.digest('hex');
}

module.exports = { boundRequest };

'use strict';
// Values at the edge: what would be stored or sent as something else is refused, with a TypeError
// or a RangeError, before anything runs or commits.

function kind(value) { // 'Map', 'undefined'; 'Generator', whose constructor has no name
  if (value === null || typeof value !== 'object') return value === null ? 'null' : typeof value;
  return value.constructor?.name || Object.prototype.toString.call(value).slice(8, -1);
}

const isNothing = (value) => value === undefined || value === null;

// Text that the server can store: without NUL and without half a surrogate pair.
function text(what, value) {
  if (typeof value !== 'string') {
    throw new TypeError(`the ${what} must be a string, not ${kind(value)}`);
  }
  if (/[\0\ud800-\udfff]/u.test(value)) {
    throw new RangeError(`the ${what} has a character that cannot be stored`);
  }
  return value;
}

// A client that is not known must not get what belongs to all.
function tenantText(tenant) {
  if (text('tenant', tenant) === '') throw new RangeError('the tenant is empty');
  return tenant;
}

// An interval as the server reads it.
function interval(what, milliseconds) {
  if (typeof milliseconds !== 'number') {
    throw new TypeError(`${what} must be a number of milliseconds, not ${kind(milliseconds)}`);
  }
  if (!(milliseconds >= 0 && milliseconds <= 1e15)) { // more is no interval
    throw new RangeError(`${what} must be a number of milliseconds from 0 on, not ${milliseconds}`);
  }
  return `${milliseconds} milliseconds`;
}

// As long as a timer can be: a longer one would end at once.
const timer = (milliseconds) => Math.min(milliseconds, 2 ** 31 - 1);

// JSON that is text already, and is passed on as it is.
class JsonText {
  constructor(text) { this.text = text; }
}

// The value as JSON text. As in all of JavaScript, a member that is undefined is absent. What
// JSON.stringify() turns into null or {} is refused. Infinity is a RangeError, as is what is nested
// too deeply: both can come from the JSON of a client, unlike the others.
function json(what, value) {
  if (value instanceof JsonText) return value.text;
  const refuse = (part, of = kind(part)) => {
    throw new TypeError(`the ${what} must be JSON, which has no ${of}`);
  };
  const text = JSON.stringify(value, function checked(name, made) {
    const before = this[name];
    if (typeof made === 'number' && !Number.isFinite(made)) {
      throw new RangeError(`the ${what} must be JSON, which has no ${made}`);
    }
    if (made === null && before !== null) refuse(before, 'invalid Date');
    if (made === undefined && Array.isArray(this)) refuse(made);
    if (['function', 'symbol'].includes(typeof made)) refuse(made);
    if (made !== null && typeof made === 'object' && !isData(made)) refuse(made);
    return made;
  });
  return text ?? refuse(value);
}

// An array, a plain object, or an object of a class whose fields are its content.
function isData(value) {
  const prototype = Object.getPrototypeOf(value);
  if (Array.isArray(value) || !prototype || !Object.getPrototypeOf(prototype)) return true;
  const { iterator, asyncIterator, toStringTag } = Symbol;
  return Object.keys(value).length > 0 && !(value instanceof Error)
    && ![iterator, asyncIterator, toStringTag].some((symbol) => symbol in value);
}

// An object whose members are its content.
const isPlain = (value) =>
  value !== null && typeof value === 'object' && !Array.isArray(value) && isData(value);

function plain(what, value) {
  if (!isPlain(value)) {
    throw new TypeError(`the ${what} must be an object, not ${kind(value)}`);
  }
  return value;
}

// The fields of a composite value as the server writes it: null, or text. Inside of quotes, a quote
// is two, and so is a backslash.
function composite(value) {
  const fields = [];
  const last = value.length - 1; // the parenthesis
  for (let start = 1, end; start <= last; start = end + 1) {
    end = start;
    while (value[end] === '"') end = value.indexOf('"', end + 1) + 1;
    if (end > start) {
      fields.push(value.slice(start + 1, end - 1).replaceAll('""', '"').replaceAll('\\\\', '\\'));
    } else {
      const comma = value.indexOf(',', start);
      end = comma < 0 ? last : comma;
      fields.push(end > start ? value.slice(start, end) : null);
    }
  }
  return fields;
}

// The elements of an array of texts as the server writes it.
const texts = (value) => [...value.slice(1, -1).matchAll(/"((?:[^"\\]|\\.)*)"|[^,]+/gs)]
  .map(([bare, quoted]) => (quoted === undefined ? (bare === 'NULL' ? null : bare)
    : quoted.replace(/\\(.)/gs, '$1')));

// In either form of bytea_output.
function bytes(value) {
  if (value.startsWith('\\x')) return Buffer.from(value.slice(2), 'hex');
  return Buffer.from(value.replace(/\\(\\|[0-7]{3})/g, (_, code) =>
    (code === '\\' ? code : String.fromCharCode(parseInt(code, 8)))), 'latin1');
}

// In the default DateStyle, ISO. In others, a day may be a month: undefined.
function time(value) {
  const parts = /^(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)([+-]\d\d)(:\d\d)?$/.exec(value);
  return parts ? new Date(`${parts[1]}T${parts[2]}${parts[3]}${parts[4] ?? ':00'}`) : undefined;
}

// What is no text, in the rows that idem returns.
const READERS = {
  claimed: (value) => value === 't', attempt: Number, status: Number, body: bytes,
  request: JSON.parse, headers: JSON.parse, error: JSON.parse, steps: JSON.parse,
  expiresAt: time, differs: texts,
};

// The row, all of whose values are text.
const fromText = (row) => Object.fromEntries(Object.entries(row).map(([name, value]) =>
  [name, value !== null && Object.hasOwn(READERS, name) ? READERS[name](value) : value]));

function statusCode(status) {
  if (!Number.isInteger(status)) throw new TypeError(`the status must be an integer: ${status}`);
  if (status < 200 || status > 599) {
    throw new RangeError(`the status must be from 200 to 599, not ${status}`);
  }
  return status;
}

const NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const VALUE = /^(?:[!-~\x80-\xff](?:[ -~\x80-\xff]*[!-~\x80-\xff])?)?$/;

// Headers as idem stores them: a string, or an array of strings for one that is sent several times.
function headerFields(headers) {
  if (isNothing(headers)) return undefined;
  plain('headers', headers);
  const one = (name, value) => {
    if (typeof value !== 'string') {
      throw new TypeError(`header ${name} must be a string, not ${kind(value)}`);
    }
    if (!NAME.test(name) || !VALUE.test(value)) {
      throw new RangeError(`header ${JSON.stringify(name)} cannot be sent`);
    }
    return value;
  };
  return Object.fromEntries(Object.entries(headers).map(([name, value]) =>
    [name, Array.isArray(value) ? value.map((of) => one(name, of)) : one(name, value)]));
}

function bodyBytes(body) {
  if (isNothing(body)) return undefined;
  if (!(body instanceof Uint8Array)) {
    throw new TypeError(`the body must be a Buffer, not ${kind(body)}`);
  }
  return Buffer.from(body.buffer, body.byteOffset, body.byteLength);
}

// What a function has returned, which must not be taken for an answer without content.
function known(answer, ...names) {
  if (!isPlain(answer) || !Object.keys(answer).every((name) => names.includes(name))) {
    throw new TypeError(`the function must return { ${names.join(', ')} }`);
  }
  return answer;
}

// What a function of the service has decided. One that returns nothing would always say no.
function decided(name, decision) {
  if (typeof decision !== 'boolean') {
    throw new TypeError(`${name} must return true or false, not ${kind(decision)}`);
  }
  return decision;
}

// Options ----------------------------------------------------------------------------------------

const a = (type) => (name, value) => {
  if (typeof value !== type) throw new TypeError(`${name} must be a ${type}, not ${kind(value)}`);
};

const from = (least) => (name, value) => {
  a('number')(name, value);
  if (!(value >= least)) throw new RangeError(`${name} must be from ${least} on, not ${value}`);
};

function count(name, value) {
  from(1)(name, value);
  if (!Number.isInteger(value)) throw new RangeError(`${name} must be an integer, not ${value}`);
}

const list = (member) => (name, values) => { // a string would be taken letter by letter
  if (!Array.isArray(values)) throw new TypeError(`${name} must be an array, not ${kind(values)}`);
  for (const value of values) member(`member of ${name}`, value);
};

const group = (name, options) => judge(plain(name, options));

// What the options are, by their names. One of another kind would be ignored, or fail when the
// first answer is there. The others are judged where they are used.
const KINDS = {
  retry: group, backoff: group,
  attempts: from(1), deadline: from(0), first: from(0), longest: from(0), concurrency: count,
  ttl: interval, wait: interval, lease: interval, base: interval, cap: interval, grace: interval,
  timeout: interval, retention: interval,
  refusals: a('boolean'), keyRequired: a('boolean'), sendRetention: a('boolean'),
  onEvent: a('function'), onError: a('function'), onRetry: a('function'), problem: a('function'),
  store: a('function'), storeIf: a('function'),
  keyFrom: (name, value) => typeof value === 'function' || text(name, value),
  begin: text, documentation: text, records: (_, value) => text('record table', value),
  neverStored: list(text), includeHeaders: list(text), signals: list(text),
  finalStatuses: list((_, status) => from(400)('a final status', statusCode(status))),
  log: (name, value) => a('function')(`${name}.error`, value?.error),
};

function judge(options) {
  for (const [name, value] of Object.entries(options)) {
    if (value !== undefined) KINDS[name]?.(name, value);
  }
}

// The options of a call. One that is misspelt would be ignored: a tenant's key would be everyone's.
function only(names, options) {
  if (isNothing(options)) return options;
  const unknown = Object.keys(plain('options', options)).find((name) => !names.includes(name));
  if (unknown !== undefined) throw new TypeError(`there is no option "${unknown}"`);
  judge(options);
  return options;
}

// The options, with the defaults of those that are missing or undefined.
const filled = (defaults, options) => ({
  ...defaults,
  ...Object.fromEntries(Object.entries(options ?? {}).filter(([, value]) => value !== undefined)),
});

module.exports = {
  JsonText, bodyBytes, composite, decided, filled, fromText, headerFields, interval, isNothing,
  json, known, only, plain, statusCode, tenantText, text, timer,
};

'use strict';
// Serves one of the Node endpoints: app.js after.js PORT
const express = require('express');
const { PrismaPg } = require('@prisma/adapter-pg');
const { PrismaClient } = require('@prisma/client');

const [file, port] = process.argv.slice(2);
const { PGHOST, PGPORT, PGDATABASE, PGUSER } = process.env;
const connectionString = `postgresql://${PGUSER}@${PGHOST}:${PGPORT}/${PGDATABASE}`;
const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString, max: 10 }) });

const app = express();
app.use(express.json());
require(`./${file}`)(app, prisma);
app.listen(port, '127.0.0.1');

-- Reports medians over the rounds and compares them with the targets.
\pset border 2
\pset footer off
\pset null ''
SET search_path = bench;
CREATE TEMP VIEW median AS
  SELECT scene, contender, percentile_cont(0.5) WITHIN GROUP (ORDER BY usec) AS usec,
         percentile_cont(0.5) WITHIN GROUP (ORDER BY wal) AS wal, percentile_cont(0.5) WITHIN GROUP (ORDER BY dead) AS dead,
         count(*) AS rounds
    FROM measure WHERE scene NOT LIKE 'warm-up%' GROUP BY 1, 2;

\echo
\echo 'Inside the server: a procedure commits after each operation'
SELECT m.scene, m.contender, round(m.usec::numeric, 1) AS "µs/op", round((m.usec - b.usec)::numeric, 1) AS "adds µs",
       round(((i.usec - b.usec) / NULLIF(m.usec - b.usec, 0))::numeric, 2) AS "idem adds ×",
       round(m.wal::numeric) AS "WAL bytes/op", round(d.dead::numeric, 2) AS "dead row versions/op"
  FROM median m LEFT JOIN median d ON d.scene = 'dead rows' AND d.contender = m.contender AND m.scene = 'fresh v4' JOIN median b ON b.scene = m.scene AND b.contender = 'bare' JOIN median i ON i.scene = m.scene AND i.contender = 'idem'
 WHERE m.scene LIKE 'fresh%' ORDER BY m.scene, m.usec;
SELECT m.scene, m.contender, round(m.usec::numeric, 1) AS "µs/op", round((i.usec / m.usec)::numeric, 2) AS "idem takes ×"
  FROM median m JOIN median i ON i.scene = m.scene AND i.contender = 'idem'
 WHERE m.scene LIKE 'replay%' ORDER BY m.scene, m.usec;

\echo 'Transactions of clients (pgbench)'
SELECT m.scene, m.contender, round((1e6 / m.usec)::numeric) AS "tps", round((m.usec / i.usec)::numeric, 2) AS "idem's throughput ×"
  FROM median m JOIN median i ON i.scene = m.scene AND i.contender = 'idem'
 WHERE m.scene LIKE 'client%' OR m.scene LIKE 'limits, %' ORDER BY m.scene, m.usec;

\echo 'WAL of the primary key just after a checkpoint, in a large table'
SELECT scene, contender AS keys, round(wal::numeric) AS "WAL bytes/index entry" FROM median WHERE scene = 'index wal' ORDER BY wal DESC;

\echo 'Consumers (pgbench, 1 client), and limits (inside the server)'
SELECT scene, contender, round((usec / CASE WHEN contender IN ('once_each', 'making the keys') THEN 1000 ELSE 1 END)::numeric, 2) AS "µs/key"
  FROM median WHERE scene LIKE 'consumer%' OR scene = 'limits' ORDER BY 1, 3;

\echo 'Targets; those of CPU time with small tables are above'
WITH m AS (SELECT scene, contender, usec, wal, dead FROM median),
     v AS (SELECT scene, max(usec) FILTER (WHERE contender = 'bare') bare, max(usec) FILTER (WHERE contender = 'insert') ins,
                  max(usec) FILTER (WHERE contender = 'recipe') recipe, max(usec) FILTER (WHERE contender = 'idem') idem,
                  max(usec) FILTER (WHERE contender = 'select') sel,
                  max(usec) FILTER (WHERE contender = 'limited') limited, max(usec) FILTER (WHERE contender = 'once') once,
                  max(usec) FILTER (WHERE contender = 'once_each') - max(usec) FILTER (WHERE contender = 'making the keys') once_each,
                  max(wal) FILTER (WHERE contender = 'idem') wal_idem, max(wal) FILTER (WHERE contender = 'recipe') wal_recipe,
                  max(dead) FILTER (WHERE contender = 'idem') dead_idem, max(dead) FILTER (WHERE contender = 'recipe') dead_recipe
             FROM m GROUP BY 1),
     t(target, measured, bound, at_most) AS (
       SELECT scene || ': idem adds / one plain INSERT adds', (idem - bare) / NULLIF(ins - bare, 0), 0.8, true FROM v WHERE scene LIKE 'fresh%large'
       UNION ALL SELECT scene || ': idem adds / the recipe adds', (idem - bare) / NULLIF(recipe - bare, 0), 0.45, true FROM v WHERE scene LIKE 'fresh%' AND scene NOT LIKE '%durable%'
       UNION ALL SELECT scene || ': replay / SELECT by key', idem / NULLIF(sel, 0), 1.0, true FROM v WHERE scene = 'replay, large'
       UNION ALL SELECT scene || ': throughput / one plain INSERT', ins / NULLIF(idem, 0), 1.0, false FROM v WHERE scene LIKE 'client fresh%' AND scene NOT LIKE '%durable%'
       UNION ALL SELECT scene || ': throughput / the recipe', recipe / NULLIF(idem, 0), 1.4, false FROM v WHERE scene LIKE 'client fresh%' AND scene NOT LIKE '%durable%'
       UNION ALL SELECT scene || ': throughput with limits / without', idem / NULLIF(limited, 0), 0.9, false FROM v WHERE scene LIKE 'limits%'
       UNION ALL SELECT scene || ': once_each / calls of once, per key', once_each / 1000 / NULLIF(once, 0), 0.25, true FROM v WHERE scene LIKE 'consumer%'
       UNION ALL SELECT scene || ': WAL / the recipe''s', wal_idem / NULLIF(wal_recipe, 0), 0.70, true FROM v WHERE scene = 'fresh v4'
       UNION ALL SELECT scene || ': WAL bytes per operation', wal_idem, 480, true FROM v WHERE scene IN ('fresh v4', 'fresh v7')
       UNION ALL SELECT 'bytes per record, table and index', (SELECT wal FROM m WHERE scene = 'disk'), 190, true
       UNION ALL SELECT 'dead row versions per operation', dead_idem, 0, true FROM v WHERE scene = 'dead rows'
       UNION ALL SELECT 'index WAL of UUIDv7 / of UUIDv4 keys', (SELECT wal FROM m WHERE scene = 'index wal' AND contender = 'v7')
                        / NULLIF((SELECT wal FROM m WHERE scene = 'index wal' AND contender = 'v4'), 0), 0.1, true)
SELECT target, round(measured::numeric, 2) AS measured, CASE WHEN at_most THEN '<= ' ELSE '>= ' END || bound AS target_value,
       CASE WHEN (measured <= bound) = at_most OR measured = bound THEN 'met' ELSE 'missed' END AS verdict
  FROM t WHERE measured IS NOT NULL ORDER BY target;

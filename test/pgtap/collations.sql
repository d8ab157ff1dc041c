-- Collations: names, keys, tenants and tokens are compared by their bytes, whatever the collation of
-- the column that a call takes them from.
BEGIN;
SELECT no_plan();
SELECT idem.create_scope('given');

CREATE COLLATION pg_temp.caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TEMP TABLE posix (s text COLLATE "POSIX", k text COLLATE "POSIX", t text COLLATE "POSIX");
CREATE TEMP TABLE caseless (s text COLLATE pg_temp.caseless, k text COLLATE pg_temp.caseless, t text COLLATE pg_temp.caseless);

-- What each call returns for a key, and for the same key in capitals.
CREATE FUNCTION pg_temp.answers(given text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    call text;
    key text;
    answer text;
BEGIN
    FOREACH call IN ARRAY ARRAY[
        $c$ idem.once(s, k, tenant => t) $c$,
        $c$ (idem.lookup(s, k, t)).state $c$,
        $c$ (idem.try_claim(s, k, tenant => t)).outcome $c$,
        $c$ idem.erase(s, k, t) $c$,
        $c$ idem.forget(s, k, t) $c$,
        $c$ idem.complete((idem.claim(s, k, tenant => t)).token || left(k, 0), '1') $c$,
        $c$ idem.erase_tenant(s, t, true) $c$,
        $c$ idem.forget_tenant(s, t, true) $c$,
        $c$ (idem.cancel(s, k, tenant => t)).state $c$,
        $c$ idem.forget_tenant(s, t, true) $c$,
        $c$ (SELECT string_agg(e, ',') FROM idem.once_each(s, ARRAY[k, k || ' 2'], t) AS e) $c$,
        $c$ idem.advance(s, k, 7, tenant => t) $c$,
        $c$ idem.reset_stream(s, k, 3, tenant => t) $c$,
        $c$ length(idem.scope_ddl(s)) > 0 $c$,
        $c$ idem.renew((idem.claim(s, k || ' 3', tenant => t, lease => '1 day')).token || left(k, 0)) > now() $c$,
        $c$ idem.revoke(s, k || ' 4', t) $c$,
        $c$ (idem.take(s, tenant => t)).key $c$]
    LOOP
        FOREACH key IN ARRAY ARRAY['key', 'KEY'] LOOP
            EXECUTE format('TRUNCATE %I', given);
            EXECUTE format('INSERT INTO %I VALUES (%L, %L, %L)', given, 'given', key, 'of ' || key);
            BEGIN
                EXECUTE format('SELECT (%s)::text FROM %I', call, given) INTO answer;
            EXCEPTION WHEN OTHERS THEN
                answer := 'ERROR ' || SQLSTATE || ' ' || SQLERRM;
            END;
            RETURN NEXT format('%s for %s: %s', trim(call), key, answer);
        END LOOP;
    END LOOP;
END
$$;
CREATE TEMP TABLE plain (s text, k text, t text);

SAVEPOINT unchanged;
SELECT array_agg(a) AS plain FROM pg_temp.answers('plain') AS a \gset
ROLLBACK TO unchanged;
SELECT array_agg(a) AS posix FROM pg_temp.answers('posix') AS a \gset
ROLLBACK TO unchanged;
SELECT array_agg(a) AS caseless FROM pg_temp.answers('caseless') AS a \gset
ROLLBACK TO unchanged;

SELECT unalike(a, '%ERROR%', a) FROM unnest(:'plain'::text[]) AS a;
SELECT is(given, expected, 'column of collation POSIX: ' || expected) FROM unnest(:'posix'::text[], :'plain'::text[]) AS u (given, expected);
SELECT is(given, expected, 'column without case: ' || expected) FROM unnest(:'caseless'::text[], :'plain'::text[]) AS u (given, expected);
SELECT * FROM finish();
ROLLBACK;

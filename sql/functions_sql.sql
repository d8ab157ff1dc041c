-- ---------------------------------------------------------------------------------------------
-- Functions that need nothing of the library
-- ---------------------------------------------------------------------------------------------

-- Servers without the library have the same definitions, here and in functions_http.sql.

CREATE FUNCTION idem.backoff(
    attempt integer,
    base interval DEFAULT '1 second',
    cap interval DEFAULT '5 minutes'
)
RETURNS interval
LANGUAGE sql VOLATILE STRICT PARALLEL RESTRICTED
RETURN make_interval(
    secs => least(
        extract(epoch FROM base)::double precision * 2 ^ (least(greatest(attempt, 1), 64) - 1),
        extract(epoch FROM cap)::double precision
    ) * (0.5 + random() / 2)
);

COMMENT ON FUNCTION idem.backoff IS
    'Returns how long to wait after an attempt has failed, for the argument retry_after of '
    'idem.release(): base after the first attempt, twice as long after each further one, at most '
    'cap; with 50 to 100 percent jitter. '
    'Raises 22008.';

CREATE FUNCTION idem.derive_key(VARIADIC parts text[])
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    message pg_catalog.bytea := '';
    utf8 pg_catalog.bytea;
BEGIN
    -- A list of the parts would not show where the rows of an array of several dimensions end.
    IF array_ndims(parts) = 1 AND array_position(parts, NULL) IS NULL THEN
        FOR i IN array_lower(parts, 1) .. array_upper(parts, 1) LOOP
            utf8 := convert_to(parts[i], 'UTF8');
            message := message || int4send(length(utf8)) || utf8;
        END LOOP;
        RETURN encode(sha256(message), 'hex');
    ELSIF array_ndims(parts) = 1 THEN
        RAISE null_value_not_allowed USING
            MESSAGE = format('part %s of a key must not be null',
                             array_position(parts, NULL) - array_lower(parts, 1) + 1),
            DETAIL = 'A null part does not help to identify the operation.',
            HINT = 'Leave the part out, or pass an empty string if that is what it means.';
    END IF;
    RETURN idem_internal.refuse(
        'parts', parts::text, 'The array must have one dimension and at least one element.',
        'Pass the parts as arguments of their own, or one array of them after VARIADIC.');
END
$$;

COMMENT ON FUNCTION idem.derive_key IS
    'Computes an idempotency key from parts: the SHA-256, in hexadecimal, of each part''s length '
    'and UTF-8. The same parts give the same key in every database; (''a'', ''bc'') and '
    '(''ab'', ''c'') give different keys. '
    'Raises 22004 for a null part, 22023 for an empty array, 42883 for no argument, 22021.';

-- The notation of paths, which src/core/path.hpp describes. Most faults are what other notations
-- use.
CREATE FUNCTION idem_internal.path_fault(path text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT f.fault
    FROM regexp_matches('.' || path, E'\\.("(?:[^"\\\\]|\\\\.)*"(?=\\.|$)|[^.]*)', 'g')
            WITH ORDINALITY AS m (names, n)
        CROSS JOIN LATERAL (SELECT m.names[1]) AS s (name)
        CROSS JOIN LATERAL (SELECT CASE
            WHEN s.name ~ E'^"(?:[^"\\\\]|\\\\.)*"$' THEN NULL
            WHEN s.name LIKE '"%'
                THEN 'has a double quote that does not enclose the whole name of a member'
            WHEN m.n = 1 AND s.name IN ('$', 'lax $', 'strict $')
                THEN 'begins with "$", as in JSONPath'
            WHEN s.name ~ '[][]' THEN 'has a subscript'
            WHEN s.name ~ '[{}]' THEN 'has braces, as in an array of text'
            WHEN s.name ~ '->|#>' THEN 'has an operator'
            WHEN s.name ~ '/' THEN 'has a slash, as in JSON Pointer'
            WHEN s.name ~ ',' THEN 'has a comma, as in a list of paths'
            WHEN s.name ~ '"'
                THEN 'has a double quote that does not enclose the whole name of a member'
            WHEN s.name IN ('*', '**') THEN 'has a wildcard'
            WHEN s.name ~ '^-?[0-9]+$' THEN 'has a number instead of a name'
            WHEN s.name = '' THEN 'has an empty name'
        END) AS f (fault)
    WHERE f.fault IS NOT NULL
    ORDER BY m.n
    LIMIT 1
$$;

COMMENT ON FUNCTION idem_internal.path_fault IS
    'Returns why a path of request_exclude or response_exclude is refused, as what the error says '
    'of it; NULL if it is not.';

-- Only objects have members: nothing is said of other values, and an array is one value. A path is
-- written as in request_exclude, where a name that looks like another notation has quotes. One that
-- is longer than 255 bytes could not be excluded; it is not named, and neither is what is below it.
CREATE FUNCTION idem_internal.differences(
    given jsonb,
    stored jsonb,
    OUT paths text[],
    OUT account text
)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- place sorts as a reader of the given document meets the members; missing ones come last.
    WITH RECURSIVE member(place, path, value, before) AS (
        SELECT '{}'::bigint[], '', given, stored
        UNION ALL
        SELECT m.place || ARRAY[(d.value IS NULL)::integer, d.place],
            CASE WHEN octet_length(n.path) <= 255 THEN n.path END, d.value, d.before
        FROM member m
            CROSS JOIN LATERAL (
                SELECT name, coalesce(g.place, s.place), g.value, s.value
                FROM jsonb_each(m.value) WITH ORDINALITY g(name, value, place)
                    FULL JOIN jsonb_each(m.before) WITH ORDINALITY s(name, value, place)
                        USING (name)
                WHERE g.value IS DISTINCT FROM s.value
            ) d(name, place, value, before)
            CROSS JOIN LATERAL (
                SELECT m.path || CASE WHEN m.path <> '' THEN '.' ELSE '' END || CASE
                    WHEN name ~ E'[][{}/,."]|->|#>|^-?[0-9]+$|^\\*{0,2}$'
                        OR (m.path = '' AND name IN ('$', 'lax $', 'strict $'))
                    THEN '"' || regexp_replace(name, E'(["\\\\])', E'\\\\\\1', 'g') || '"'
                    ELSE name
                END
            ) n(path)
        WHERE jsonb_typeof(m.value) = 'object' AND jsonb_typeof(m.before) = 'object'
            AND m.path IS NOT NULL
    ), difference(place, path, kind, is_named) AS (
        SELECT place, path,
            CASE WHEN before IS NULL THEN 2 WHEN value IS NULL THEN 3 ELSE 1 END,
            path IS NOT NULL
                AND row_number() OVER (PARTITION BY path IS NULL ORDER BY place) <= 10
        FROM member
        WHERE path IS NULL OR path <> '' AND (
            jsonb_typeof(value) IS DISTINCT FROM 'object'
            OR jsonb_typeof(before) IS DISTINCT FROM 'object')
    ), clause(kind, words) AS (
        SELECT kind,
            concat_ws(' and ', nullif(array_to_string(quoted[:n - 1], ', '), ''), quoted[n])
                || CASE WHEN n = 1 THEN of_one ELSE of_many END
        FROM (
            SELECT kind, array_agg(format('"%s"', path) ORDER BY place) AS quoted,
                count(*)::integer AS n
            FROM difference
            WHERE is_named
            GROUP BY kind
        ) k
            JOIN (VALUES (1, ' has another value', ' have other values'),
                (2, ' is new', ' are new'), (3, ' is missing', ' are missing')
            ) v(kind, of_one, of_many) USING (kind)
        UNION ALL
        SELECT 4, format('%s more differ%s', count(*), CASE WHEN count(*) = 1 THEN 's' END)
        FROM difference
        WHERE NOT is_named
        HAVING count(*) > 0
    )
    SELECT (SELECT array_agg(path ORDER BY kind, place) FROM difference WHERE is_named),
        concat_ws(', and ', nullif(array_to_string(words[:n - 1], ', '), ''), words[n])
    INTO paths, account
    FROM (SELECT array_agg(words ORDER BY kind), count(*)::integer FROM clause) c(words, n);
    IF paths IS NULL THEN
        account := NULL;
    END IF;
END
$$;

COMMENT ON FUNCTION idem_internal.differences IS
    'Returns the paths of the members that differ between a request and the stored one: those with '
    'another value, then the new ones, then the missing ones, 10 at most; and the same as words. '
    'NULL if no member can be named.';

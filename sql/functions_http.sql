-- ---------------------------------------------------------------------------------------------
-- HTTP
-- ---------------------------------------------------------------------------------------------

-- All of it is SQL, so that servers without the library have the same definitions. The functions
-- that applications call are PL/pgSQL: inlining an SQL function into every statement of a client
-- costs more than a call. They inline the SQL functions of this part, once per session.

CREATE FUNCTION idem_internal.refuse(argument text, value text, detail text, hint text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value IS NULL THEN
        RAISE null_value_not_allowed USING
            MESSAGE = format('argument "%s" must not be null', argument),
            DETAIL = 'The argument has no default.',
            HINT = format('Pass a value for "%s".', argument);
    END IF;
    RAISE invalid_parameter_value USING
        MESSAGE = format('invalid value for argument "%s"', argument),
        DETAIL = detail,
        HINT = hint;
END
$$;

COMMENT ON FUNCTION idem_internal.refuse IS
    'Raises the error about an argument that is NULL or invalid. '
    'Raises 22004, 22023.';

-- The table of errors: SQLSTATEs and classes of them, with HTTP status, name and title. What is not
-- listed is 500. An undecided operation is 409, not 503: a client keeps its key and asks again
-- later, as for one in progress, while proxies would repeat a 503 and take a healthy server out of
-- service. The name is part of a problem's type, a URI that never changes; PostgreSQL's
-- errors have none. test/release.pl compares this table with that of src/core/errors.hpp, and the
-- documentation and the packages with both.
CREATE FUNCTION idem_internal.errors()
RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN jsonb '{
    "ID001": [409, "in_progress", "Operation in progress"],
    "ID002": [422, "key_conflict", "Key used for a different request"],
    "ID003": [409, "key_failed", "Operation failed permanently"],
    "ID004": [409, "lease_lost", "Operation taken over by a newer attempt"],
    "ID005": [409, "not_claimed", "Operation not claimed"],
    "ID006": [500, "claim_incomplete", "Operation left incomplete"],
    "ID007": [400, "invalid_key", "Idempotency key missing or invalid"],
    "ID008": [500, "unknown_scope", "Unknown scope"],
    "ID009": [429, "limit_exceeded", "Too many operations"],
    "ID010": [412, "stale_key", "Idempotency key too old"],
    "ID011": [428, "claim_required", "Idempotency key required"],
    "ID012": [409, "sequence_gap", "Gap in the sequence"],
    "ID013": [500, "invalid_tenant", "Tenant missing or invalid"],
    "ID014": [409, "attempts_exhausted", "Operation undecided, no attempts left"],
    "00000": [200, null, "OK"],
    "22": [400, null, "Bad Request"],
    "42501": [403, null, "Forbidden"],
    "08": [503, null, "Service Unavailable"],
    "25006": [503, null, "Service Unavailable"],
    "40": [503, null, "Service Unavailable"],
    "53": [503, null, "Service Unavailable"],
    "55": [503, null, "Service Unavailable"],
    "57": [503, null, "Service Unavailable"],
    "58": [503, null, "Service Unavailable"],
    "72": [503, null, "Service Unavailable"]
}';

COMMENT ON FUNCTION idem_internal.errors IS
    'Returns the HTTP status, name and title of SQLSTATEs and of classes of them.';

CREATE FUNCTION idem_internal.error_of(sqlstate text)
RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN sqlstate ~ '^[0-9A-Z]{5}$' THEN
        coalesce(idem_internal.errors() -> sqlstate, idem_internal.errors() -> left(sqlstate, 2),
                 '[500, null, "Internal Server Error"]')
    ELSE idem_internal.refuse(
        'sqlstate', sqlstate, 'The value must consist of five characters, 0-9 and A-Z.',
        'Pass the SQLSTATE of an error, such as ''40001''.')::jsonb
END;

COMMENT ON FUNCTION idem_internal.error_of IS
    'Returns the HTTP status, name and title of an error as an array. '
    'Raises 22004, 22023.';

-- The SQLSTATE that means the same as an outcome of idem.try_claim().
CREATE FUNCTION idem_internal.sqlstate_of(outcome text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(
    jsonb '{
        "claimed": "00000",
        "completed": "00000",
        "failed": "ID003",
        "exhausted": "ID014",
        "in_progress": "ID001",
        "conflict": "ID002",
        "stale_key": "ID010",
        "limited": "ID009"
    }' ->> outcome,
    idem_internal.refuse(
        'result', outcome, 'The column "outcome" has none of its values.',
        'Pass what idem.claim() or idem.try_claim() returned.'));

COMMENT ON FUNCTION idem_internal.sqlstate_of IS
    'Returns the SQLSTATE that means the same as an outcome. '
    'Raises 22004, 22023.';

CREATE FUNCTION idem.http_status(sqlstate text)
RETURNS integer
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (idem_internal.error_of(sqlstate) -> 0)::integer;
END
$$;

COMMENT ON FUNCTION idem.http_status(text) IS
    'Returns the HTTP status that fits a SQLSTATE: 4xx for errors that concern the client''s '
    'request, 503 for errors that a retry may cure, 500 for all others. '
    'Raises 22004, 22023.';

CREATE FUNCTION idem.http_status(result idem.claim_result)
RETURNS integer
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    sqlstate pg_catalog.text := idem_internal.sqlstate_of(result.outcome);
BEGIN
    RETURN coalesce(result.status, (idem_internal.error_of(sqlstate) -> 0)::integer);
END
$$;

COMMENT ON FUNCTION idem.http_status(idem.claim_result) IS
    'Returns the HTTP status of what a claim returned: the status in it; else 200 for claimed and '
    'completed, and that of the error for all other outcomes. '
    'Raises 22004, 22023.';

CREATE FUNCTION idem.problem(sqlstate text, detail text DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    error pg_catalog.jsonb := idem_internal.error_of(sqlstate);
BEGIN
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'type', coalesce('urn:idem:problem:' || (error ->> 1), 'about:blank'),
        'title', error -> 2,
        'status', error -> 0,
        'sqlstate', sqlstate,
        'detail', detail));
END
$$;

COMMENT ON FUNCTION idem.problem(text, text) IS
    'Returns an error as an application/problem+json document (RFC 9457) with type, title, '
    'status, sqlstate and, if given, detail. '
    'Raises 22004, 22023.';

CREATE FUNCTION idem.problem(result idem.claim_result)
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    sqlstate pg_catalog.text := idem_internal.sqlstate_of(result.outcome);
BEGIN
    IF sqlstate = '00000' THEN
        RETURN NULL;
    END IF;
    RETURN idem.problem(sqlstate, CASE result.outcome
            WHEN 'exhausted' THEN 'The outcome is undecided. Keep the key, and ask again later.'
            ELSE result.error ->> 'message'
        END)
        || jsonb_strip_nulls(jsonb_build_object('status', result.status));
END
$$;

COMMENT ON FUNCTION idem.problem(idem.claim_result) IS
    'Returns what a claim returned as an application/problem+json document (RFC 9457); the detail '
    'is the message of a stored failure, not the last error of an undecided operation. NULL for '
    'claimed and completed. '
    'Raises 22004, 22023.';

-- One object per line of the response: the order counts, and a name may occur again.
CREATE FUNCTION idem_internal.header_lines(argument text, headers jsonb)
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lines pg_catalog.jsonb := '[]';
    fault pg_catalog.text := CASE WHEN jsonb_typeof(headers) <> 'object'
                       THEN 'The headers are not an object.' END;
    name pg_catalog.text;
    value pg_catalog.jsonb;
BEGIN
    FOR name, value IN
        SELECT h.key, v.value
        FROM jsonb_each(CASE WHEN fault IS NULL THEN headers END) h
            LEFT JOIN LATERAL jsonb_array_elements(
                CASE WHEN jsonb_typeof(h.value) = 'array' THEN h.value
                     ELSE jsonb_build_array(h.value) END) v ON true
    LOOP
        fault := CASE
            WHEN name !~ '^[0-9A-Za-z!#$%&''*+.^_`|~-]+$'
                THEN format('The name "%s" is not a token as in RFC 9110.', name)
            WHEN jsonb_typeof(value) <> 'string'
                THEN format('The value of the header "%s" is neither a string nor an array of '
                            'strings.', name)
            WHEN (value #>> '{}') COLLATE "C" ~ '[[:cntrl:]]'
                THEN format('The value of the header "%s" has a control character.', name)
        END;
        EXIT WHEN fault IS NOT NULL;
        IF value IS NOT NULL THEN
            lines := lines || jsonb_build_object(name, value);
        END IF;
    END LOOP;
    IF fault IS NOT NULL THEN
        PERFORM idem_internal.refuse(
            argument, '', fault,
            'Write headers as an object of names with a string or an array of strings each, such '
            'as ''{"Location": "/payments/1", "Vary": ["Accept", "Origin"]}''.');
    END IF;
    RETURN lines;
END
$$;

COMMENT ON FUNCTION idem_internal.header_lines IS
    'Returns headers as an array of objects with one member. '
    'Raises 22023.';

-- A superuser or a subscription may have stored headers that idem.complete() refuses, and a line
-- break in one of them would split the response.
CREATE FUNCTION idem.http_headers(result idem.claim_result)
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    sqlstate pg_catalog.text := idem_internal.sqlstate_of(result.outcome);
    headers pg_catalog.jsonb := '[]';
BEGIN
    IF result.headers IS NOT NULL THEN
        headers := idem_internal.header_lines('result', result.headers);
    END IF;
    IF sqlstate = 'ID003' OR result.outcome = 'completed' THEN
        headers := headers || jsonb '{"Idempotent-Replayed": "true"}';
    END IF;
    IF result.retry_after IS NOT NULL THEN
        headers := headers || jsonb_build_object('Retry-After',
            greatest(1, ceil(extract(epoch FROM result.retry_after)))::text);
    END IF;
    RETURN headers;
END
$$;

COMMENT ON FUNCTION idem.http_headers IS
    'Returns the HTTP headers of what a claim returned, as an array of objects with one member: '
    'the headers in it, Idempotent-Replayed for a stored answer, and Retry-After in seconds if '
    'there is a time to wait. '
    'Raises 22004, 22023.';

-- The key is a string in double quotes, with parameters after it (RFC 8941), or a token without
-- double quotes, blanks, semicolons and commas (which join several headers), as many clients send
-- it. Parameters have no meaning yet: they must be well-formed, and are ignored.
CREATE FUNCTION idem.parse_key(header text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    token CONSTANT pg_catalog.text := '[!#-+.-:<-~-]*';
    characters CONSTANT pg_catalog.text := $$(?:[ !#-\[\]-~]|\\["\\])*$$;  -- between double quotes
    parameters CONSTANT pg_catalog.text := '(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:"' || characters || '"'
        || '|-?(?:[0-9]{1,15}|[0-9]{1,12}[.][0-9]{1,3})'
        || '|[A-Za-z*][A-Za-z0-9!#$%&''*+.^_`|~:/-]*'
        || '|:[A-Za-z0-9+/=]*:'
        || '|[?][01]))?)*';
    value CONSTANT pg_catalog.text := btrim(header, E' \t');
    is_quoted CONSTANT boolean := value LIKE '"%';
    key pg_catalog.text := substring(value FROM CASE
        WHEN is_quoted THEN '^"(' || characters || ')"' || parameters || '$'
        ELSE '^' || token || '$' END);
    fault integer;  -- the position behind what is well-formed
    ending pg_catalog.text;  -- of a string: its closing quote and the parameters
    message pg_catalog.text := 'header Idempotency-Key is malformed';
    detail pg_catalog.text;
BEGIN
    IF value = '' OR value IS NULL THEN
        RETURN NULL;
    ELSIF is_quoted AND strpos(key, $$\$$) > 0 THEN
        key := regexp_replace(key, $$\\(.)$$, $$\1$$, 'g');
    END IF;
    IF length(key) BETWEEN 1 AND 255 THEN
        RETURN key;
    ELSIF key = '' THEN
        message := 'idempotency key must not be empty';
        detail := 'The header Idempotency-Key contains an empty string.';
    ELSIF length(key) > 255 THEN
        message := 'idempotency key is too long';
        detail := format('The header Idempotency-Key contains a key of %s bytes; at most 255 are '
                         'allowed.', length(key));
    ELSIF NOT is_quoted THEN
        fault := length(substring(value FROM '^' || token)) + 1;
        detail := 'The character at position %s is not allowed in a key without quotes.';
    ELSE
        fault := length(substring(value FROM '^"' || characters || '(?:"' || parameters || ')?'))
                 + 1;
        ending := substr(value, length(substring(value FROM '^"' || characters)) + 1);
        detail := CASE
            WHEN ending LIKE '";%' THEN 'There is a malformed parameter at position %s.'
            WHEN ending LIKE '"%'
                THEN 'Something other than parameters follows the key at position %s.'
            WHEN ending IN ('', $$\$$) THEN 'The closing double quote is missing.'
            WHEN left(ending, 1) = $$\$$
                THEN 'The backslash at position %s escapes neither a double quote nor a backslash.'
            ELSE 'The character at position %s is not printable ASCII.'
        END;
    END IF;
    RAISE SQLSTATE 'ID007' USING
        MESSAGE = message,
        DETAIL = format(detail, length(header) - length(ltrim(header, E' \t')) + fault),
        HINT = 'Send one key of 1 to 255 characters in double quotes, as in Idempotency-Key: '
               '"8e03978e-40d5-43dd-bc93-6894a57f9324".',
        SCHEMA = 'idem',
        CONSTRAINT = 'invalid_key';
END
$body$;

COMMENT ON FUNCTION idem.parse_key IS
    'Returns the key in the value of an Idempotency-Key header: a string in double quotes (RFC '
    '8941), or a bare token. NULL if the header is NULL or empty. '
    'Raises ID007 invalid_key.';

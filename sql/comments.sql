-- What the functions of schema idem do, in both editions. The errors are those of the extension;
-- the SQL edition also raises 0A000 for what it lacks.

COMMENT ON FUNCTION idem.claim IS
    'Claims (scope, tenant, key) for this transaction, or returns the stored answer of the '
    'operation that completed under it. With lease, the claim outlives the transaction for that '
    'long. Waits for a claim in flight, up to wait (NULL: the scope''s wait). Takes over a leased '
    'claim whose lease has ended: attempt increases by one, and the recovery point is kept. '
    'Raises ID001 in_progress, ID002 key_conflict, ID003 or the stored SQLSTATE for a stored '
    'failure, ID007 invalid_key, ID008 unknown_scope, ID009 limit_exceeded, ID010 stale_key, '
    'ID013 invalid_tenant, ID014 attempts_exhausted, 40001, 42501, 22021, 22023, 22004, 54000.';

COMMENT ON FUNCTION idem.try_claim IS
    'Like idem.claim(), but returns every outcome (claimed, completed, failed, exhausted, '
    'in_progress, conflict, stale_key, limited) as data, and does not wait unless wait is given. '
    'Raises ID007 invalid_key, ID008 unknown_scope, ID013 invalid_tenant, 40001, 42501, 22021, '
    '22023, 22004, 54000.';

COMMENT ON FUNCTION idem.complete IS
    'Stores the answer of a claimed operation; every retry gets it until the record expires. '
    'Returns the response as given, even if the scope keeps parts of it out of the record. The '
    'answer becomes visible to others when this transaction commits. headers is an object of '
    'names with a string or an array of strings each, without control characters. Raises ID005 '
    'not_claimed, ID001 in_progress, 40001, 22023, 54000 beyond max_answer_size; for a leased '
    'claim also ID004 lease_lost.';

COMMENT ON FUNCTION idem.fail IS
    'Stores a final failure; every retry raises it again until the record expires. error is an '
    'object with the members sqlstate, message, detail and hint, of which sqlstate or message is '
    'required. A sqlstate that tells clients to retry is refused. headers is as for complete. '
    'Raises ID005 not_claimed, ID001 in_progress, 40001, 22004, 22023, 54000; for a leased claim '
    'also ID004 lease_lost.';

COMMENT ON FUNCTION idem.release IS
    'Gives up a claim without an answer: the key becomes free when this transaction ends. A '
    'leased operation keeps its number of attempts and its recovery point for the next claim, '
    'which is not admitted before retry_after has passed, unless this was the last attempt. '
    'error, an object as for idem.fail(), is kept as the last error. Raises ID005 not_claimed, '
    '22023; for a leased claim also ID004 lease_lost, ID001 in_progress, 40001, 54000.';

COMMENT ON FUNCTION idem.renew IS
    'Renews the lease of a claim: it ends that long from now (NULL: the scope''s lease). Returns '
    'the new end of the lease. Raises ID004 lease_lost, ID005 not_claimed, ID001 in_progress, '
    '40001, 22023, 54000.';

COMMENT ON FUNCTION idem.checkpoint IS
    'Stores a recovery point of a leased claim. A claim that takes over the operation returns its '
    'name (1 to 255 bytes) and state as recovery_point and recovery_state. Raises ID004 '
    'lease_lost, ID005 not_claimed, ID001 in_progress, 40001, 22004, 22023, 54000.';

COMMENT ON FUNCTION idem.take IS
    'Takes over the unfinished leased operation that has been due longest: its lease has ended, '
    'or the retry_after of its release has passed, and it has attempts left. Returns its token, '
    'key, tenant, stored request, recovery point and last error; all NULL if nothing is due '
    'within wait (NULL: does not wait). tenant NULL means every tenant, unless idem.tenant is '
    'set. Concurrent calls get different operations and never wait for each other. Raises ID008 '
    'unknown_scope, ID013 invalid_tenant, 40001, 42501, 22021, 22023, 54000.';

COMMENT ON FUNCTION idem.execute IS
    'Claims the key, runs operation(request) with the caller''s privileges, and completes the key '
    'with its result. If the operation fails, rolls back its effect: an error that is listed in '
    'the scope''s final_sqlstates is stored as the failure that every retry gets; any other is '
    'raised, and the key stays free. Raises ID001, ID002, ID007, ID008, ID009, ID010, ID013, '
    'ID014, 40001, 42501, 22021, 22023, 22004, 54000.';

COMMENT ON FUNCTION idem.cancel IS
    'Cancels an operation that has not run: stores a final failure under a key that has no '
    'record, so that a late claim receives it, whatever its request. error is as for idem.fail(); '
    'NULL raises ID003. Returns what is known of the key then, as idem.lookup() does: failed is '
    'final while the record is kept; an operation that has begun is left as it is. Waits for a '
    'claim in flight, up to the scope''s wait. Raises ID001 in_progress, ID007 invalid_key, ID008 '
    'unknown_scope, ID009 limit_exceeded, ID010 stale_key, ID013 invalid_tenant, 40001, 42501, '
    '22021, 22023, 54000.';

COMMENT ON FUNCTION idem.lookup IS
    'Returns what is known of a key now: its state (absent, in_progress, exhausted, completed or '
    'failed), the stored answer and, until it is finished, since when and in which process. Never '
    'claims. With wait, waits for at most that long while the key is in progress, and on a '
    'standby also while it is absent. Works on a standby. Raises ID007, ID008, ID013, 42501, '
    '22021, 22023.';

COMMENT ON FUNCTION idem.new_key IS
    'Returns a new idempotency key: a UUIDv7 in lower case with hyphens. The keys of one session '
    'are in ascending order, even if the clock is set back.';

COMMENT ON FUNCTION idem.child_key IS
    'Returns the idempotency key to send to another service in this step of the operation. The '
    'key is the same in every attempt, and does not reveal the operation''s own key. Takes the '
    'token of a claim of this transaction, open or not, or of a leased claim in a scope that the '
    'caller may use. '
    'Raises ID004 lease_lost, ID005 not_claimed, 22004, 22023, 22021, 55000 without secrets.';

COMMENT ON FUNCTION idem.current_key IS
    'Returns the key of the newest open claim of this transaction; NULL if there is none. Can be '
    'the DEFAULT of a column. '
    'Raises 25000 in a parallel worker.';

COMMENT ON FUNCTION idem.require_claim IS
    'Trigger function that refuses a write unless this transaction has claimed a key in one of '
    'the scopes that the trigger''s arguments name, and has not released it. For triggers BEFORE '
    'INSERT OR UPDATE OR DELETE, FOR EACH STATEMENT or FOR EACH ROW. '
    'Raises ID011 claim_required, ID008 unknown_scope, 22023 without arguments, 39P01.';

COMMENT ON FUNCTION idem.once IS
    'Claims and completes a key in one call: true the first time, false for every retry. The '
    'record commits or rolls back together with the effect that the caller has in the same '
    'transaction. Waits for a claim in flight, up to the scope''s wait. Raises ID001 in_progress, '
    'ID002 key_conflict, ID003 or the stored SQLSTATE for a stored failure, ID007 invalid_key, '
    'ID008 unknown_scope, ID009 limit_exceeded, ID010 stale_key, ID013 invalid_tenant, ID014 '
    'attempts_exhausted, 40001, 42501, 22021, 22023, 22004, 54000.';

COMMENT ON FUNCTION idem.once_each IS
    'Claims and completes many keys in one call, and returns those that are new, each once, in '
    'the order of the array. Handles tens of thousands of keys: it takes no key locks, and waits '
    'for transactions that write the same keys as a unique index does. A key that has completed '
    'or failed, is claimed under a running lease, or has no attempts left, is not new. A '
    'concurrent atomic claim of a key that it returns gets 40001 when it completes. Raises ID001 '
    'in_progress (claimed by this transaction), ID007 invalid_key, ID008 unknown_scope, ID009 '
    'limit_exceeded, ID010 stale_key, ID013 invalid_tenant, 40001, 42501, 22021, 22023, 22004, '
    '54000.';

COMMENT ON FUNCTION idem.advance IS
    'Advances the watermark of a source, for ordered streams: true if seq is higher than every '
    'number that the source has sent so far, false for a duplicate. With contiguous, seq must be '
    'the next number; the first number of a source may be any. Waits for a transaction that is '
    'advancing the same source, up to the scope''s wait. Watermarks do not expire. Raises ID001 '
    'in_progress, ID007 invalid_key, ID008 unknown_scope, ID012 sequence_gap, ID013 '
    'invalid_tenant, 0A000 (the scope has records => true), 40001, 42501, 22021, '
    '22004, 54000.';

COMMENT ON FUNCTION idem.use_records IS
    'Chooses the record table of this transaction, for the keys of scopes with records => true: a '
    'table that idem.create_record_table() has created. Other scopes are not affected. '
    'idem.record ends the choice, and so does the end of the transaction; a rollback to a '
    'savepoint undoes it. Every call for a key must use the same table, so choose it by what the '
    'key belongs to, such as its tenant. '
    'Raises 42809 (not a record table), 42501 (it has another owner than idem.record, or another '
    'role may change it), 42P01 (there is no such table), 25000, 22004.';

COMMENT ON FUNCTION idem.create_scope IS
    'Creates a scope: a named family of operations, in which keys are claimed. The comments on the '
    'columns of the view idem.scopes say what each setting means; those with the default NULL have '
    'no limit then. settings passes settings as text, each as name=value, as those must be passed '
    'that a later release adds. owner is the current user if NULL. With if_not_exists, a scope '
    'that has exactly these settings is left as it is. For superusers and roles that are granted '
    'EXECUTE; the caller must be able to SET ROLE to the owner. '
    'Raises 42710, 42501, 42704 (no such owner), 55000 (a limit without preload), 22023, 22004. A '
    'text in settings that is no value of its type raises the error of the type.';

COMMENT ON FUNCTION idem.alter_scope IS
    'Changes the settings of a scope. The arguments are those of idem.create_scope(): NULL keeps a '
    'setting, -1 removes the limit max_attempts or claims_per_minute, and an interval of '
    'zero removes answer_ttl or min_ttl. Stored records do not change: with tenant_from or '
    'records, the scope must have no unexpired records, and no watermarks, unless force is true. '
    'Where stale keys are rejected, a longer ttl sets min_ttl to what the ttl was, if it is not '
    'set, and min_ttl cannot be raised, unless force is true. '
    'For superusers and roles that are granted EXECUTE; the caller needs the privileges of the '
    'scope''s owner, and must be able to SET ROLE to a new owner. '
    'Raises ID008 unknown_scope, 42501, 42704 (no such owner), 55000 (a limit without preload, '
    'live keys, a higher min_ttl, or an open claim of this transaction), 22023, 22004 (force). A '
    'text in settings that is no value of its type raises the error of the type.';

COMMENT ON FUNCTION idem.scope_ddl IS
    'Returns the SQL statement that creates the scope: a call of idem.create_scope() with the '
    'owner and the settings that differ from the defaults. For users of the scope; works on a '
    'standby. '
    'Raises ID008 unknown_scope, 42501.';

COMMENT ON FUNCTION idem.drop_scope IS
    'Drops a scope. All its records count as expired when this transaction commits, and the purge '
    'deletes them; a new scope of the same name starts empty. force: also if an unfinished '
    'operation has a recovery point. For superusers and roles that are granted EXECUTE; the caller '
    'needs the privileges of the scope''s owner. '
    'Raises ID008 unknown_scope, 42501, 22004, 55000 (such an operation, or an open claim of this '
    'transaction).';

COMMENT ON FUNCTION idem.revoke IS
    'Takes an unfinished leased operation away from its holder: its lease, or the time until a '
    'retry, ends now, and its token gets ID004. The next claim continues from the recovery point; '
    'if the attempts are used up, it is granted one more. Returns true if there was such an '
    'operation. Waits for a transaction that holds the key, up to the scope''s wait, but not for '
    'the lease. For superusers and roles that are granted EXECUTE; the caller needs the '
    'privileges of the scope''s owner. Raises ID001 in_progress, ID007 invalid_key, ID008 '
    'unknown_scope, ID013 invalid_tenant, 40001, 42501, 22021, 22023.';

COMMENT ON FUNCTION idem.forget IS
    'Deletes the record of a key, with its answer: the next claim runs the operation again from '
    'the beginning. Refuses an unfinished operation that has a recovery point, unless force is '
    'true. Returns true if there was a record that had not expired. Waits for a claim in flight, '
    'up to the scope''s wait. For superusers and roles that are granted EXECUTE; the caller needs '
    'the privileges of the scope''s owner. Raises ID001 in_progress, ID007 invalid_key, ID008 '
    'unknown_scope, ID013 invalid_tenant, 55000 with a recovery point, 40001, 42501, 22004, '
    '22021, 22023.';

COMMENT ON FUNCTION idem.forget_tenant IS
    'Deletes all records of a tenant as idem.forget() does, and the tenant''s watermarks; all of '
    'them or, after an error, none. Returns how many records had not expired. A claim in flight '
    'that has no record yet is not found. Reads all records. For superusers and roles that are '
    'granted EXECUTE; the caller needs the privileges of the scope''s owner. Raises ID001 '
    'in_progress, ID008 unknown_scope, ID013 invalid_tenant, 55000 with a recovery point, 40001, '
    '42501, 22004, 22021.';

COMMENT ON FUNCTION idem.erase IS
    'Erases the answer of a key, and a stored request, the state of a recovery point and the text '
    'of an error. The key, its outcome, the status and the SQLSTATE of a failure stay, so that no '
    'retry runs the operation again: a replay is completed and redacted. Refuses an unfinished '
    'operation that needs what would be erased, unless force is true. Returns true if there was a '
    'record that had not expired. Waits for a claim in flight, up to the scope''s wait. For '
    'superusers and roles that are granted EXECUTE; the caller needs the privileges of the '
    'scope''s owner. Raises ID001 in_progress, ID007 invalid_key, ID008 unknown_scope, ID013 '
    'invalid_tenant, 55000 for an unfinished operation, 40001, 42501, 22004, 22021, 22023.';

COMMENT ON FUNCTION idem.erase_tenant IS
    'Erases all records of a tenant as idem.erase() does; all of them or, after an error, none. '
    'For superusers, the scope NULL means all scopes. Returns how many records had not expired. '
    'Reads all record tables, and warns of those that it cannot use. A claim in flight that has no '
    'record yet is not found; a notice says that there is no record at all. For superusers and '
    'roles that are granted EXECUTE; the caller needs the privileges of the scope''s owner. '
    'Raises ID001 in_progress, ID008 unknown_scope, ID013 invalid_tenant, 55000 for an unfinished '
    'operation, 40001, 42501, 22004, 22021, 22023.';

COMMENT ON FUNCTION idem.reset_stream IS
    'Sets the watermark of a source to seq, forwards or backwards; NULL forgets the source, so '
    'that its next number may be any. Returns the watermark before, NULL if there was none. Waits '
    'for a transaction that is advancing the source, up to the scope''s wait. For superusers and '
    'roles that are granted EXECUTE; the caller needs the privileges of the scope''s owner. '
    'Raises ID001 in_progress, ID007 invalid_key, ID008 unknown_scope, ID013 invalid_tenant, '
    '40001, 42501, 22021.';

COMMENT ON FUNCTION idem.purge IS
    'Deletes expired records and those of dropped scopes, and removes answers that are older than '
    'their scope''s answer_ttl: at most max_records together (NULL: 10000), starting where the '
    'last purge stopped. Returns how many. Changes none where the records '
    'arrive by subscription: there, the publisher purges. Each call is one transaction, which '
    'suits cron. For superusers and roles that are granted EXECUTE. '
    'Raises 22023.';

COMMENT ON FUNCTION idem.rotate_secret IS
    'Creates a new secret for the fingerprints of later requests, and returns its id. Old secrets '
    'are kept: a stored fingerprint is compared under the secret with which it was made. For '
    'superusers and roles that are granted EXECUTE.';

COMMENT ON FUNCTION idem.edition IS
    'Returns extension, or sql if the SQL edition is installed.';

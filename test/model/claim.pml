/*
 * The claim protocol of one idempotency key, for the model checker SPIN.
 *
 * README.md in this folder says what is modelled, which function makes each step, what is proved,
 * within which bounds, and which faults are found. What the server does in one critical section (a
 * probe of the index, a row version, the end of a transaction) is one atomic step here. Between any
 * two steps, every other process may run, be cancelled or die.
 *
 * The processes and bounds of a run are chosen when the model is compiled:
 *   ATOMIC, LEASED, TAKE, REVOKE, CANCEL, ONCE_EACH, BYPASS, PURGE
 *                how many clients of each kind
 *   TRIES        calls of claim(), take() or once_each() per client
 *   KILL         how many transactions may be killed, each at any step
 *   LIVES        how often the clock may expire a completed record
 *   LAPSES       how often the clock may end a lease, or expire a record in progress
 *   MAX_ATTEMPTS how many attempts an operation has, without those that revoke() grants
 *   REPEATABLE   the clients run in REPEATABLE READ
 *   PREPARE      an atomic client may prepare its transaction
 *   LEASED_CALLS, TAKER_CALLS    calls with the token per leased claim, and per operation taken
 *   RELEASE      a leased client may release its claim
 *   PAUSE        a leased client may release its claim with a time before which it is not due
 *   FAIL         a leased client may end its operation with a failure
 *   STUCK        the first atomic client never ends its transaction
 *   LIVENESS     adds the property that every client comes to an end
 *   FAIR_TAKER   the taker ends when nothing is unfinished, and completes what it takes; no lease
 *                runs for ever, and no unfinished operation expires
 *   CALLS        each call is one step that prints what it did, for replays on a server
 *   SCOPE_WAITS  with CALLS: calls with a token wait as long as they must, otherwise not at all
 *   RUNS         with CALLS: how many traces one simulation prints
 * A fault is compiled in by its name, F_..., at the place where it breaks the protocol.
 */

#ifndef ATOMIC
#define ATOMIC 2
#endif
#ifndef LEASED
#define LEASED 0
#endif
#ifndef TAKE
#define TAKE 0
#endif
#ifndef REVOKE
#define REVOKE 0
#endif
#ifndef CANCEL
#define CANCEL 0
#endif
#ifndef ONCE_EACH
#define ONCE_EACH 0
#endif
#ifndef BYPASS
#define BYPASS 0
#endif
#ifndef PURGE
#define PURGE 0
#endif
#ifndef TRIES
#define TRIES 2
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 255
#endif
#ifndef LEASED_CALLS
#define LEASED_CALLS 2
#endif
#ifndef TAKER_CALLS
#define TAKER_CALLS 2
#endif
#ifndef KILL
#define KILL 1
#endif
#ifndef LIVES
#define LIVES 1
#endif
#ifndef LAPSES
#define LAPSES 2
#endif

#define CLIENTS (ATOMIC + LEASED + TAKE + REVOKE + CANCEL + ONCE_EACH + BYPASS + PURGE)
#define ROWS    (CLIENTS + 2)
#define NONE    0
#define NOTHING 255
#define PAUSED  255

/* ---- The record table: the versions of one key's row --------------------------------------------- */

typedef Row {
    bool used;
    bool spec;     /* inserted speculatively, not decided yet */
    bool done;     /* completed or failed; otherwise in progress under a lease */
    bool failure;  /* done: failed */
    bool over;     /* its lease has ended, or it was released and is due */
    bool expired;
    byte by;       /* the transaction that wrote it; NONE once it has committed */
    byte gone_by;  /* the transaction that deletes or replaces it */
    byte born;     /* the generation of its commit: what a snapshot goes by */
    byte attempt;
    byte extra;    /* attempts that revoke() has granted beyond MAX_ATTEMPTS */
    byte nonce;    /* the token's random bits; NONE once it was released or revoked */
    byte answer;
};

Row row[ROWS];
byte lock = NONE;   /* the key lock */
byte generation = 0;  /* of commits that wrote */
byte next_nonce = 1;

/* A transaction is named by its client, from 1. */
mtype = { idle, running, prepared };
mtype tx[CLIENTS + 1] = idle;
bool effect[CLIENTS + 1];  /* it has made the side effect */
byte grants[CLIENTS + 1];  /* the attempt that it allows, if it has revoked the last one */
bool killed[CLIENTS + 2];
byte kills = 0;
byte lives = 0;
byte lapses = 0;
byte finished = 0;

/* Only the properties read these: the committed effects since the last expiry, and their answer. */
byte effects = 0;
byte first_answer = 0;
byte newest_nonce = 0;     /* of the attempt that was granted last, and committed; or PAUSED */
byte allowed = MAX_ATTEMPTS;  /* the highest attempt that an operation may have */
bool told_failed = false;  /* a client was told that the operation has failed; until the record expires */
bool expired_open = false; /* an unfinished record has expired */

/* ---- Traces ----------------------------------------------------------------------------------------
 *
 * With CALLS, a call is one step up to where it waits, and then another one. A simulation prints
 * what the calls did, and test/t/model.pl replays it on a server:
 *   EVENT t calls ...   client t makes a call
 *   EVENT t waits w     it waits for client w's transaction, or (w = 0) for the end of a lease
 *   EVENT t gets ...    the call returns, or raises an error
 *   EVENT t ...         begin, commit, rollback, prepare, ..., kill; of the clock, when t = 0
 *   STEP ...            what happens within a call
 * A call whose wait has ended goes on before anything else happens, as on a server. */
#ifdef CALLS
#define CALL atomic
#define SAY(event) printf event
#define TELL(event) printf event;
#define ENDS(transaction) (patient && tx[transaction] == idle)
#define FREE(l) (patient && l == NONE)
#define TURN !(GOES_ON(1) || GOES_ON(2) || GOES_ON(3));
#define GOES_ON(t) (killed[t] || \
    (waits[t] == for_lock && lock == NONE) || (waits[t] == for_lease && !RUNNING_LEASE(waits_at[t])) || \
    (waits[t] == for_writer && (tx[waits_at[t]] == idle)))
#define SCOPE_PATIENCE patient = SCOPE_WAITS;
#define CLAIM_PATIENCE if :: patient = true :: patient = false fi;
#define UNBOUNDED patient = true;
#define NO_PATIENCE patient = false;
#define WAITS_FOR_LOCK(t) if :: patient && lock != NONE && lock != t -> WAITS(t, for_lock, NONE, lock) :: else fi;
#define WAITS_FOR_WRITER(t, w) if :: patient && tx[w] != idle -> WAITS(t, for_writer, w, w) :: else fi;
#define WAITS_FOR_LEASE(t, r) if :: patient && RUNNING_LEASE(r) -> WAITS(t, for_lease, r, NONE) :: else fi;
#define WAITS(t, what, at, client) \
    waits[t] = what; waits_at[t] = at; printf("STEP waits %e\n", what); printf("EVENT %d waits %d\n", t, client)
#define GOES(t) waits[t] = for_nothing;
#ifndef SCOPE_WAITS
#define SCOPE_WAITS false
#endif
#ifndef RUNS
#define RUNS 1
#endif
mtype = { for_nothing, for_lock, for_writer, for_lease };
mtype waits[4] = for_nothing;
byte waits_at[4];
#else
#define CALL
#define SAY(event) skip
#define TELL(event)
#define ENDS(transaction) (tx[transaction] == idle)
#define FREE(l) (l == NONE)
#define TURN
#define SCOPE_PATIENCE
#define CLAIM_PATIENCE
#define UNBOUNDED
#define NO_PATIENCE
#define WAITS_FOR_LOCK(t)
#define WAITS_FOR_WRITER(t, w)
#define WAITS_FOR_LEASE(t, r)
#define GOES(t)
#endif

/* ---- The end of a transaction ---------------------------------------------------------------------- */

inline clear_row(r) {
    row[r].used = false; row[r].spec = false; row[r].done = false; row[r].failure = false;
    row[r].over = false; row[r].expired = false; row[r].by = NONE; row[r].gone_by = NONE;
    row[r].born = 0; row[r].attempt = 0; row[r].extra = 0; row[r].nonce = 0; row[r].answer = 0
}

/* ProcArrayEndTransaction(): all that the transaction wrote becomes visible at once. */
inline publish(t) {
    d_step {
#ifndef FAIR_TAKER
        generation++;  /* a taker that looks for ever does not count */
#endif
        if
        :: effect[t] ->
            effects++;
            assert(effects <= 1);  /* at most one committed effect per TTL */
            assert(!told_failed)   /* and none after a failure */
        :: else
        fi;
        allowed = (grants[t] > allowed -> grants[t] : allowed);
        i = 0;
        do
        :: i < ROWS ->
            if
            :: row[i].used && row[i].gone_by == t -> clear_row(i)
            :: else
            fi;
            if
            :: row[i].used && row[i].by == t ->
                row[i].by = NONE;
                row[i].born = generation;
                if
                :: row[i].done && row[i].failure ->
                    assert(effects == 0);
                    first_answer = row[i].answer; told_failed = true
                :: row[i].done && !row[i].failure ->
                    first_answer = row[i].answer;
                    newest_nonce = (newest_nonce == NONE -> NONE : row[i].nonce)
                :: !row[i].done && !row[i].over ->
                    newest_nonce = (row[i].nonce == NONE -> PAUSED : row[i].nonce)
                :: !row[i].done && row[i].over -> newest_nonce = NONE  /* released */
                fi
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        effect[t] = false;
        grants[t] = 0;
        tx[t] = idle
    }
}

inline undo(t) {
    d_step {
        i = 0;
        do
        :: i < ROWS ->
            if
            :: row[i].used && row[i].by == t -> clear_row(i)
            :: row[i].used && row[i].gone_by == t -> row[i].gone_by = NONE
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        effect[t] = false;
        grants[t] = 0;
        tx[t] = idle
    }
}

inline free_lock(t) {
    d_step {
        if
        :: lock == t -> lock = NONE
        :: else
        fi
    }
}

inline begin(t) {
    d_step { tx[t] = running; snapshot = generation }
}

/* The rows become visible first, then the lock is freed: the next holder sees the winner. */
inline commit(t) {
#ifdef F_LOCK_FREED_BEFORE_COMMIT
    free_lock(t);
    publish(t)
#else
    publish(t);
    free_lock(t)
#endif
}

inline abort(t) {
    undo(t);
    free_lock(t)
}

byte speculative = 0;  /* rows whose speculative insertion is under way */

/* A client that meets such a row waits for the decision about it before anything else. */
inline speculative_decided() { (speculative == 0) }

/* ---- The probe and the decision -------------------------------------------------------------------- */

mtype = { absent, inserting, deleting, committed, own };
mtype = { complete, fail, renew, release, pause };
mtype = { claim, take_over, in_flight, leased, exhausted, serialization_failure, replay, refused };
mtype = { current, lost, in_progress, completed, failed, written, alone, beside };  /* in traces */
#define ENDED (row[found].failure -> failed : completed)

/* As DigestScan::find(): the version that binds the key, even while another transaction changes it; a
 * row that is being inserted only if there is no other. */
inline probe(t) {
    d_step {
        found = NOTHING; presence = absent; working = NONE;
        i = 0;
        do
        :: i < ROWS ->
            if
            :: !row[i].used -> skip
            :: row[i].used && row[i].by == t && row[i].gone_by != t ->
                found = i; presence = own; working = NONE; break
            :: row[i].used && row[i].by == NONE && row[i].gone_by == NONE ->
                found = i; presence = committed; working = NONE; break
            :: row[i].used && row[i].by == NONE && row[i].gone_by != NONE && row[i].gone_by != t ->
                found = i; presence = deleting; working = row[i].gone_by; break
            :: row[i].used && row[i].by != NONE && row[i].by != t ->
                found = i; presence = inserting; working = row[i].by
            :: else
            fi;
            i++
        :: else -> break
        od;
#ifdef F_MVCC_SNAPSHOT
        /* Decides by the statement's snapshot, which does not show later or unfinished commits. */
        if
        :: presence == inserting || ((presence == committed) && row[found].born > snapshot) ->
            found = NOTHING; presence = absent; working = NONE
        :: else
        fi;
#endif
        i = 0
    }
}

/* As decide() in core/decision.hpp: no attempts are left. Derived from the row, never written. */
#define LAST_ATTEMPT(r) (row[r].attempt >= MAX_ATTEMPTS + row[r].extra)
#ifdef F_EXHAUSTED_IS_CLAIMED
#define LAPSED (take_over)
#else
#define LAPSED (LAST_ATTEMPT(found) -> exhausted : take_over)
#endif

/* As decide() in core/decision.hpp. */
inline decide() {
    d_step {
        if
        :: presence == absent -> verdict = claim
#ifdef F_DIRTY_READ_ANSWERS
        :: presence == inserting && row[found].done -> verdict = replay
        :: presence == inserting && !row[found].done -> verdict = in_flight
#else
        :: presence == inserting -> verdict = in_flight
#endif
        :: (presence == deleting || presence == committed) && row[found].expired -> verdict = claim
        :: presence == deleting && !row[found].expired -> verdict = in_flight
#if defined(REPEATABLE) && !defined(F_ANSWER_BEYOND_SNAPSHOT)
        :: presence == committed && !row[found].expired && row[found].born > snapshot ->
            verdict = serialization_failure
        :: presence == own || (presence == committed && !row[found].expired && row[found].born <= snapshot) ->
#else
        :: presence == own || (presence == committed && !row[found].expired) ->
#endif
            if
            :: row[found].done -> verdict = replay
            :: !row[found].done && !row[found].over ->
#if defined(F_TAKE_OVER_RUNNING_LEASE)
                verdict = take_over
#elif defined(F_RETRY_TIME_IGNORED)
                verdict = (row[found].nonce == NONE -> take_over : leased)
#else
                verdict = leased
#endif
            :: !row[found].done && row[found].over -> verdict = LAPSED
            fi
        fi;
        if
        :: verdict == take_over -> attempt = row[found].attempt + 1
        :: else -> attempt = 1
        fi;
        outlived = (presence != absent);
        if
        :: verdict == replay ->
            assert(row[found].answer == first_answer);  /* every answer is the first one */
#ifdef REPEATABLE
            assert(presence == own || row[found].born <= snapshot);  /* and its effect is visible */
#endif
        :: else
        fi
    }
}

inline look(t) {
    atomic { speculative_decided(); probe(t); decide(); TELL(("STEP decide %e %e\n", presence, verdict)) }
}

/* A lease that runs, or the time until a retry, and that no transaction is ending. */
#define RUNNING_LEASE(r) (row[r].used && row[r].by == NONE && row[r].gone_by == NONE && \
                          !row[r].done && !row[r].over && !row[r].expired)

/* Without a writer that goes past the lock, a granted claim loses no race: its work is not in vain. */
#if BYPASS + ONCE_EACH == 0 && !defined(REPEATABLE)
#define NOT_IN_VAIN assert(verdict != serialization_failure)
#else
#define NOT_IN_VAIN skip
#endif

/* What has failed is not begun again. */
#define FINAL assert(!GRANTS || !told_failed)

/* A bounded wait: what is waited for, or the deadline, whichever comes first. */
#if defined(CALLS)
#define DEADLINE !patient
#elif defined(F_UNBOUNDED_WAIT)
#define DEADLINE false
#else
#define DEADLINE true
#endif


inline take_lock(t) {
    atomic {
        if
        :: lock == NONE -> lock = t; locked = true
        :: else
        fi
    }
}

inline give_lock_back(t) {
    if
    :: locked -> free_lock(t); locked = false
    :: else
    fi
}

#define NO_LONGER_LEASED(r) !RUNNING_LEASE(r)

#define GRANTS (verdict == claim || verdict == take_over)
/* A row that expired binds nothing; but a claim that writes at once would wait for its deletion. */
#define IN_FLIGHT (verdict == in_flight || (GRANTS && at_once && presence == deleting))

/* As claim_within_bound(). Leaves GRANTS with the lock held, or any other verdict with the lock free. */
inline claim_key(t, at_once) {
    locked = false;
    take_lock(t);
#ifdef F_PROBE_BEFORE_LOCK
    /* Looks before it has the lock, and not again. */
    look(t);
    if
    :: !locked && (GRANTS || verdict == in_flight) ->
        if
        :: atomic { lock == NONE -> lock = t; locked = true; if :: verdict == in_flight -> verdict = claim :: else fi }
        :: DEADLINE -> verdict = in_flight
        fi
    :: else
    fi;
    goto judged;
#endif
    do
    :: look(t);
       if
       :: locked && GRANTS && !IN_FLIGHT -> break
       :: !GRANTS && !IN_FLIGHT && verdict != leased -> break
       :: verdict == leased ->
            give_lock_back(t);
            WAITS_FOR_LEASE(t, found)
            if  /* a wait: looks again when the lease may have ended, or gives up */
            :: NO_LONGER_LEASED(found) -> GOES(t) skip
            :: DEADLINE -> break
            fi
       :: (IN_FLIGHT || GRANTS) && locked && !(GRANTS && !IN_FLIGHT) ->
            /* A writer that went past the lock. It may claim the key as well. */
            give_lock_back(t);
            WAITS_FOR_WRITER(t, working)
            if
            :: ENDS(working) -> GOES(t) skip
            :: DEADLINE -> verdict = in_flight; break
            fi;
            take_lock(t)
       :: (IN_FLIGHT || GRANTS) && !locked ->
            /* The lock's holder works on the key. */
            WAITS_FOR_LOCK(t)
            if
            :: atomic { FREE(lock) -> GOES(t) lock = t; locked = true }
            :: DEADLINE -> verdict = in_flight; break
            fi
#ifdef F_STALE_DECISION
            ; if  /* decides by what it saw before it had the lock */
            :: GRANTS -> break
            :: else
            fi
#endif
       fi
    od;
judged:
    if
    :: !GRANTS || !locked -> give_lock_back(t)
    :: else
    fi;
    d_step {
        i = 0;
        do
        :: i < ROWS ->
            assert(!GRANTS || !RUNNING_LEASE(i));  /* a running lease is never taken over */
            i++
        :: else -> break
        od;
        i = 0;
        FINAL
    }
#ifdef F_CLAIM_CALLS_EXHAUSTED_FAILED
    ; told_failed = told_failed || verdict == exhausted
#endif
#ifdef F_LOCK_FREED_WHEN_CLAIMED
    ; free_lock(t)
#endif
}

/* As take_one(), which waits for nothing: the key lock if it is free, and then the row, read again.
 * Leaves take_over with the lock held, or any other verdict with the lock free. What a search without
 * locks has found before is no fact, and not modelled. */
inline take_key(t) {
    locked = false;
#if defined(F_TAKE_WITHOUT_LOCK)
    look(t);
#elif defined(F_TAKE_BY_THE_LIST)
    look(t);  /* before it has the lock, and not again */
    if
    :: verdict == take_over -> take_lock(t); if :: !locked -> verdict = in_flight :: else fi
    :: else
    fi;
#else
#ifdef F_TAKE_WAITS
    (lock == NONE);
#endif
    take_lock(t);
    if
    :: locked -> look(t)
    :: else -> verdict = in_flight
    fi;
#endif
#ifdef F_TAKE_PASSES_OVER_RELEASED
    if
    :: verdict == take_over && row[found].nonce == NONE -> verdict = in_flight
    :: else
    fi;
#endif
#ifdef F_EXHAUSTED_IS_TAKEN
    if
    :: verdict == exhausted -> verdict = take_over; attempt = row[found].attempt + 1
    :: else
    fi;
#endif
    if
    :: verdict == take_over -> FINAL
    :: verdict == serialization_failure && !row[found].done && row[found].over && !LAST_ATTEMPT(found) ->
        give_lock_back(t)
    :: else -> verdict = in_flight; give_lock_back(t)
    fi
}

/* ---- Writing -------------------------------------------------------------------------------------- */

inline free_row() {
    slot = 0;
    do
    :: slot < ROWS && row[slot].used -> slot++
    :: else -> break
    od;
    assert(slot < ROWS)
}

inline new_row(t, finish) {
    assert(attempt <= allowed);
    free_row();
    row[slot].used = true;
    row[slot].by = t;
    row[slot].done = finish;
    row[slot].attempt = attempt;
    row[slot].nonce = nonce;
    row[slot].answer = nonce
}

/* Whether the unique index has another row of the key, that stays or may stay. */
inline others(t, mine) {
    i = 0; other = NOTHING;
    do
    :: i < ROWS ->
        if
        :: row[i].used && i != mine && !(row[i].gone_by == t) -> other = i
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

#ifdef F_REVOKE_REOPENS_FAILURE
#define CONTINUES(r) (!row[r].done || row[r].failure)
#else
#define CONTINUES(r) (!row[r].done)
#endif

/* As write_record(): verdict == serialization_failure when a writer past the lock came first, refused when
 * the wait for one was too long. */
inline write(t, finish) {
    verdict = claim;
    if
    :: outlived ->
        do
        :: speculative_decided(); probe(t);
           if
           :: presence == absent || presence == inserting -> break       /* it has gone: insert */
           :: presence == own || presence == committed || presence == deleting ->
                atomic {
                    if
                    :: !row[found].used || (row[found].by != NONE && row[found].by != t) -> skip  /* moved: look again */
                    :: row[found].used && (row[found].by == NONE || row[found].by == t) &&
                       !(row[found].expired && row[found].by != t) &&
                       !(CONTINUES(found) && row[found].attempt <= attempt) ->
                        verdict = serialization_failure
                    :: row[found].used && (row[found].by == NONE || row[found].by == t) &&
                       ((row[found].expired && row[found].by != t) ||
                        (CONTINUES(found) && row[found].attempt <= attempt)) ->
                        if
                        :: row[found].gone_by == NONE ->
                            /* only the holder writes over a running lease, and revoke() for it */
                            assert(!RUNNING_LEASE(found) || row[found].nonce == nonce);
                            new_row(t, finish); row[found].gone_by = t; verdict = replay;
                            row[slot].extra = (finish || row[found].expired -> 0 : row[found].extra);
                            TELL(("STEP write over a row\n"))
                        :: row[found].gone_by != NONE -> working = row[found].gone_by; verdict = in_flight
                        fi
                    fi
                };
                if
                :: verdict == in_flight ->
                    WAITS_FOR_WRITER(t, working)
                    if
                    :: atomic { ENDS(working) -> GOES(t) verdict = claim }
                    :: DEADLINE -> verdict = refused; break
                    fi
                :: verdict == claim -> skip
                :: else -> break
                fi
           fi
        od
    :: else
    fi;
    if
    :: verdict == claim ->
        /* The row and its index entry; the index says whether another is there. */
        atomic { new_row(t, finish); others(t, slot); TELL(("STEP write %e\n", (other == NOTHING -> alone : beside))) };
#ifndef F_NO_UNIQUE_CHECK
        do
        :: other != NOTHING ->
            atomic {
                if
                :: !row[other].used -> skip
                :: row[other].used && row[other].by == NONE && row[other].gone_by == NONE ->
                    verdict = serialization_failure
                :: row[other].used && row[other].by != NONE -> working = row[other].by; verdict = in_flight
                :: row[other].used && row[other].by == NONE && row[other].gone_by != NONE ->
                    working = row[other].gone_by; verdict = in_flight
                fi
            };
            if
            :: verdict == serialization_failure -> break
            :: verdict == in_flight ->
                WAITS_FOR_WRITER(t, working)
                if
                :: (ENDS(working) || !row[other].used) -> GOES(t) verdict = claim
                :: DEADLINE -> verdict = refused; break
                fi
            :: else
            fi;
            d_step { others(t, slot) }
        :: else -> break
        od
#endif
    :: else
    fi
}

/* The key lock, then the row, which no other transaction is changing: verdict == claim. Or in_flight,
 * with the lock free. */
inline rest(t) {
    locked = false;
    take_lock(t);
    if
    :: locked
    :: !locked ->
        WAITS_FOR_LOCK(t)
        if
        :: atomic { FREE(lock) -> GOES(t) lock = t; locked = true }
        :: DEADLINE -> verdict = in_flight; goto rested
        fi
    fi;
    do
    :: speculative_decided(); probe(t);
       if
       :: working != NONE && !(presence == deleting && row[found].expired) ->
            /* Waits without the lock: the other transaction may claim the key as well. */
            give_lock_back(t);
            WAITS_FOR_WRITER(t, working)
            if
            :: ENDS(working) -> GOES(t) skip
            :: DEADLINE -> verdict = in_flight; break
            fi;
            WAITS_FOR_LOCK(t)
            if
            :: atomic { FREE(lock) -> GOES(t) lock = t; locked = true }
            :: DEADLINE -> verdict = in_flight; break
            fi
       :: else -> verdict = claim; break
       fi
    od;
rested:
    if
    :: verdict == in_flight -> give_lock_back(t)
    :: else
    fi
}

/* A row that is at rest and binds its key; and is unfinished. */
#define LIVE       ((presence == committed || presence == own) && !row[found].expired)
#define UNFINISHED (LIVE && !row[found].done)

/* A leased token's call: the row at rest, then the fencing rules of judge_token().
 * verdict == take_over: the attempt is the current one; serialization_failure: the lease is lost. */
inline hold(t) {
    rest(t);
    if
    :: verdict == claim ->
        atomic {
            if
#ifdef F_FENCE_IGNORES_TOKEN
            :: UNFINISHED -> verdict = take_over
#elif defined(F_EXHAUSTED_LOSES_TOKEN)
            :: UNFINISHED && row[found].nonce == token_nonce && row[found].attempt == token_attempt &&
               !(row[found].over && LAST_ATTEMPT(found)) ->
                verdict = take_over
#else
            :: UNFINISHED && row[found].nonce == token_nonce && row[found].attempt == token_attempt ->
                verdict = take_over
#endif
            :: else -> verdict = serialization_failure
            fi;
            /* an attempt is fenced by what follows it, not by the end of its lease */
            assert(verdict == take_over || newest_nonce != token_nonce || expired_open);
            TELL(("STEP hold %e %e\n", presence, (verdict == take_over -> current : lost)))
        };
        if
        :: verdict != take_over -> give_lock_back(t)
        :: else
        fi
    :: else
    fi
}

inline say_claim(t) {
    if
    :: GRANTS -> SAY(("STEP granted %e\n", verdict))
    :: verdict == replay -> SAY(("EVENT %d gets %e %d\n", t, ENDED, row[found].answer))
    :: verdict == serialization_failure || verdict == exhausted -> SAY(("EVENT %d gets %e\n", t, verdict))
    :: else -> SAY(("EVENT %d gets in_progress\n", t))
    fi
}

inline say_take(t) {
    if
    :: verdict == take_over -> SAY(("STEP granted %e\n", verdict))
    :: verdict == serialization_failure -> SAY(("EVENT %d gets serialization_failure\n", t))
    :: else -> SAY(("EVENT %d gets nothing\n", t))
    fi
}

/* What a write comes to: refused, or too late for a writer past the lock. */
#ifdef CALLS
#define WRITTEN (verdict == serialization_failure -> serialization_failure : (verdict == refused -> in_progress : written))
#define TELL_GRANT(t) if :: GRANTS -> printf("EVENT %d gets claimed %d\n", t, attempt) :: else fi;
#define TELL_LEASE(t) \
    if \
    :: verdict == claim || verdict == replay -> printf("EVENT %d gets leased %d %d\n", t, attempt, nonce) \
    :: takes && verdict == refused -> printf("EVENT %d gets nothing\n", t) \
    :: else -> printf("EVENT %d gets %e\n", t, WRITTEN) \
    fi;
#define TELL_REVOKED(t) \
    if \
    :: verdict == claim || verdict == replay -> printf("EVENT %d gets revoked\n", t) \
    :: else -> printf("EVENT %d gets %e\n", t, WRITTEN) \
    fi;
#define ERROR_ABORTS(t) \
    if :: verdict == serialization_failure || verdict == refused || verdict == in_flight -> abort(t) :: else fi;
#define NOT_HELD(t) printf("EVENT %d gets %e\n", t, (verdict == serialization_failure -> lost : in_progress))
#define TELL_WRITTEN(t) printf("EVENT %d gets %e\n", t, WRITTEN);
#else
#define ERROR_ABORTS(t)
#define TELL_GRANT(t)
#define TELL_LEASE(t)
#define TELL_REVOKED(t)
#define NOT_HELD(t) skip
#define TELL_WRITTEN(t)
#endif

/* ---- The clients ----------------------------------------------------------------------------------- */

#define LOCALS \
    byte i, slot, found, other, working, attempt, nonce, snapshot, tries; \
    mtype presence, verdict; \
    bool locked, outlived; \
    PATIENT \
    i = 0; tries = 0; locked = false; outlived = false

#ifdef CALLS
#define PATIENT bool patient;
#else
#define PATIENT
#endif

#define DEAD(t) d_step { killed[t] == true -> killed[t] = false; TELL(("EVENT %d kill\n", t)) GOES(t) }

/* claim(); work; complete(); COMMIT or ROLLBACK, in one transaction. */
proctype Atomic(byte t) {
    LOCALS;
next:
    if
    :: tries == TRIES -> goto end_client
    :: else -> tries++
    fi;
    {
        CALL { TURN begin(t); SAY(("EVENT %d begin\n", t)) };
        CALL {
            TURN CLAIM_PATIENCE
            TELL(("EVENT %d calls claim %d\n", t, patient))
            claim_key(t, false);
            say_claim(t);
            TELL_GRANT(t)
        };
        if
        :: GRANTS ->
            d_step { nonce = next_nonce; next_nonce++ };
#ifdef STUCK
            if
            :: t == 1 -> goto end_stuck
            :: else
            fi;
#endif
            effect[t] = true;
#ifdef F_COMMIT_WITHOUT_RECORD
            if
            :: commit(t); goto next
            :: skip
            fi;
#endif
            CALL {
                TURN SCOPE_PATIENCE
                TELL(("EVENT %d calls complete %d\n", t, nonce))
                write(t, true);
                if
                :: verdict == refused -> SAY(("STEP complete refused\n"))
                :: else -> SAY(("STEP complete written\n"))
                fi;
                TELL_WRITTEN(t)
                ERROR_ABORTS(t)
            };
            NOT_IN_VAIN;
            if
            :: verdict == serialization_failure || verdict == refused -> CALL { TURN abort(t); SAY(("EVENT %d rollback\n", t)) }
            :: else ->
                if
                :: CALL { TURN commit(t); SAY(("EVENT %d commit\n", t)) }
                :: CALL { TURN abort(t); SAY(("EVENT %d rollback\n", t)) }
#ifdef PREPARE
                :: CALL { TURN tx[t] = prepared; TELL(("EVENT %d prepare\n", t)) };
                   goto end_prepared
#endif
                fi
            fi
        :: else -> CALL { TURN commit(t); SAY(("EVENT %d commit\n", t)) }  /* a replay, or refused: nothing was written */
        fi
    } unless { CALL { DEAD(t); abort(t) } };
    goto next;
end_prepared:
    if  /* COMMIT PREPARED or ROLLBACK PREPARED, at some time, by any session */
    :: CALL { TURN commit(t); TELL(("EVENT %d commit_prepared\n", t)) }; goto next
    :: CALL { TURN abort(t); TELL(("EVENT %d rollback_prepared\n", t)) }; goto next
    fi;
end_stuck:
    (false);
end_client:
    finished++
}

#ifdef FAIR_TAKER
#define FAIR takes
#define SETTLED (finished == CLIENTS - 1 && !IS_OPEN(0) && !IS_OPEN(1) && !IS_OPEN(2) && !IS_OPEN(ROWS - 1))
#define IS_OPEN(r) (row[r].used && row[r].by == NONE && !row[r].done && row[r].attempt < allowed)
#else
#define FAIR    false
#define SETTLED false
#endif

/* In traces, half of the calls that are about an unfinished operation are made when there is one. */
#ifdef CALLS
#define WHEN_THERE_IS(what) \
    if :: skip :: skip; (what(0) || what(1) || what(2) || what(ROWS - 1) || timeout) fi;
#define AN_OPEN_ROW(r) (row[r].used && row[r].by == NONE && !row[r].done && !row[r].expired)
#define A_DUE_ROW(r)   (AN_OPEN_ROW(r) && row[r].over)
#else
#define WHEN_THERE_IS(what)
#endif

/* claim(lease) or take(), and COMMIT; then, late or in time: renew(), complete() or release(), and
 * COMMIT. A client that ends without complete() has abandoned its operation. */
proctype Leased(byte t; bool takes) {
    byte token_nonce, token_attempt, calls;
    mtype call;
    LOCALS;
next:
    if
    :: FAIR && SETTLED -> goto end_client
    :: FAIR && !SETTLED -> token_nonce = 0
    :: !FAIR && tries == TRIES -> goto end_client
    :: !FAIR && tries < TRIES -> tries++; token_nonce = 0
    fi;
    if
    :: takes -> WHEN_THERE_IS(A_DUE_ROW) skip
    :: else
    fi;
    {
        CALL { TURN begin(t); SAY(("EVENT %d begin\n", t)) };
        CALL {
            TURN CLAIM_PATIENCE
            if
            :: takes ->
                NO_PATIENCE
                TELL(("EVENT %d calls take\n", t))
                take_key(t);
                say_take(t)
            :: else ->
                TELL(("EVENT %d calls lease %d\n", t, patient))
                claim_key(t, true);
                say_claim(t)
            fi;
            if
            :: GRANTS ->
                d_step { nonce = next_nonce; next_nonce++ };
                token_nonce = nonce; token_attempt = attempt;
                write(t, false);
                TELL_LEASE(t)
                if
                :: verdict == refused -> give_lock_back(t)
                :: else
                fi;
                NOT_IN_VAIN
            :: else
            fi
        };
        if
        :: token_nonce != 0 && (verdict == serialization_failure || verdict == refused) ->
            token_nonce = 0; CALL { TURN abort(t); SAY(("EVENT %d rollback\n", t)) }
        :: else -> CALL { TURN commit(t); SAY(("EVENT %d commit\n", t)) }
        fi
    } unless { CALL { DEAD(t); token_nonce = 0; abort(t) } };
    calls = 0;
    do
    :: token_nonce == 0 || calls == (takes -> TAKER_CALLS : LEASED_CALLS) -> break
    :: token_nonce != 0 && calls < (takes -> TAKER_CALLS : LEASED_CALLS) ->
        calls++;
        {
            CALL { TURN begin(t); SAY(("EVENT %d begin\n", t)) };
            if
            :: !FAIR -> call = renew
            :: call = complete
#ifdef FAIL
            :: !FAIR -> call = fail
#endif
#ifdef RELEASE
            :: !FAIR -> call = release
#endif
#ifdef PAUSE
            :: !FAIR -> call = pause
#endif
            fi;
            CALL {
                TURN SCOPE_PATIENCE
                TELL(("EVENT %d calls %e %d\n", t, call, token_nonce))
                hold(t);
                if
                :: verdict == take_over ->
                    attempt = token_attempt; nonce = token_nonce; outlived = true;
                    effect[t] = (call == complete);
                    write(t, call == complete || call == fail);
#ifdef FAIL
                    if
                    :: call == fail && (verdict == claim || verdict == replay) -> row[slot].failure = true
                    :: else
                    fi;
#endif
#if defined(RELEASE) || defined(PAUSE)
                    atomic {
                        if
                        :: (call == release || call == pause) && (verdict == claim || verdict == replay) ->
                            row[slot].over = (call == release || LAST_ATTEMPT(slot));
#ifndef F_RELEASE_KEEPS_NONCE
                            row[slot].nonce = NONE
#endif
                        :: else
                        fi
                    };
#endif
                    TELL_WRITTEN(t)
                :: else -> NOT_HELD(t)
                fi;
                if
                :: verdict == serialization_failure -> SAY(("STEP token fenced\n"))
                :: verdict == refused || verdict == in_flight -> SAY(("STEP token refused\n"))
                :: else -> SAY(("STEP token used\n"))
                fi;
                ERROR_ABORTS(t)
            };
            if
            :: verdict == serialization_failure || verdict == refused || verdict == in_flight ->
                if
                :: verdict == serialization_failure -> token_nonce = 0
                :: else
                fi;
                CALL { TURN abort(t); SAY(("EVENT %d rollback\n", t)) }
            :: else ->
                assert(newest_nonce == token_nonce);  /* no fenced attempt commits */
                if
                :: CALL { TURN commit(t); SAY(("EVENT %d commit\n", t)) };
                   if
                   :: call == complete || call == fail -> token_nonce = 0
                   :: else
                   fi
                :: !FAIR -> CALL { TURN abort(t); SAY(("EVENT %d rollback\n", t)) }
                fi
            fi
        } unless { CALL { DEAD(t); abort(t) } }  /* another session goes on with the token */
    od;
    goto next;
end_client:
    finished++
}

/* As granted_attempts(): as many as one attempt more needs. */
#if defined(F_REVOKE_GRANTS_NOTHING)
#define EXTRA row[slot].extra
#else
#define EXTRA (LAST_ATTEMPT(slot) -> row[slot].attempt + 1 - MAX_ATTEMPTS : row[slot].extra)
#endif

/* revoke() and COMMIT. It keeps the lock no longer than the call. */
proctype Revoker(byte t) {
    LOCALS;
    WHEN_THERE_IS(AN_OPEN_ROW)
    {
        CALL { TURN begin(t); SAY(("EVENT %d begin\n", t)) };
        CALL {
            TURN SCOPE_PATIENCE
            TELL(("EVENT %d calls revoke\n", t))
            rest(t);
            if
            :: verdict == claim && (LIVE && CONTINUES(found)) ->
                attempt = row[found].attempt; nonce = row[found].nonce; outlived = true;
                write(t, false);
                atomic {
                    if
                    :: verdict == claim || verdict == replay ->
                        row[slot].over = true;
                        grants[t] = (row[slot].attempt >= allowed -> row[slot].attempt + 1 : 0);
                        row[slot].extra = EXTRA;
#ifndef F_REVOKE_KEEPS_NONCE
                        row[slot].nonce = NONE
#endif
                    :: else
                    fi
                };
                TELL_REVOKED(t)
                give_lock_back(t)
            :: verdict == claim && !(LIVE && CONTINUES(found)) -> SAY(("EVENT %d gets absent\n", t)); give_lock_back(t)
            :: else -> SAY(("EVENT %d gets in_progress\n", t))
            fi;
            ERROR_ABORTS(t)
        };
        if
        :: verdict != serialization_failure && verdict != refused && verdict != in_flight ->
            CALL { TURN commit(t); SAY(("EVENT %d commit\n", t)) }
        :: CALL { TURN abort(t); SAY(("EVENT %d rollback\n", t)) }
        fi
    } unless { CALL { DEAD(t); abort(t) } };
    finished++
}

/* As look_up(): what is committed, without a wait. */
inline look_up(t) {
    atomic {
        speculative_decided();
        probe(t);
        presence = (presence == deleting -> committed : presence);
        decide()
    }
}

#ifdef F_CANCEL_DECIDES_EXHAUSTED
#define CANCELLABLE (!LIVE || (UNFINISHED && row[found].over && LAST_ATTEMPT(found)))
#else
#define CANCELLABLE (!LIVE)
#endif

/* cancel() and COMMIT: stores a failure under a key that has no record, and keeps the lock until the
 * transaction ends. Otherwise it says what a lookup says. */
proctype Canceller(byte t) {
    LOCALS;
    bool stores = false;
    WHEN_THERE_IS(AN_OPEN_ROW)
    {
        CALL { TURN begin(t); SAY(("EVENT %d begin\n", t)) };
        CALL {
            TURN SCOPE_PATIENCE
            d_step { nonce = next_nonce; next_nonce++ };
            TELL(("EVENT %d calls cancel %d\n", t, nonce))
#if defined(F_CANCEL_WITHOUT_LOCK)
            atomic { speculative_decided(); probe(t); verdict = (working == NONE -> claim : in_flight) };
#elif defined(F_CANCEL_ANSWERS_UNCOMMITTED)
            atomic {
                probe(t);
                if
                :: presence == inserting && row[found].failure -> told_failed = true; verdict = replay; goto answered
                :: else
                fi
            };
            rest(t);
#else
            rest(t);
#endif
            if
            :: verdict == claim && CANCELLABLE ->
                attempt = 1; outlived = (presence != absent);
                write(t, true);
#ifdef F_CANCEL_IGNORES_CONFLICTS
                verdict = claim;
#endif
                NOT_IN_VAIN;
                if
                :: verdict == claim || verdict == replay ->
                    row[slot].failure = true; stores = true;
                    SAY(("EVENT %d gets failed %d\n", t, nonce))
                :: else -> SAY(("EVENT %d gets %e\n", t, WRITTEN))
                fi
            :: verdict == claim && !CANCELLABLE ->
                give_lock_back(t);
                look_up(t);
#ifdef F_CANCEL_CALLS_EXHAUSTED_FAILED
                told_failed = told_failed || verdict == exhausted;
#endif
                if
                :: verdict == replay || verdict == exhausted -> say_claim(t)
                :: verdict == claim && lock == NONE -> SAY(("EVENT %d gets absent\n", t))
                :: else -> verdict = leased; SAY(("EVENT %d gets in_progress\n", t))
                fi
            :: else -> SAY(("EVENT %d gets in_progress\n", t))
            fi;
            ERROR_ABORTS(t)
        };
answered:
        if
        :: verdict != serialization_failure && verdict != refused && verdict != in_flight ->
            CALL {
                TURN
                /* a failure is answered only with the transaction that stores it */
                atomic { publish(t); assert(!stores || first_answer == nonce) };
                free_lock(t);
                SAY(("EVENT %d commit\n", t))
            }
        :: CALL { TURN abort(t); SAY(("EVENT %d rollback\n", t)) }
        fi
    } unless { CALL { DEAD(t); abort(t) } };
    finished++
}

/* once_each() and COMMIT: no key lock, the unique index alone. */
proctype OnceEach(byte t) {
    LOCALS;
next:
    if
    :: tries == TRIES -> goto end_client
    :: else -> tries++
    fi;
    {
        CALL { TURN begin(t); TELL(("EVENT %d begin\n", t)) };
        CALL {
        TURN UNBOUNDED
        TELL(("EVENT %d calls once_each\n", t))
        do
        :: look(t);
           if
           :: verdict == replay || verdict == leased || verdict == exhausted -> TELL(("EVENT %d gets known\n", t)) break
           :: verdict == serialization_failure -> TELL(("EVENT %d gets serialization_failure\n", t)) break
           :: verdict == in_flight ->
                WAITS_FOR_WRITER(t, working)
                (tx[working] == idle || !row[found].used);
                GOES(t)
           :: verdict == claim || verdict == take_over ->
                d_step { nonce = next_nonce; next_nonce++ };
                if
                :: !outlived ->
                    d_step { new_row(t, true); row[slot].spec = true; speculative++ };
                    atomic {
                        others(t, slot);
#ifdef F_NO_ARBITER
                        other = NOTHING;
#endif
                        speculative--;
                        if
                        :: other != NOTHING -> clear_row(slot)
                        :: else -> row[slot].spec = false
                        fi
                    }
                :: else ->
                    other = NOTHING;
                    atomic {
                        if
                        :: row[found].used && row[found].by == NONE && row[found].gone_by == NONE &&
                           (row[found].expired || (!row[found].done && row[found].over)) ->
                            new_row(t, true); row[found].gone_by = t
                        :: else -> other = found; working = row[found].gone_by
                        fi
                    };
                    if
                    :: other != NOTHING ->
                        WAITS_FOR_WRITER(t, working)
                        (working == NONE || tx[working] == idle);
                        GOES(t)
                    :: else
                    fi
                fi;
                if
                :: other == NOTHING ->
                    effect[t] = true;
                    TELL(("EVENT %d gets new %d\n", t, nonce))
                    break
                :: else
                fi
           fi
        od
        };
        if
        :: effect[t] -> CALL { TURN commit(t); TELL(("EVENT %d commit\n", t)) }
        :: CALL { TURN abort(t); TELL(("EVENT %d rollback\n", t)) }
        fi
    } unless {
        CALL {
        DEAD(t);
        atomic {
            i = 0;
            do
            :: i < ROWS -> if :: row[i].used && row[i].by == t && row[i].spec -> speculative-- :: else fi; i++
            :: else -> break
            od;
            undo(t)
        };
        free_lock(t)
        }
    };
    goto next;
end_client:
    finished++
}

/* A writer that goes past the lock, as logical replication or a superuser's INSERT does: an effect and
 * its record, kept apart by the unique index only. */
proctype Bypass(byte t) {
    LOCALS;
    attempt = 1;
    {
        CALL { TURN begin(t); TELL(("EVENT %d begin\n", t)) };
        CALL {
        TURN UNBOUNDED
        TELL(("EVENT %d calls insert\n", t))
        do
        :: atomic {
            others(t, NOTHING);
            if
            :: other == NOTHING ->
                nonce = next_nonce; next_nonce++;
                new_row(t, true); effect[t] = true; verdict = claim
            :: other != NOTHING && row[other].by == NONE && row[other].gone_by == NONE -> verdict = replay
            :: other != NOTHING && row[other].by != NONE -> working = row[other].by; verdict = in_flight
            :: other != NOTHING && row[other].by == NONE && row[other].gone_by != NONE ->
                working = row[other].gone_by; verdict = in_flight
            fi
           };
           if
           :: verdict == claim -> TELL(("EVENT %d gets inserted %d\n", t, nonce)) break
           :: verdict == replay -> TELL(("EVENT %d gets unique_violation\n", t)) break
           :: verdict == in_flight ->
                WAITS_FOR_WRITER(t, working)
                (tx[working] == idle || !row[other].used);
                GOES(t)
           fi
        od
        };
        if
        :: effect[t] -> CALL { TURN commit(t); TELL(("EVENT %d commit\n", t)) }
        :: CALL { TURN abort(t); TELL(("EVENT %d rollback\n", t)) }
        fi
    } unless { CALL { DEAD(t); abort(t) } };
    finished++
}

/* One batch of the purger: deletes what has expired, without waiting. */
proctype Purger(byte t) {
    LOCALS;
    {
        CALL { TURN begin(t); SAY(("EVENT %d begin\n", t)) };
        d_step {
            TURN i = 0; slot = 0;
            do
            :: i < ROWS ->
                if
#ifdef F_PURGE_LIVE_RECORD
                :: row[i].used && row[i].by == NONE && row[i].gone_by == NONE && row[i].done -> row[i].gone_by = t
#else
                :: row[i].used && row[i].by == NONE && row[i].gone_by == NONE && row[i].expired -> row[i].gone_by = t; slot++
#endif
                :: else
                fi;
                i++
            :: else -> break
            od;
            i = 0;
            SAY(("EVENT %d calls purge\nEVENT %d gets purged %d\n", t, t, slot))
        };
        if
        :: CALL { TURN commit(t); SAY(("EVENT %d commit\n", t)) }
        :: CALL { TURN abort(t); SAY(("EVENT %d rollback\n", t)) }
        fi
    } unless { CALL { DEAD(t); abort(t) } };
    finished++
}

/* A replay turns the clock by an UPDATE, which would wait for a row that another transaction holds, and
 * which a snapshot in REPEATABLE READ would not see. */
#ifdef CALLS
#define CLOCK_MAY_TURN (!(GOES_ON(1) || GOES_ON(2) || GOES_ON(3)) && \
    UNTOUCHED(0) && UNTOUCHED(1) && UNTOUCHED(2) && UNTOUCHED(3) && (ROWS < 5 || UNTOUCHED(ROWS - 1)) && IN_NO_SNAPSHOT)
#define UNTOUCHED(r) (row[r].by == NONE && row[r].gone_by == NONE)
#ifdef REPEATABLE
#define IN_NO_SNAPSHOT (tx[1] != running && tx[2] != running && tx[CLIENTS] != running)
#else
#define IN_NO_SNAPSHOT true
#endif
#define LEASE_IS_AWAITED (waits[1] == for_lease || waits[2] == for_lease || waits[3] == for_lease)
#define MAY_KILL(t) (kills < KILL && tx[t] == running && !(GOES_ON(1) || GOES_ON(2) || GOES_ON(3)))
#else
#define CLOCK_MAY_TURN true
#define LEASE_IS_AWAITED false
#define MAY_KILL(t) (kills < KILL && tx[t] == running)
#endif

#define A_LEASE_RUNS \
    (RUNNING_LEASE(0) || RUNNING_LEASE(1) || RUNNING_LEASE(2) || RUNNING_LEASE(ROWS - 1))
#if defined(FAIR_TAKER)
#define LAPSE_MAY_COME A_LEASE_RUNS
#elif defined(CALLS) && TAKE + REVOKE > 0
#define LAPSE_MAY_COME ((lapses < LAPSES || LEASE_IS_AWAITED) && A_LEASE_RUNS)
#else
#define LAPSE_MAY_COME ((lapses < LAPSES || LEASE_IS_AWAITED) && newest_nonce != 0)
#endif

/* Time, and what ends processes. */
proctype World() {
    byte i = 0;
end_world:
    do
#ifdef CALLS
    :: finished == CLIENTS -> break
#endif
    :: d_step {
        lives < LIVES && first_answer != 0 && CLOCK_MAY_TURN ->
        lives++; SAY(("EVENT 0 expire\n")); first_answer = 0; effects = 0; told_failed = false;
        i = 0;
        do
        :: i < ROWS -> if :: row[i].used && row[i].by == NONE && row[i].done -> row[i].expired = true :: else fi; i++
        :: else -> break
        od;
        i = 0
       }
#if LEASED
    :: d_step {
        LAPSE_MAY_COME && CLOCK_MAY_TURN ->
        SAY(("EVENT 0 lapse\n"));
#ifndef FAIR_TAKER
        lapses++;
#endif
        i = 0;
        do
        :: i < ROWS ->
            if
            :: row[i].used && row[i].by == NONE && !row[i].done ->
                if
#if defined(FAIR_TAKER) || (defined(CALLS) && TAKE + REVOKE > 0)
                :: row[i].over  /* stays until it is taken */
#else
                :: row[i].over -> row[i].expired = true; expired_open = true; told_failed = false
#endif
                :: else -> row[i].over = true
                fi
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0
       }
#endif
    :: atomic { MAY_KILL(1) -> kills++; killed[1] = true }
#if CLIENTS > 1
    :: atomic { MAY_KILL(2) -> kills++; killed[2] = true }
#endif
#if CLIENTS > 2
    :: atomic { MAY_KILL(3) -> kills++; killed[3] = true }
#endif
#if CLIENTS > 3
    :: atomic { MAY_KILL(4) -> kills++; killed[4] = true }
#endif
    od
}

init {
    byte n = 0, t = 1;
#ifdef CALLS
    short runs = 0;
next_trace:
    runs++;
#endif
    atomic {
        do :: n < ATOMIC -> run Atomic(t); t++; n++ :: else -> break od; n = 0;
        do :: n < LEASED -> run Leased(t, false); t++; n++ :: else -> break od; n = 0;
        do :: n < TAKE -> run Leased(t, true); t++; n++ :: else -> break od; n = 0;
        do :: n < REVOKE -> run Revoker(t); t++; n++ :: else -> break od; n = 0;
        do :: n < CANCEL -> run Canceller(t); t++; n++ :: else -> break od; n = 0;
        do :: n < ONCE_EACH -> run OnceEach(t); t++; n++ :: else -> break od; n = 0;
        do :: n < BYPASS -> run Bypass(t); t++; n++ :: else -> break od; n = 0;
        do :: n < PURGE -> run Purger(t); t++; n++ :: else -> break od; n = 0;
        run World()
    }
#ifdef CALLS
    atomic {
        finished == CLIENTS && _nr_pr == 1;
        printf("EVENT 0 end\n");
        n = 0;
        do :: n < ROWS -> clear_row(n); n++ :: else -> break od;
        generation = 0; next_nonce = 1; kills = 0; lives = 0; lapses = 0; finished = 0;
        effects = 0; first_answer = 0; newest_nonce = 0; allowed = MAX_ATTEMPTS; told_failed = false;
        expired_open = false; n = 0; t = 1;
        if
        :: runs < RUNS -> goto next_trace
        :: else
        fi
    }
#endif
}

#ifdef LIVENESS
/* Everybody comes to an end, as long as those who hold something do. */
ltl ends { <> (finished == CLIENTS) }
#endif

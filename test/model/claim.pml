/*
 * The claim protocol of one idempotency key, for the model checker SPIN.
 *
 * README.md in this folder says what is modelled, which function makes each step, what is proved,
 * within which bounds, and which faults are found. What the server does in one critical section (a
 * probe of the index, a row version, the end of a transaction) is one atomic step here. Between any
 * two steps, every other process may run, be cancelled or die.
 *
 * The processes and bounds of a run are chosen when the model is compiled:
 *   ATOMIC, LEASED, ONCE_EACH, BYPASS, PURGE    how many clients of each kind
 *   TRIES        calls of claim() or once_each() per client
 *   KILL         how many transactions may be killed, each at any step
 *   LIVES        how often the clock may expire a completed record
 *   LAPSES       how often the clock may end a lease, or expire a record in progress
 *   REPEATABLE   the clients run in REPEATABLE READ
 *   PREPARE      an atomic client may prepare its transaction
 *   STUCK        the first atomic client never ends its transaction
 *   LIVENESS     adds the property that every client comes to an end
 *   CALLS        each call is one step that prints what it did, for replays on a server
 * A fault is compiled in by its name, F_..., at the place where it breaks the protocol.
 */

#ifndef ATOMIC
#define ATOMIC 2
#endif
#ifndef LEASED
#define LEASED 0
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
#ifndef KILL
#define KILL 1
#endif
#ifndef LIVES
#define LIVES 1
#endif
#ifndef LAPSES
#define LAPSES 2
#endif

#define CLIENTS (ATOMIC + LEASED + ONCE_EACH + BYPASS + PURGE)
#define ROWS    (CLIENTS + 2)
#define NONE    0
#define NOTHING 255

/* ---- The record table: the versions of one key's row --------------------------------------------- */

typedef Row {
    bool used;
    bool spec;     /* inserted speculatively, not decided yet */
    bool done;     /* completed; otherwise in progress under a lease */
    bool over;     /* its lease has ended */
    bool expired;
    byte by;       /* the transaction that wrote it; NONE once it has committed */
    byte gone_by;  /* the transaction that deletes or replaces it */
    byte born;     /* the generation of its commit: what a snapshot goes by */
    byte attempt;
    byte nonce;    /* the token's random bits */
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
bool killed[CLIENTS + 1];
byte kills = 0;
byte lives = 0;
byte lapses = 0;
byte finished = 0;

/* Only the properties read these: the committed effects since the last expiry, and their answer. */
byte effects = 0;
byte first_answer = 0;
byte newest_nonce = 0;     /* of the attempt that was granted last, and committed */

/* ---- The end of a transaction ---------------------------------------------------------------------- */

inline clear_row(r) {
    row[r].used = false; row[r].spec = false; row[r].done = false; row[r].over = false;
    row[r].expired = false; row[r].by = NONE; row[r].gone_by = NONE; row[r].born = 0;
    row[r].attempt = 0; row[r].nonce = 0; row[r].answer = 0
}

/* ProcArrayEndTransaction(): all that the transaction wrote becomes visible at once. */
inline publish(t) {
    d_step {
        generation++;
        if
        :: effect[t] ->
            effects++;
            assert(effects <= 1);  /* at most one committed effect per TTL */
        :: else
        fi;
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
                :: row[i].done -> first_answer = row[i].answer
                :: else -> newest_nonce = row[i].nonce
                fi
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        effect[t] = false;
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
mtype = { atomic_claim, leased_claim, complete, renew };
mtype = { claim, take_over, in_flight, leased, serialization_failure, replay, refused };

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
#ifdef F_TAKE_OVER_RUNNING_LEASE
                verdict = take_over
#else
                verdict = leased
#endif
            :: !row[found].done && row[found].over -> verdict = take_over
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
    atomic { speculative_decided(); probe(t); decide() }
}

/* A lease that runs, and that no transaction is ending. */
#define RUNNING_LEASE(r) (row[r].used && row[r].by == NONE && row[r].gone_by == NONE && \
                          !row[r].done && !row[r].over && !row[r].expired)

/* Without a writer that goes past the lock, a granted claim loses no race: its work is not in vain. */
#if BYPASS + ONCE_EACH == 0 && !defined(REPEATABLE)
#define NOT_IN_VAIN assert(verdict != serialization_failure)
#else
#define NOT_IN_VAIN skip
#endif

/* A bounded wait: what is waited for, or the deadline, whichever comes first. */
#ifdef F_UNBOUNDED_WAIT
#define DEADLINE false
#else
#define DEADLINE true
#endif

/* With CALLS, each call is one step that waits for nothing, and says what it did: simulated runs are
 * replayed on a server. Without it, calls are many steps. */
#ifdef CALLS
#define CALL atomic
#define ENDS(transaction) false
#define FREE(l) false
#define SAY(event) printf event
#else
#define CALL
#define ENDS(transaction) (tx[transaction] == idle)
#define FREE(l) (l == NONE)
#define SAY(event) skip
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

#ifdef CALLS
#define NO_LONGER_LEASED(r) false
#else
#define NO_LONGER_LEASED(r) !RUNNING_LEASE(r)
#endif

#define GRANTS (verdict == claim || verdict == take_over)
/* A row that expired binds nothing; but a claim that writes at once would wait for its deletion. */
#define IN_FLIGHT (verdict == in_flight || (GRANTS && at_once && presence == deleting))

/* As look_until_decided(). Leaves GRANTS with the lock held, or any other verdict with the lock free. */
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
            if  /* a nap: looks again when the lease may have ended, or gives up */
            :: NO_LONGER_LEASED(found) -> skip
            :: DEADLINE -> break
            fi
       :: (IN_FLIGHT || GRANTS) && locked && !(GRANTS && !IN_FLIGHT) ->
            /* A writer that went past the lock. It may claim the key as well. */
            give_lock_back(t);
            if
            :: ENDS(working) -> skip
            :: DEADLINE -> verdict = in_flight; break
            fi;
            take_lock(t)
       :: (IN_FLIGHT || GRANTS) && !locked ->
            /* The lock's holder works on the key. */
            if
            :: atomic { FREE(lock) -> lock = t; locked = true }
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
        i = 0
    }
#ifdef F_LOCK_FREED_WHEN_CLAIMED
    ; free_lock(t)
#endif
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
                       !(!row[found].done && row[found].attempt <= attempt) ->
                        verdict = serialization_failure
                    :: row[found].used && (row[found].by == NONE || row[found].by == t) &&
                       ((row[found].expired && row[found].by != t) ||
                        (!row[found].done && row[found].attempt <= attempt)) ->
                        if
                        :: row[found].gone_by == NONE -> new_row(t, finish); row[found].gone_by = t; verdict = replay
                        :: row[found].gone_by != NONE -> working = row[found].gone_by; verdict = in_flight
                        fi
                    fi
                };
                if
                :: verdict == in_flight ->
                    if
                    :: atomic { ENDS(working) -> verdict = claim }
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
        atomic { new_row(t, finish); others(t, slot) };
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
                if
                :: (ENDS(working) || !row[other].used) -> verdict = claim
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

/* A leased token's call: the key lock, then the row, then the fencing rules of judge_token().
 * verdict == take_over: the attempt is the current one; serialization_failure: the lease is lost. */
inline hold(t) {
    locked = false;
    take_lock(t);
    if
    :: locked
    :: !locked ->
        if
        :: atomic { FREE(lock) -> lock = t; locked = true }
        :: DEADLINE -> verdict = in_flight; goto held
        fi
    fi;
    do
    :: speculative_decided(); probe(t);
       if
       :: working != NONE && !(presence == deleting && row[found].expired) ->
            /* Waits without the lock: the other transaction may claim the key as well. */
            give_lock_back(t);
            if
            :: ENDS(working) -> skip
            :: DEADLINE -> verdict = in_flight; break
            fi;
            if
            :: atomic { FREE(lock) -> lock = t; locked = true }
            :: DEADLINE -> verdict = in_flight; break
            fi
       :: else ->
            atomic {
                if
#ifdef F_FENCE_IGNORES_TOKEN
                :: (presence == committed || presence == own) && !row[found].expired && !row[found].done -> verdict = take_over
#else
                :: (presence == committed || presence == own) && !row[found].expired && !row[found].done &&
                   row[found].nonce == token_nonce && row[found].attempt == token_attempt -> verdict = take_over
#endif
                :: else -> verdict = serialization_failure
                fi
            };
            break
       fi
    od;
held:
    if
    :: verdict != take_over -> give_lock_back(t)
    :: else
    fi
}

inline say_claim(t, call) {
    if
    :: GRANTS -> SAY(("EVENT %d %e claimed\n", t, call))
    :: verdict == replay -> SAY(("EVENT %d %e completed %d\n", t, call, row[found].answer))
    :: else -> SAY(("EVENT %d %e in_progress\n", t, call))
    fi
}

/* ---- The clients ----------------------------------------------------------------------------------- */

#define LOCALS \
    byte i, slot, found, other, working, attempt, nonce, snapshot, tries; \
    mtype presence, verdict; \
    bool locked, outlived; \
    i = 0; tries = 0; locked = false; outlived = false

#define DEAD(t) d_step { killed[t] == true -> killed[t] = false }

/* claim(); work; complete(); COMMIT or ROLLBACK, in one transaction. */
proctype Atomic(byte t) {
    LOCALS;
next:
    if
    :: tries == TRIES -> goto end_client
    :: else -> tries++
    fi;
    {
        CALL { begin(t); SAY(("EVENT %d begin\n", t)) };
        CALL { claim_key(t, false); say_claim(t, atomic_claim) };
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
                write(t, true);
                if
                :: verdict == refused -> SAY(("EVENT %d complete %d in_progress\n", t, nonce))
                :: else -> SAY(("EVENT %d complete %d\n", t, nonce))
                fi
            };
            NOT_IN_VAIN;
            if
            :: verdict == serialization_failure || verdict == refused -> CALL { abort(t); SAY(("EVENT %d rollback\n", t)) }
            :: else ->
                if
                :: CALL { commit(t); SAY(("EVENT %d commit\n", t)) }
                :: CALL { abort(t); SAY(("EVENT %d rollback\n", t)) }
#ifdef PREPARE
                :: tx[t] = prepared;
                   goto end_prepared
#endif
                fi
            fi
        :: else -> CALL { commit(t); SAY(("EVENT %d commit\n", t)) }  /* a replay, or refused: nothing was written */
        fi
    } unless { DEAD(t); abort(t) };
    goto next;
end_prepared:
    if  /* COMMIT PREPARED or ROLLBACK PREPARED, at some time, by any session */
    :: commit(t); goto next
    :: abort(t); goto next
    fi;
end_stuck:
    (false);
end_client:
    finished++
}

/* claim(lease) and COMMIT; then, late or in time: renew(), complete() and COMMIT. */
proctype Leased(byte t) {
    byte token_nonce, token_attempt, calls;
    bool finishing;
    LOCALS;
next:
    if
    :: tries == TRIES -> goto end_client
    :: else -> tries++; token_nonce = 0
    fi;
    {
        CALL { begin(t); SAY(("EVENT %d begin\n", t)) };
        CALL {
            claim_key(t, true);
            say_claim(t, leased_claim);
            if
            :: GRANTS ->
                d_step { nonce = next_nonce; next_nonce++ };
                token_nonce = nonce; token_attempt = attempt;
                write(t, false);
                NOT_IN_VAIN
            :: else
            fi
        };
        if
        :: token_nonce != 0 && (verdict == serialization_failure || verdict == refused) ->
            token_nonce = 0; CALL { abort(t); SAY(("EVENT %d rollback\n", t)) }
        :: else -> CALL { commit(t); SAY(("EVENT %d commit\n", t)) }
        fi
    } unless { DEAD(t); token_nonce = 0; abort(t) };
    calls = 0;
    do
    :: token_nonce == 0 || calls == 2 -> break
    :: token_nonce != 0 && calls < 2 ->
        calls++;
        {
            CALL { begin(t); SAY(("EVENT %d begin\n", t)) };
            if
            :: finishing = false   /* renew() */
            :: finishing = true    /* complete() */
            fi;
            CALL {
                hold(t);
                if
                :: verdict == take_over ->
                    attempt = token_attempt; nonce = token_nonce; outlived = true;
                    effect[t] = finishing;
                    write(t, finishing)
                :: else
                fi;
                if
                :: verdict == serialization_failure -> SAY(("EVENT %d %e %d lost\n", t, (finishing -> complete : renew), token_nonce))
                :: verdict == refused || verdict == in_flight -> SAY(("EVENT %d %e %d in_progress\n", t, (finishing -> complete : renew), token_nonce))
                :: else -> SAY(("EVENT %d %e %d\n", t, (finishing -> complete : renew), token_nonce))
                fi
            };
            if
            :: verdict == serialization_failure || verdict == refused || verdict == in_flight ->
                if
                :: verdict == serialization_failure -> token_nonce = 0
                :: else
                fi;
                CALL { abort(t); SAY(("EVENT %d rollback\n", t)) }
            :: else ->
                assert(newest_nonce == token_nonce);  /* no fenced attempt commits */
                if
                :: CALL { commit(t); SAY(("EVENT %d commit\n", t)) };
                   if
                   :: finishing -> token_nonce = 0
                   :: else
                   fi
                :: CALL { abort(t); SAY(("EVENT %d rollback\n", t)) }
                fi
            fi
        } unless { DEAD(t); abort(t) }  /* another session goes on with the token */
    od;
    goto next;
end_client:
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
        begin(t);
        do
        :: look(t);
           if
           :: verdict == replay || verdict == leased -> abort(t); break
           :: verdict == serialization_failure -> abort(t); break
           :: verdict == in_flight -> (tx[working] == idle || !row[found].used)
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
                    :: other != NOTHING -> (working == NONE || tx[working] == idle)
                    :: else
                    fi
                fi;
                if
                :: other == NOTHING ->
                    effect[t] = true;
                    if
                    :: commit(t)
                    :: abort(t)
                    fi;
                    break
                :: else
                fi
           fi
        od
    } unless {
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
        begin(t);
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
           :: verdict == claim ->
                if
                :: commit(t)
                :: abort(t)
                fi;
                break
           :: verdict == replay -> abort(t); break  /* 23505 */
           :: verdict == in_flight -> (tx[working] == idle || !row[other].used)
           fi
        od
    } unless { DEAD(t); abort(t) };
    finished++
}

/* One batch of the purger: deletes what has expired, without waiting. */
proctype Purger(byte t) {
    LOCALS;
    {
        CALL { begin(t); SAY(("EVENT %d begin\n", t)) };
        d_step {
            i = 0; slot = 0;
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
            SAY(("EVENT %d purge %d\n", t, slot))
        };
        if
        :: CALL { commit(t); SAY(("EVENT %d commit\n", t)) }
        :: CALL { abort(t); SAY(("EVENT %d rollback\n", t)) }
        fi
    } unless { DEAD(t); abort(t) };
    finished++
}

/* A replay turns the clock by an UPDATE, which would wait for a row that another transaction holds. */
#if defined(CALLS) && CLIENTS == 2
#define CLOCK_MAY_TURN (tx[1] == idle && tx[2] == idle)
#elif defined(CALLS)
#define CLOCK_MAY_TURN (tx[1] == idle && tx[2] == idle && tx[3] == idle)
#else
#define CLOCK_MAY_TURN true
#endif

/* Time, and what ends processes. */
proctype World() {
    byte i = 0;
end_world:
    do
    :: d_step {
        lives < LIVES && first_answer != 0 && CLOCK_MAY_TURN ->
        lives++; SAY(("EVENT 0 expire\n")); first_answer = 0; effects = 0;
        i = 0;
        do
        :: i < ROWS -> if :: row[i].used && row[i].by == NONE && row[i].done -> row[i].expired = true :: else fi; i++
        :: else -> break
        od;
        i = 0
       }
#if LEASED
    :: d_step {
        lapses < LAPSES && newest_nonce != 0 && CLOCK_MAY_TURN ->
        lapses++; SAY(("EVENT 0 lapse\n"));
        i = 0;
        do
        :: i < ROWS ->
            if
            :: row[i].used && row[i].by == NONE && !row[i].done ->
                if
                :: row[i].over -> row[i].expired = true
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
    :: atomic { kills < KILL && tx[1] == running -> kills++; killed[1] = true }
#if CLIENTS > 1
    :: atomic { kills < KILL && tx[2] == running -> kills++; killed[2] = true }
#endif
#if CLIENTS > 2
    :: atomic { kills < KILL && tx[3] == running -> kills++; killed[3] = true }
#endif
#if CLIENTS > 3
    :: atomic { kills < KILL && tx[4] == running -> kills++; killed[4] = true }
#endif
    od
}

init {
    byte n = 0, t = 1;
    atomic {
        do :: n < ATOMIC -> run Atomic(t); t++; n++ :: else -> break od; n = 0;
        do :: n < LEASED -> run Leased(t); t++; n++ :: else -> break od; n = 0;
        do :: n < ONCE_EACH -> run OnceEach(t); t++; n++ :: else -> break od; n = 0;
        do :: n < BYPASS -> run Bypass(t); t++; n++ :: else -> break od; n = 0;
        do :: n < PURGE -> run Purger(t); t++; n++ :: else -> break od; n = 0;
        run World()
    }
}

#ifdef LIVENESS
/* Everybody comes to an end, as long as those who hold something do. */
ltl ends { <> (finished == CLIENTS) }
#endif

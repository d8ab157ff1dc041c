// Every error that idem raises on its own account, with the SQLSTATE, detail and hint that tell the
// caller what to do in the caller's situation. None of them returns, but for the two that are no
// errors. No message shows a key, a response or a request other than the caller's own.
#pragma once

#include "pg/server.hpp"

namespace idem::pg::report {

// Where an operation in flight was seen; every part may be unknown.
struct Holder {
    std::optional<int> pid;
    std::optional<TimestampTz> since;
    std::optional<TimestampTz> lease_end;  // of a leased claim
    std::optional<TransactionId> prepared{};
};

// Where the bound of a wait is set: by an argument of the call, or by the scope only.
enum class WaitSetBy : bool { argument, scope };

[[noreturn]] void in_progress(std::string_view key, const Holder& holder, std::int64_t retry_after,
                              WaitSetBy wait);
// As the server ends a wait for a lock; also where it is not a lock that is waited for.
[[noreturn]] void lock_timeout();
// hint: NULL for idem.claim().
[[noreturn]] void claimed_by_this_transaction(std::string_view key, const char* hint = nullptr);
[[noreturn]] void key_conflict(std::string_view key);
// Of the same, at a level below ERROR.
void log_conflict(int level, std::string_view scope, std::string_view tenant, std::string_view key);
// Raises a stored failure again, under its own SQLSTATE where that is a failure's, else as ID003.
[[noreturn]] void stored_failure(std::string_view key, Jsonb* error);
// The last attempt's lease is over.
[[noreturn]] void attempts_exhausted(std::string_view key, std::int32_t attempts);
// Fenced off. Without a detail it says the same whether the key was overtaken, has no record, or is
// of a scope that the caller may not use; a detail is for users of the scope only.
[[noreturn]] void lease_lost(const char* detail = nullptr);
[[noreturn]] void not_leased(const char* function);
// The token names no open claim (ID005), for these reasons.
[[noreturn]] void no_token();
[[noreturn]] void malformed_token();
[[noreturn]] void claim_finished();
[[noreturn]] void claim_released();
[[noreturn]] void foreign_claim();  // an atomic token that this transaction did not make

// Where a claim was left open: by a statement that is a transaction of its own, or elsewhere.
enum class Unfinished : std::uint8_t { by_single_statement, at_commit, at_prepare };

[[noreturn]] void claim_incomplete(std::string_view scope, std::string_view key, Unfinished where);
[[noreturn]] void invalid_key(const char* message, const char* detail, const char* hint);
// The time inside the key is out of what the scope can remember; made is that time.
[[noreturn]] void stale_key(std::string_view key, TimestampTz made, bool from_future);
// weakness as core/weakness.hpp names it.
[[noreturn]] void weak_key(std::string_view key, std::string_view scope, std::string_view weakness);
void warn_of_weak_key(std::string_view key, std::string_view scope, std::string_view weakness);
[[noreturn]] void no_scope();
// nearest: a scope of the caller's with a similar name, or NULL. detail: where the name stands,
// NULL for an argument. creatable: the call would do if the scope existed.
[[noreturn]] void unknown_scope(std::string_view name, const char* nearest, const char* detail,
                                bool creatable);
[[noreturn]] void not_scope_member(std::string_view scope, Oid owner, const char* function);
[[noreturn]] void too_many_open_claims(int limit);
// scopes: the names of those that would do.
[[noreturn]] void claim_required(Relation relation, std::span<char* const> scopes);
[[noreturn]] void too_many_claims_per_minute(const char* scope, std::int32_t limit,
                                             std::int64_t retry_after);
// what: the answer, or whatever else was to be stored.
[[noreturn]] void too_large(const char* what, Size size);
// A stream without gaps has one.
[[noreturn]] void sequence_gap(std::string_view source, std::int64_t expected, std::int64_t got);
[[noreturn]] void digest_collision();
[[noreturn]] void no_digest_index(const char* table);
[[noreturn]] void serialization_failure(const char* detail);
// An argument without a default is NULL, one with a default, or the request that a scope requires.
[[noreturn]] void missing_argument(const char* name);
[[noreturn]] void null_argument(const char* name);
[[noreturn]] void missing_request(const char* scope);
[[noreturn]] void invalid_argument(const char* name, const char* detail,
                                   const char* hint = nullptr);
// A call that may write, on a standby or in a read-only transaction. reading: empty, or a sentence
// after a space on how to read instead.
[[noreturn]] void read_only(const char* call, const char* reading);
[[noreturn]] void parallel(const char* call);
[[noreturn]] void crypto_failure();
[[noreturn]] void scope_ids_used_up();

}  // namespace idem::pg::report

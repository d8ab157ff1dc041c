// The rules for the arguments that several functions share: who calls, and which key is meant.
#pragma once

#include "pg/record.hpp"
#include "pg/scope.hpp"

namespace idem::api {

// How to read instead, for require_writable().
inline constexpr const char* read_by_lookup =
    " To read a key's state and answer, use idem.lookup().";
inline constexpr const char* read_by_streams =
    " To read how far a source has come, use the view idem.streams.";

// For every function that writes: raises 25006 in a read-only transaction or on a standby, 25000 in
// a parallel worker, 42501 in a security-restricted operation. call is "idem.claim()" and so on.
void require_writable(const char* call, const char* reading = "");

// For those that ask what this transaction has claimed: raises 25000 in a parallel operation.
void require_leader(const char* call);

// Raises 22021 for bytes that are no text in the database's encoding. Text is valid by the time SQL
// hands it over, unless an extension or a cast let it slip through.
void check_encoding(std::string_view text);

// The checked text in UTF-8: digests do not depend on the database's encoding.
std::string_view utf8(std::string_view text);

// A key by its shape (ID007) and its bytes (22021).
std::string_view checked_key(std::optional<std::string_view> key);
// The same for an element of the argument "keys"; the first has position 1.
std::string_view checked_element(std::optional<std::string_view> key, int position);
// The source of an ordered stream, which is named by the same rules.
std::string_view checked_source(std::optional<std::string_view> source);

// NULL means the setting idem.tenant; '' is said explicitly.
std::string_view checked_tenant(std::optional<std::string_view> tenant);

// Key and tenant are checked; the scope may require a tenant (ID007).
pg::KeyName key_name(const pg::Scope& scope, std::string_view tenant, std::string_view key);
pg::KeyName source_name(const pg::Scope& scope, std::string_view tenant, std::string_view source);

}  // namespace idem::api

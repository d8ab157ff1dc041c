// The settings of a scope, in one table.
//
// A row is everything that this library knows about a setting; reading, checking, comparing and
// writing go by the table. Each setting is a column of idem.scope. Those of 1.0 are arguments of
// idem.create_scope() and idem.alter_scope() too; later ones come last in the table, and calls pass
// them in the argument "settings", because another signature would lose the grants on the function.
// CONTRIBUTING.md says how to add one. test/release.pl compares the table with the SQL objects and
// with docs/reference.md.
#pragma once

#include "pg/store/document.hpp"
#include "pg/store/table.hpp"

namespace idem::pg {

// What happens to a new key that is likely to be used twice (see core/key.hpp).
enum class WeakKeys { allow, warn, reject };

enum class StoreRequest {
    never,
    unfinished,  // of a leased claim, until it is finished
    always,      // as long as the answer
};

enum class TenantFrom {
    argument,  // the caller, by the argument or the setting idem.tenant
    role,      // the server: it is the caller's role
};

// The values of these types as SQL writes them, in their order.
template <class Enum>
inline constexpr std::array<std::string_view, 0> words{};
template <>
inline constexpr std::array<std::string_view, 3> words<WeakKeys>{"allow", "warn", "reject"};
template <>
inline constexpr std::array<std::string_view, 3> words<StoreRequest>{"never", "unfinished",
                                                                     "always"};
template <>
inline constexpr std::array<std::string_view, 2> words<TenantFrom>{"argument", "role"};
static_assert(words<WeakKeys>.size() == static_cast<std::size_t>(WeakKeys::reject) + 1);
static_assert(words<StoreRequest>.size() == static_cast<std::size_t>(StoreRequest::always) + 1);
static_assert(words<TenantFrom>.size() == static_cast<std::size_t>(TenantFrom::role) + 1);

// Times are in microseconds. An optional setting without a value is a limit that does not exist.
struct Scope {
    char name[NAMEDATALEN];  // the hash key of the cache
    std::int32_t id;
    Oid owner;
    std::int64_t ttl;
    std::int64_t lease;
    std::int64_t wait;
    std::optional<std::int32_t> max_attempts;
    std::optional<std::int32_t> claims_per_minute;
    WeakKeys weak_keys;
    bool request_required;
    bool tenant_required;
    bool reject_stale_keys;
    bool store_response;
    StoreRequest store_request;
    std::optional<std::int64_t> min_ttl;
    std::optional<std::int64_t> answer_ttl;
    NumberedList request_exclude;  // of new keys
    TextList request_lists;  // all lists that were that, as arrays in text form; from number 1
    PathList response_exclude;
    TextList header_exclude;
    TenantFrom tenant_from;
    std::int32_t max_answer_size;
    TextList final_sqlstates;
    bool records;
};
static_assert(std::is_trivially_copyable_v<Scope> && std::is_trivially_destructible_v<Scope>);

struct Setting {
    const char* name;
    Oid type;
    const char* preset;  // the default; NULL: none, and the setting may have no value
    void (*check)(const Setting&, Datum);  // raises 22023
    void (*read)(Scope&, Datum);
    const char* says;  // "the setting says ...": for hints, comments and the reference
};

// ---- The parts of a row -------------------------------------------------------------------------

void check_nothing(const Setting& setting, Datum value);
void check_limit(const Setting& setting, Datum value);
void check_rate(const Setting& setting, Datum value);
void check_size(const Setting& setting, Datum value);
void check_path_list(const Setting& setting, Datum value);
void check_header_names(const Setting& setting, Datum value);
void check_sqlstates(const Setting& setting, Datum value);
void check_word(const Setting& setting, Datum value, std::span<const std::string_view> among);

template <Sign sign>
void check_duration(const Setting& setting, Datum value) {
    (void)duration(setting.name, *DatumGetIntervalP(value), sign);
}

// The words also stand, after a colon, in what the setting says.
template <class Enum>
void check_word_of(const Setting& setting, Datum value) {
    check_word(setting, value, words<Enum>);
}

// What these read is in the current memory context.
void read_value(bool& member, Datum value);
void read_value(std::int32_t& member, Datum value);
void read_value(std::int64_t& member, Datum value);
void read_value(TextList& member, Datum value);
void read_value(NumberedList& member, Datum value);

// The number of the word; raises XX000 if it is none of them.
std::size_t number_of_word(Datum value, std::span<const std::string_view> among);

template <class Enum>
requires std::is_enum_v<Enum>
void read_value(Enum& member, Datum value) {
    member = static_cast<Enum>(number_of_word(value, words<Enum>));
}

template <class T>
void read_value(std::optional<T>& member, Datum value) {
    read_value(member.emplace(), value);
}

template <auto Member>
void read(Scope& scope, Datum value) {
    read_value(scope.*Member, value);
}

inline void read_response_exclude(Scope& scope, Datum value) {
    scope.response_exclude = read_paths(DatumGetArrayTypeP(value));
}

// ---- The table ----------------------------------------------------------------------------------

inline constexpr auto settings = std::to_array<Setting>({
    {"ttl", INTERVALOID, "24 hours", check_duration<Sign::positive>, read<&Scope::ttl>,
     "how long a record is kept, counted from completion"},
    {"lease", INTERVALOID, "1 minute", check_duration<Sign::positive>, read<&Scope::lease>,
     "the default of idem.renew() and idem.take()"},
    {"wait", INTERVALOID, "10 seconds", check_duration<Sign::not_negative>, read<&Scope::wait>,
     "how long a call waits at most for a key in flight"},
    {"request_required", BOOLOID, "false", check_nothing, read<&Scope::request_required>,
     "whether a claim of a new key must pass a request"},
    {"request_exclude", TEXTARRAYOID, "{}", check_path_list, read<&Scope::request_exclude>,
     "which members of a request do not count when requests are compared"},
    {"tenant_required", BOOLOID, "false", check_nothing, read<&Scope::tenant_required>,
     "whether a call must name a tenant, unless its key has a record without one"},
    {"reject_stale_keys", BOOLOID, "false", check_nothing, read<&Scope::reject_stale_keys>,
     "whether a new UUIDv7 or ULID key that is older than min_ttl, or else the TTL, or more than "
     "10 minutes in the future, is refused"},
    {"max_attempts", INT4OID, nullptr, check_limit, read<&Scope::max_attempts>,
     "how many attempts an operation has"},
    {"claims_per_minute", INT4OID, nullptr, check_rate, read<&Scope::claims_per_minute>,
     "how many new keys each tenant may claim per minute"},
    {"weak_keys", TEXTOID, "allow", check_word_of<WeakKeys>, read<&Scope::weak_keys>,
     "what happens to a new key that is likely to be used twice: allow, warn or reject"},
    {"store_response", BOOLOID, "true", check_nothing, read<&Scope::store_response>,
     "whether answers are stored"},
    {"response_exclude", TEXTARRAYOID, "{}", check_path_list, read_response_exclude,
     "which members of a response are not stored"},
    {"final_sqlstates", TEXTARRAYOID, "{}", check_sqlstates, read<&Scope::final_sqlstates>,
     "which SQLSTATEs, or classes of two characters, idem.execute() stores as final failures"},
    {"store_request", TEXTOID, "never", check_word_of<StoreRequest>, read<&Scope::store_request>,
     "how long a record keeps the request in clear text: never, unfinished or always"},
    {"answer_ttl", INTERVALOID, nullptr, check_duration<Sign::positive>, read<&Scope::answer_ttl>,
     "how long an answer is kept, if not as long as its record"},
    {"min_ttl", INTERVALOID, nullptr, check_duration<Sign::positive>, read<&Scope::min_ttl>,
     "how short a ttl a claim may pass"},
    {"header_exclude", TEXTARRAYOID,
     "{set-cookie,cookie,authorization,proxy-authorization,www-authenticate}", check_header_names,
     read<&Scope::header_exclude>, "which headers of an answer are not stored"},
    {"tenant_from", TEXTOID, "argument", check_word_of<TenantFrom>, read<&Scope::tenant_from>,
     "where the tenant of a call comes from: argument or role"},
    {"max_answer_size", INT4OID, "65536", check_size, read<&Scope::max_answer_size>,
     "how many bytes an answer, a stored request, a recovery state or an error may have"},
    {"records", BOOLOID, "false", check_nothing, read<&Scope::records>,
     "whether the scope's records are in the tables that transactions choose, and never in "
     "idem.record"},
});

// How many of them, from the first on, are arguments: those of 1.0.
inline constexpr std::size_t named_settings = 20;
static_assert(named_settings <= settings.size());

// ---- The rows of idem.scope ---------------------------------------------------------------------

namespace scope_row {

enum Column { column_id, column_name, column_owner, column_request_lists, first_setting };
inline constexpr int columns = first_setting + static_cast<int>(settings.size());

constexpr int column_of(std::size_t setting) {
    return first_setting + static_cast<int>(setting);
}

// A name that is not in the table does not compile.
consteval int column_of(std::string_view name) {
    const auto at = std::ranges::find(settings, name, &Setting::name);
    return column_of(static_cast<std::size_t>(&*at - settings.data()));
}

// Nothing when the value is NULL. For a setting that has a default, this default: the table lacks
// the column where the installed extension is older than the library, and has NULL in it where an
// older library has written the row.
std::optional<Datum> column(TupleTableSlot* slot, int which);

inline std::int32_t id_of(TupleTableSlot* slot) {
    return DatumGetInt32(*column(slot, column_id));
}

inline std::string_view name_of(TupleTableSlot* slot) {
    return view_of(DatumGetTextPP(*column(slot, column_name)));
}

// Calls use(slot) for the committed row with this id or name. False when there is none. A session
// may use thousands of scopes, so an index finds it.
template <class Use>
bool with_row(std::int32_t id, Use use) {
    return with_committed_row(Table::scope, column_id + 1, F_INT4EQ, Int32GetDatum(id), use);
}
template <class Use>
bool with_row(std::string_view name, Use use) {
    return with_committed_row(Table::scope, column_name + 1, F_TEXTEQ,
                              PointerGetDatum(text_of(name)), use);
}

}  // namespace scope_row
}  // namespace idem::pg

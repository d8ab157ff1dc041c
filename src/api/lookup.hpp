// What idem.lookup() returns of a key, for functions that return the same or a part of it.
#pragma once

#include "pg/store/record.hpp"
#include "pg/store/scope.hpp"

namespace idem::api {

inline constexpr int lookup_columns = 14;
using LookupRow = pg::Row<lookup_columns>;

// Waits for the operation's end for that many microseconds at most.
LookupRow look_up(const pg::Key& key, const pg::Scope& scope, std::int64_t wait);

// Where a row has the columns of a finished record. After attempt come response, status, headers,
// body and error; after created_at comes expires_at.
struct FinishedColumns {
    int attempt;
    int created_at;
    int redacted;
    int completed_at;
};

template <int Columns>
void set_finished(pg::Row<Columns>& row, const pg::Record& record, const FinishedColumns& at) {
    row.set_int(at.attempt, record.attempt());
    row.set_pointer(at.attempt + 1, record.response());
    row.set_int(at.attempt + 2, record.status());
    row.set_pointer(at.attempt + 3, record.headers());
    row.set_pointer(at.attempt + 4, record.body());
    row.set_pointer(at.attempt + 5, record.error());
    row.set_time(at.created_at, record.created());
    row.set_time(at.created_at + 1, record.expires());
    row.set(at.redacted, BoolGetDatum(record.redacted()));
    row.set_time(at.completed_at, record.completed_at());
}

}  // namespace idem::api

// Where SQL meets C++: arguments come in as views and numbers, results go out as rows.
//
// An error jumps over destructors, so nothing that is alive across a PostgreSQL call may have one;
// trivial<T>() checks that at compile time. Views point into the arguments and live as long as the
// call. Intervals become microseconds.
#pragma once

#include "pg/report.hpp"
#include "pg/server.hpp"

// Declares a function that SQL can call; its body follows.
#define IDEM_FUNCTION(name)                   \
    extern "C" {                              \
    PG_FUNCTION_INFO_V1(name);                \
    PGDLLEXPORT Datum name(PG_FUNCTION_ARGS); \
    }                                         \
    Datum name(PG_FUNCTION_ARGS)

namespace idem::pg {

// From the Unix epoch, which keys use, to PostgreSQL's, in microseconds.
inline constexpr std::int64_t postgres_epoch =
    std::int64_t{POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE} * USECS_PER_DAY;

// Microseconds of the clock that is never set. Only differences have a meaning.
inline std::int64_t steady_now() {
    instr_time now;
    INSTR_TIME_SET_CURRENT(now);
    return static_cast<std::int64_t>(INSTR_TIME_GET_MICROSEC(now));
}

template <class T>
constexpr void trivial() {
    static_assert(std::is_trivially_destructible_v<T>, "an error would jump over the destructor");
}

inline std::string_view view_of(const text* value) {
    return {VARDATA_ANY(value), static_cast<std::size_t>(VARSIZE_ANY_EXHDR(value))};
}

inline text* text_of(std::string_view view) {
    return cstring_to_text_with_len(view.data(), static_cast<int>(view.size()));
}

inline std::optional<std::string_view> text_arg(FunctionCallInfo fcinfo, int n) {
    if (PG_ARGISNULL(n)) return std::nullopt;
    return view_of(PG_GETARG_TEXT_PP(n));
}

inline Jsonb* jsonb_arg(FunctionCallInfo fcinfo, int n) {
    return PG_ARGISNULL(n) ? nullptr : PG_GETARG_JSONB_P(n);
}

inline bytea* bytea_arg(FunctionCallInfo fcinfo, int n) {
    return PG_ARGISNULL(n) ? nullptr : PG_GETARG_BYTEA_PP(n);
}

inline const Interval* interval_arg(FunctionCallInfo fcinfo, int n) {
    return PG_ARGISNULL(n) ? nullptr : PG_GETARG_INTERVAL_P(n);
}

inline std::optional<std::int32_t> int_arg(FunctionCallInfo fcinfo, int n) {
    if (PG_ARGISNULL(n)) return std::nullopt;
    return PG_GETARG_INT32(n);
}

inline std::optional<std::int64_t> bigint_arg(FunctionCallInfo fcinfo, int n) {
    if (PG_ARGISNULL(n)) return std::nullopt;
    return PG_GETARG_INT64(n);
}

inline std::optional<bool> bool_arg(FunctionCallInfo fcinfo, int n) {
    if (PG_ARGISNULL(n)) return std::nullopt;
    return PG_GETARG_BOOL(n);
}

inline ArrayType* array_arg(FunctionCallInfo fcinfo, int n) {
    return PG_ARGISNULL(n) ? nullptr : PG_GETARG_ARRAYTYPE_P(n);
}

// Raises 55000 when the installed SQL objects are older or newer than the library.
void check_columns(int found, int expected);

// The type that the called function returns: as the call's expression says, or else the catalog.
inline Oid result_type(FunctionCallInfo fcinfo) {
    const Oid type = get_fn_expr_rettype(fcinfo->flinfo);
    return OidIsValid(type) ? type : get_func_rettype(fcinfo->flinfo->fn_oid);
}

// A row under construction. Every column is NULL until it is set. Columns are numbered from 0.
template <int Columns>
class Row {
  public:
    Row() { nulls_.fill(true); }

    void set(int column, Datum value) {
        Assert(column >= 0 && column < Columns);
        values_[static_cast<std::size_t>(column)] = value;
        nulls_[static_cast<std::size_t>(column)] = false;
    }
    void set_pointer(int column, const void* value) {
        if (value != nullptr) set(column, PointerGetDatum(value));
    }
    void set_text(int column, std::string_view value) { set_pointer(column, text_of(value)); }
    void set_int(int column, std::optional<std::int32_t> value) {
        if (value) set(column, Int32GetDatum(*value));
    }
    void set_bool(int column, std::optional<bool> value) {
        if (value) set(column, BoolGetDatum(*value));
    }
    void set_time(int column, std::optional<TimestampTz> value) {
        if (value) set(column, TimestampTzGetDatum(*value));
    }

    void clear(int column) {
        Assert(column >= 0 && column < Columns);
        nulls_[static_cast<std::size_t>(column)] = true;
    }

    std::span<const Datum> values() const { return values_; }
    std::span<const bool> nulls() const { return nulls_; }

    // The composite value that the called function returns, as an expanded record: PL/pgSQL takes
    // that over as its variable without forming a tuple.
    Datum as_result_of(FunctionCallInfo fcinfo) {
        ExpandedRecordHeader* record =
            make_expanded_record_from_typeid(result_type(fcinfo), -1, CurrentMemoryContext);
        check_columns(expanded_record_get_tupdesc(record)->natts, Columns);
        expanded_record_set_fields(record, values_.data(), nulls_.data(), true);
        return EOHPGetRWDatum(&record->hdr);
    }

    // Adds the row to the result of a function that returns a set, after InitMaterializedSRF().
    void add_to_result_of(FunctionCallInfo fcinfo) {
        auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
        check_columns(result->setDesc->natts, Columns);
        tuplestore_putvalues(result->setResult, result->setDesc, values_.data(), nulls_.data());
    }

  private:
    std::array<Datum, Columns> values_{};
    std::array<bool, Columns> nulls_{};
};

// The interval in microseconds. Raises 22023 unless it is finite and at most 365000 days; name is
// the argument's name for the message. The second also refuses zero and less, the third anything
// less than zero.
std::int64_t duration(const char* name, const Interval& interval);
std::int64_t positive_duration(const char* name, const Interval& interval);
std::int64_t nonnegative_duration(const char* name, const Interval& interval);

// The same for an argument of the called function; nothing when it is NULL.
std::optional<std::int64_t> positive_duration_arg(FunctionCallInfo fcinfo, int n, const char* name);
std::optional<std::int64_t> nonnegative_duration_arg(FunctionCallInfo fcinfo, int n,
                                                     const char* name);

// Microseconds as an interval that has neither months nor days.
Interval* interval_of(std::int64_t usecs);

}  // namespace idem::pg

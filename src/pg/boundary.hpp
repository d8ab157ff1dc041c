// Where SQL meets C++: arguments come in as views, results go out as one row.
//
// What crosses a PostgreSQL call must have no destructor to miss, because an error jumps over it;
// trivial<T>() says so at compile time. Views point into the arguments and live as long as the
// call.
#pragma once

#include "pg/report.hpp"
#include "pg/server.hpp"

// Declares a SQL-callable function; a body follows.
#define IDEM_FUNCTION(name)                   \
    extern "C" {                              \
    PG_FUNCTION_INFO_V1(name);                \
    PGDLLEXPORT Datum name(PG_FUNCTION_ARGS); \
    }                                         \
    Datum name(PG_FUNCTION_ARGS)

namespace idem::pg {

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

// Raises when the installed SQL objects are older or newer than the library.
inline void check_columns(int found, int expected) {
    if (found != expected) report::library_mismatch(found, expected);
}

// A row under construction: every column NULL until it is set. Columns are numbered from 0.
template <int Columns>
class Row {
  public:
    Row() { nulls_.fill(true); }

    void set(int column, Datum value) {
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

    void clear(int column) { nulls_[static_cast<std::size_t>(column)] = true; }

    std::span<const Datum> values() const { return values_; }
    std::span<const bool> nulls() const { return nulls_; }

    // As the composite value that the called function returns: an expanded record, which PL/pgSQL
    // takes over as its variable without forming and taking apart a tuple.
    Datum as_result_of(FunctionCallInfo fcinfo) {
        ExpandedRecordHeader* record = make_expanded_record_from_typeid(
            get_func_rettype(fcinfo->flinfo->fn_oid), -1, CurrentMemoryContext);
        check_columns(expanded_record_get_tupdesc(record)->natts, Columns);
        expanded_record_set_fields(record, values_.data(), nulls_.data(), true);
        return EOHPGetRWDatum(&record->hdr);
    }

    // As one more row of a function that returns a set, after InitMaterializedSRF().
    void add_to_result_of(FunctionCallInfo fcinfo) {
        auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
        check_columns(result->setDesc->natts, Columns);
        tuplestore_putvalues(result->setResult, result->setDesc, values_.data(), nulls_.data());
    }

  private:
    std::array<Datum, Columns> values_{};
    std::array<bool, Columns> nulls_{};
};

}  // namespace idem::pg

// Where SQL meets C++: arguments come in as views and numbers, results go out as rows.
//
// An error jumps over destructors, so nothing that is alive across a PostgreSQL call may have one;
// trivial<T>() checks that at compile time. Views point into the arguments and live as long as the
// call. Intervals become microseconds.
#pragma once

#include "pg/server/report.hpp"

// Declares a function that SQL can call; its body follows. The name is the same in every namespace.
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

inline ArrayType* array_arg(FunctionCallInfo fcinfo, int n) {
    return PG_ARGISNULL(n) ? nullptr : PG_GETARG_ARRAYTYPE_P(n);
}

inline std::string_view string_of(const JsonbValue& string) {
    Assert(string.type == jbvString);
    return {string.val.string.val, static_cast<std::size_t>(string.val.string.len)};
}

// Calls use(name, value) for each member of the object, without what is in the value.
template <class Use>
void each_member(JsonbContainer* object, Use use) {
    JsonbIterator* iterator = JsonbIteratorInit(object);
    JsonbValue name;
    JsonbValue value;
    JsonbIteratorToken token;
    while ((token = JsonbIteratorNext(&iterator, &name, true)) != WJB_DONE) {
        CHECK_FOR_INTERRUPTS();
        if (token != WJB_KEY) continue;
        (void)JsonbIteratorNext(&iterator, &value, true);
        use(string_of(name), value);
    }
}

// An argument that is passed by value; nothing when it is NULL.
template <class T>
std::optional<T> value_arg(FunctionCallInfo fcinfo, int n) {
    if (PG_ARGISNULL(n)) return std::nullopt;
    return static_cast<T>(PG_GETARG_DATUM(n));
}

// The elements of an array, palloc'd.
struct Elements {
    std::span<Datum> values;
    std::span<const bool> nulls;
};
Elements elements_of(ArrayType* array);

// Raises 55000 when the installed SQL objects are older or newer than the library.
void check_columns(int found, int expected);

// The composite value that the called function returns, as an expanded record: PL/pgSQL takes that
// over as its variable without forming a tuple. The columns in by_reference are bits from 0.
Datum result_record(FunctionCallInfo fcinfo, std::span<const Datum> values,
                    std::span<const bool> nulls, std::uint64_t by_reference);

// A row under construction. Every column is NULL until it is set. Columns are numbered from 0.
template <int Columns>
class Row {
  public:
    static_assert(Columns <= 64, "a bit stands for each column");
    Row() { nulls_.fill(true); }

    void set(int column, Datum value) {
        Assert(column >= 0 && column < Columns);
        values_[static_cast<std::size_t>(column)] = value;
        nulls_[static_cast<std::size_t>(column)] = false;
    }
    // Not for a result's columns, either.
    void set(int column, NullableDatum value) {
        set(column, value.value);
        nulls_[static_cast<std::size_t>(column)] = value.isnull;
    }
    // The only setter for a result's columns of a type that is passed by reference.
    void set_pointer(int column, const void* value) {
        if (value == nullptr) return;
        set(column, PointerGetDatum(value));
        by_reference_ |= std::uint64_t{1} << column;
    }
    void set_text(int column, std::string_view value) { set_pointer(column, text_of(value)); }
    void set_int(int column, std::optional<std::int32_t> value) {
        if (value) set(column, Int32GetDatum(*value));
    }
    void set_time(int column, std::optional<TimestampTz> value) {
        if (value) set(column, TimestampTzGetDatum(*value));
    }

    NullableDatum at(int column) const {
        return {values_[static_cast<std::size_t>(column)],
                nulls_[static_cast<std::size_t>(column)]};
    }
    std::span<const Datum> values() const { return values_; }
    std::span<const bool> nulls() const { return nulls_; }

    Datum as_result_of(FunctionCallInfo fcinfo) const {
        return result_record(fcinfo, values_, nulls_, by_reference_);
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
    std::uint64_t by_reference_ = 0;
};

enum class Sign { any, not_negative, positive };

// The interval in microseconds. Raises 22023 unless it is finite, at most 365000 days, and of the
// sign; name is the argument's name for the message.
std::int64_t duration(const char* name, const Interval& interval, Sign sign = Sign::any);

// The same for an argument of the called function; nothing when it is NULL.
std::optional<std::int64_t> duration_arg(FunctionCallInfo fcinfo, int n, const char* name,
                                         Sign sign);

// Microseconds as an interval that has neither months nor days.
Interval* interval_of(std::int64_t usecs);

// As the input and output functions of the type do it. The first raises their errors, the second
// returns NULL for NULL.
Datum value_of_text(Oid type, char* text, std::int32_t modifier = -1);
char* text_of_value(Oid type, NullableDatum value);

}  // namespace idem::pg

#include "pg/server/values.hpp"

#include "core/duration.hpp"
#include "pg/server/compat.hpp"

extern "C" {
#include "utils/expandedrecord.h"
}

namespace idem::pg {

Elements elements_of(ArrayType* array) {
    std::int16_t length;
    bool by_value;
    char align;
    get_typlenbyvalalign(ARR_ELEMTYPE(array), &length, &by_value, &align);
    Datum* values;
    bool* nulls;
    int count;
    deconstruct_array(array, ARR_ELEMTYPE(array), length, by_value, align, &values, &nulls, &count);
    const auto size = static_cast<std::size_t>(count);
    return {{values, size}, {nulls, size}};
}

void check_columns(int found, int expected) {
    if (found == expected) return;
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("library and SQL objects of extension \"idem\" do not match"),
                    errdetail("A result type has %d columns instead of %d.", found, expected),
                    errhint("Run ALTER EXTENSION idem UPDATE.")));
}

namespace {

// The type that the called function returns: as the call's expression says, or else the catalog.
Oid result_type(FunctionCallInfo fcinfo) {
    const Oid type = get_fn_expr_rettype(fcinfo->flinfo);
    return OidIsValid(type) ? type : get_func_rettype(fcinfo->flinfo->fn_oid);
}

[[maybe_unused]] bool marks_all_pointers(TupleDesc row, std::span<const bool> nulls,
                                         std::uint64_t by_reference) {
    for (int i = 0; i < row->natts; ++i)
        if (!nulls[static_cast<std::size_t>(i)] &&
            TupleDescAttr(row, i)->attbyval == ((by_reference >> i & 1) != 0))
            return false;
    return true;
}

Datum copy_into_record(Datum value, Form_pg_attribute attribute) {
    if (attribute->attlen == -1 && VARATT_IS_EXTERNAL(DatumGetPointer(value)))
        return PointerGetDatum(
            detoast_external_attr(reinterpret_cast<varlena*>(DatumGetPointer(value))));
    return datumCopy(value, false, attribute->attlen);
}

}  // namespace

// Does what expanded_record_set_fields() does, without looking at the attribute of each column.
Datum result_record(FunctionCallInfo fcinfo, std::span<const Datum> values,
                    std::span<const bool> nulls, std::uint64_t by_reference) {
    ExpandedRecordHeader* record =
        make_expanded_record_from_typeid(result_type(fcinfo), -1, CurrentMemoryContext);
    check_columns(record->nfields, static_cast<int>(values.size()));
    Assert(marks_all_pointers(record->er_tupdesc, nulls, by_reference));
    std::copy(values.begin(), values.end(), record->dvalues);
    std::copy(nulls.begin(), nulls.end(), record->dnulls);
    const MemoryContext before = MemoryContextSwitchTo(record->hdr.eoh_context);
    for (; by_reference != 0; by_reference &= by_reference - 1) {
        const int column = std::countr_zero(by_reference);
        record->dvalues[column] =
            copy_into_record(record->dvalues[column], TupleDescAttr(record->er_tupdesc, column));
    }
    MemoryContextSwitchTo(before);
    record->flags |= ER_FLAG_DVALUES_VALID | ER_FLAG_DVALUES_ALLOCED;
    return ExpandedRecordGetDatum(record);
}

std::int64_t duration(const char* name, const Interval& interval, Sign sign) {
    const auto usecs = compat::is_finite(interval)
                           ? core::fixed_duration(interval.month, interval.day, interval.time)
                           : std::nullopt;
    const char* fault = !usecs ? "The interval must be finite and at most 365000 days."
                        : sign == Sign::positive && *usecs <= 0
                            ? "The interval must be longer than zero."
                        : sign != Sign::any && *usecs < 0 ? "The interval must not be negative."
                                                          : nullptr;
    if (fault != nullptr)
        report::invalid_argument(name, fault, "Pass an interval such as '30 seconds'.");
    return *usecs;
}

std::optional<std::int64_t> duration_arg(FunctionCallInfo fcinfo, int n, const char* name,
                                         Sign sign) {
    if (PG_ARGISNULL(n)) return std::nullopt;
    return duration(name, *PG_GETARG_INTERVAL_P(n), sign);
}

Interval* interval_of(std::int64_t usecs) {
    auto* interval = static_cast<Interval*>(palloc0(sizeof(Interval)));
    interval->time = usecs;
    return interval;
}

Datum value_of_text(Oid type, char* text, std::int32_t modifier) {
    Oid input;
    Oid parameter;
    getTypeInputInfo(type, &input, &parameter);
    return OidInputFunctionCall(input, text, parameter, modifier);
}

char* text_of_value(Oid type, NullableDatum value) {
    if (value.isnull) return nullptr;
    Oid output;
    bool is_varlena;
    getTypeOutputInfo(type, &output, &is_varlena);
    return OidOutputFunctionCall(output, value.value);
}

}  // namespace idem::pg

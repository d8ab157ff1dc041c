#include "pg/store/scope_settings.hpp"

#include "core/header.hpp"
#include "pg/server/guc.hpp"

namespace idem::pg {
namespace {

[[noreturn]] void refuse_value(const Setting& setting, const char* detail) {
    report::invalid_argument(setting.name, detail, psprintf("The setting says %s.", setting.says));
}

TextList list_of(const Setting& setting, Datum value) {
    ArrayType* list = DatumGetArrayTypeP(value);
    if (ARR_NDIM(list) > 1) refuse_value(setting, "The array must have one dimension.");
    return texts_of(list);
}

const char* why_not_final(core::FailureFault fault) {
    switch (fault) {
        case core::FailureFault::no_failure:
            return "it is not that of an error";
        case core::FailureFault::ours:
            return "it is of class ID, which only idem raises";
        case core::FailureFault::transient:
            return "it says that a retry may succeed";
        case core::FailureFault::malformed:
        case core::FailureFault::none:
            break;
    }
    return "it is neither a SQLSTATE of five characters, 0-9 and A-Z, nor a class of two";
}

}  // namespace

// ---- The parts of a row -------------------------------------------------------------------------

void check_nothing(const Setting&, Datum) {}

void check_limit(const Setting& setting, Datum value) {
    if (DatumGetInt32(value) < 1)
        report::invalid_argument(setting.name, "The limit must be at least 1.",
                                 "Pass a limit, or -1 for none.");
}

void check_rate(const Setting& setting, Datum value) {
    check_limit(setting, value);
    if (guc::preloaded) return;
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("\"%s\" needs idem to be preloaded", setting.name),
             errdetail("What it limits is counted in shared memory, which a library gets only when "
                       "the server starts."),
             errhint("Add idem to shared_preload_libraries and restart the server.")));
}

// A larger answer could be stored, but not be read as text.
void check_size(const Setting& setting, Datum value) {
    constexpr std::int32_t least = 1024;
    constexpr std::int32_t most = 512 * 1024 * 1024;
    if (DatumGetInt32(value) < least || DatumGetInt32(value) > most)
        report::invalid_argument(
            setting.name, psprintf("The size must be between %d and %d bytes.", least, most),
            "Pass a number of bytes, such as 65536. Store larger values in a table of your own.");
}

void check_path_list(const Setting& setting, Datum value) {
    check_paths(setting.name, DatumGetArrayTypeP(value));
}

void check_header_names(const Setting& setting, Datum value) {
    for (const std::string_view name : list_of(setting, value))
        if (!core::is_header_name(name) || name.size() > core::max_path_bytes)
            report::invalid_argument(
                setting.name, "Each element must be the name of a header, of 1 to 255 bytes.",
                "Write the names as '{set-cookie,cookie}'.");
}

void check_sqlstates(const Setting& setting, Datum value) {
    for (const std::string_view state : list_of(setting, value)) {
        const core::FailureFault fault = core::listing_fault(state);
        if (fault == core::FailureFault::none) continue;
        report::invalid_argument(
            setting.name,
            psprintf("\"%s\" cannot stand for a final failure: %s.", report::c_string(state),
                     why_not_final(fault)),
            "List SQLSTATEs that your operations raise as a final failure, such as \"P0001\", or "
            "classes of them, such as \"23\".");
    }
}

void check_word(const Setting& setting, Datum value, std::span<const std::string_view> among) {
    if (std::ranges::find(among, view_of(DatumGetTextPP(value))) != among.end()) return;
    const char* words_said = strchr(setting.says, ':');
    Assert(words_said != nullptr);
    refuse_value(setting, psprintf("The value must be%s.", words_said + 1));
}

void read_value(bool& member, Datum value) {
    member = DatumGetBool(value);
}

void read_value(std::int32_t& member, Datum value) {
    member = DatumGetInt32(value);
}

void read_value(std::int64_t& member, Datum value) {
    member = duration("interval", *DatumGetIntervalP(value));
}

void read_value(TextList& member, Datum value) {
    member = texts_of(DatumGetArrayTypePCopy(value));
}

void read_value(NumberedList& member, Datum value) {
    member.paths = read_paths(DatumGetArrayTypeP(value));
}

std::size_t number_of_word(Datum value, std::span<const std::string_view> among) {
    const std::string_view word = view_of(DatumGetTextPP(value));
    const auto found = std::ranges::find(among, word);
    if (found == among.end())
        elog(ERROR, "unexpected \"%s\" in table idem.scope", report::c_string(word));
    return static_cast<std::size_t>(found - among.begin());
}

// ---- The rows of idem.scope ---------------------------------------------------------------------

std::optional<Datum> scope_row::column(TupleTableSlot* slot, int which) {
    if (which < slot->tts_tupleDescriptor->natts) {
        bool null;
        const Datum value = slot_getattr(slot, which + 1, &null);
        if (!null) return value;
    }
    if (which < first_setting) return std::nullopt;
    const Setting& setting = settings[static_cast<std::size_t>(which - first_setting)];
    if (setting.preset == nullptr) return std::nullopt;
    return value_of_text(setting.type, pstrdup(setting.preset));
}

}  // namespace idem::pg

#include "pg/store/scope_table.hpp"

#include "core/key.hpp"
#include "pg/store/scope_ids.hpp"

namespace idem::pg {
namespace {

using namespace scope_row;

constexpr int column_exclude = column_of("request_exclude");

// The list gets a number when it is first used, and has it again when it returns: fingerprints keep
// the number. Changes of scopes are serialised, so that two lists never get the same number.
void number_request_list(ScopeRow& row) {
    ArrayType* lists = DatumGetArrayTypeP(row.at(column_request_lists).value);
    const TextList texts = texts_of(lists);
    const char* text = text_of_value(TEXTARRAYOID, row.at(column_exclude));
    if (strcmp(text, "{}") == 0 || std::ranges::find(texts, text) != texts.end()) return;
    int next = static_cast<int>(texts.size()) + 1;
    row.set(column_request_lists,
            array_set_element(PointerGetDatum(lists), 1, &next, CStringGetTextDatum(text), false,
                              -1, -1, false, TYPALIGN_INT));
}

// What removes a limit where NULL means "unchanged".
bool stands_for_none(const Setting& setting, Datum value) {
    if (setting.preset != nullptr) return false;
    return setting.type == INT4OID ? DatumGetInt32(value) == -1
                                   : duration(setting.name, *DatumGetIntervalP(value)) == 0;
}

void check_scope_name(std::string_view name) {
    if (name.empty() || name.size() > core::max_scope_bytes)
        report::invalid_argument("name", "The name must have 1 to 63 bytes.",
                                 "Pass the name of a family of operations, such as 'payments'.");
}

// The scope's ttl must satisfy the scope's own limits. The error names what the call has changed.
void check_ttl(const ScopeRow& row, const ScopeRow* before, const char* limit, int column,
               const char* detail) {
    const NullableDatum value = row.at(column);
    const NullableDatum ttl = row.at(column_of("ttl"));
    if (value.isnull || duration(limit, *DatumGetIntervalP(value.value)) <=
                            duration("ttl", *DatumGetIntervalP(ttl.value)))
        return;
    if (before != nullptr && same_value(INTERVALOID, before->at(column), value))
        report::invalid_argument(
            "ttl", psprintf("The ttl must not be shorter than the scope's \"%s\".", limit),
            psprintf("Pass a longer \"ttl\", or a shorter \"%s\" as well.", limit));
    report::invalid_argument(
        limit, detail, psprintf("Pass a shorter \"%s\", or a longer \"ttl\" as well.", limit));
}

// Completes the row with what follows from its settings. before is NULL for a new scope.
void complete(ScopeRow& row, const ScopeRow* before = nullptr) {
    number_request_list(row);
    check_ttl(row, before, "min_ttl", column_of("min_ttl"),
              "The minimum must not exceed the scope's ttl.");
    check_ttl(row, before, "answer_ttl", column_of("answer_ttl"),
              "An answer must not be kept for longer than the scope's ttl.");
}

// A table that is older than the library has no column for the newest settings.
TupleTableSlot* filled_slot(Relation relation, const ScopeRow& row) {
    const int natts = RelationGetNumberOfAttributes(relation);
    for (int i = natts; i < columns; ++i) {
        const Setting& setting = settings[static_cast<std::size_t>(i - first_setting)];
        if (!same_value(setting.type, row.at(i), preset_value(setting)))
            check_columns(natts, columns);
    }
    const auto size = static_cast<std::size_t>(std::min(natts, columns));
    return new_row(relation, row.values().first(size), row.nulls().first(size));
}

StoredScope copy_row(TupleTableSlot* slot) {
    StoredScope stored{slot->tts_tid, {}};
    const TupleDesc table = slot->tts_tupleDescriptor;
    for (int i = 0; i < columns; ++i) {
        const auto value = column(slot, i);
        if (!value) continue;
        stored.row.set(i, i < table->natts ? datumCopy(*value, TupleDescAttr(table, i)->attbyval,
                                                       TupleDescAttr(table, i)->attlen)
                                           : *value);
    }
    if (role_name(DatumGetObjectId(stored.row.at(column_owner).value)) == nullptr)
        stored.row.set(column_owner, ObjectIdGetDatum(InvalidOid));
    return stored;
}

}  // namespace

const char* role_name(Oid role) {
    const char* name = GetUserNameFromId(role, true);
    return name == nullptr ? nullptr : quote_identifier(name);
}

void require_same(const ScopeRow& stored, const ScopeRow& given, const char* hint) {
    StringInfoData text;
    initStringInfo(&text);
    const auto compare = [&](const char* name, Oid type, int column) {
        const NullableDatum is = stored.at(column);
        const NullableDatum would_be = given.at(column);
        if (same_value(type, is, would_be)) return;
        const auto shown = [type](NullableDatum value) {
            return value.isnull ? "NULL" : text_of_value(type, value);
        };
        appendStringInfo(&text, "%s\"%s\" is %s, not %s", text.len == 0 ? "" : "; ", name,
                         shown(is), shown(would_be));
    };
    compare("owner", REGROLEOID, column_owner);
    for (std::size_t i = 0; i < settings.size(); ++i)
        compare(settings[i].name, settings[i].type, column_of(i));
    compare("request_lists", TEXTARRAYOID, column_request_lists);
    if (text.len == 0) return;
    ereport(ERROR, (errcode(ERRCODE_DUPLICATE_OBJECT),
                    errmsg("scope \"%s\" already exists with other settings",
                           report::c_string(name_of(stored))),
                    errdetail("In the existing scope, %s.", text.data), errhint("%s", hint)));
}

ScopeRow new_scope(std::string_view name) {
    check_scope_name(name);
    ScopeRow row;
    row.set_text(column_name, name);
    row.set_pointer(column_request_lists, construct_empty_array(TEXTOID));
    for (std::size_t i = 0; i < settings.size(); ++i)
        row.set(column_of(i), preset_value(settings[i]));
    return row;
}

void change(ScopeRow& row, std::size_t number, NullableDatum value) {
    const Setting& setting = settings[number];
    if (value.isnull && setting.preset != nullptr) report::null_argument(setting.name);
    if (!value.isnull && stands_for_none(setting, value.value)) value = {Datum{0}, true};
    if (!value.isnull) setting.check(setting, value.value);
    row.set(column_of(number), value);
}

void change_owner(ScopeRow& row, Oid owner) {
    (void)GetUserNameFromId(owner, false);  // raises when there is no such role
    compat::check_can_set_role(GetUserId(), owner);
    row.set(column_owner, ObjectIdGetDatum(owner));
}

bool same_value(Oid type, NullableDatum a, NullableDatum b) {
    if (a.isnull || b.isnull) return a.isnull == b.isnull;
    if (type == INTERVALOID)
        return duration("interval", *DatumGetIntervalP(a.value)) ==
               duration("interval", *DatumGetIntervalP(b.value));
    return strcmp(text_of_value(type, a), text_of_value(type, b)) == 0;
}

NullableDatum preset_value(const Setting& setting) {
    if (setting.preset == nullptr) return {Datum{0}, true};
    return {value_of_text(setting.type, pstrdup(setting.preset)), false};
}

// ---- Scopes as SQL ------------------------------------------------------------------------------

const char* scope_definition(std::int32_t id) {
    const StoredScope scope = stored_scope(id);
    StringInfoData call;
    initStringInfo(&call);
    appendStringInfo(&call, "SELECT idem.create_scope(%s",
                     quote_literal_cstr(text_of_value(TEXTOID, scope.row.at(column_name))));
    ArrayBuildState* unnamed = nullptr;
    for (std::size_t i = 0; i < settings.size(); ++i) {
        const Setting& setting = settings[i];
        const NullableDatum value = scope.row.at(column_of(i));
        if (same_value(setting.type, value, preset_value(setting))) continue;
        const char* text = text_of_value(setting.type, value);
        if (i >= named_settings)
            unnamed = accumArrayResult(unnamed,
                                       CStringGetTextDatum(psprintf("%s=%s", setting.name, text)),
                                       false, TEXTOID, CurrentMemoryContext);
        else if (setting.type == BOOLOID)
            appendStringInfo(&call, ", %s => %s", setting.name, *text == 't' ? "true" : "false");
        else
            appendStringInfo(&call, ", %s => %s", setting.name,
                             setting.type == INT4OID ? text : quote_literal_cstr(text));
    }
    if (unnamed != nullptr)
        appendStringInfo(
            &call, ", settings => %s",
            quote_literal_cstr(text_of_value(
                TEXTARRAYOID, {makeArrayResult(unnamed, CurrentMemoryContext), false})));
    const char* owner = role_name(DatumGetObjectId(scope.row.at(column_owner).value));
    if (owner != nullptr) appendStringInfo(&call, ", owner => %s", quote_literal_cstr(owner));
    appendStringInfoString(&call, ");");
    return call.data;
}

// ---- Changes ------------------------------------------------------------------------------------

bool insert_scope(ScopeRow& row, bool if_not_exists) {
    const std::string_view name = name_of(row);
    std::optional<std::int32_t> id;
    if (find_scope(name) == nullptr)
        id = lock_next_scope_id();
    else
        lock_changes(Table::scope);
    complete(row);
    if (const Scope* existing = find_scope(name)) {
        // Its settings are shown to its users only.
        if (!if_not_exists || !has_privs_of_role(GetUserId(), existing->owner))
            ereport(ERROR,
                    (errcode(ERRCODE_DUPLICATE_OBJECT),
                     errmsg("scope \"%s\" already exists", report::c_string(name)),
                     errdetail("Scope names are unique in a database."),
                     errhint("Change the existing scope with idem.alter_scope(), or choose another "
                             "name.")));
        const ScopeRow stored = stored_scope(existing->id).row;
        row.set(column_request_lists, stored.at(column_request_lists));
        require_same(stored, row,
                     "Pass the settings of the existing scope, which idem.scope_ddl() shows, or "
                     "change them first with idem.alter_scope().");
        return false;
    }
    row.set_int(column_id, id ? *id : lock_next_scope_id());
    place_scope(row);
    return true;
}

StoredScope stored_scope(std::int32_t id) {
    StoredScope stored;
    if (!with_row(id, [&](TupleTableSlot* slot) { stored = copy_row(slot); }))
        report::serialization_failure("The scope was dropped meanwhile.");
    return stored;
}

void update_scope(StoredScope& scope, const ScopeRow& before) {
    Relation relation = open_to_change(Table::scope);
    complete(scope.row, &before);
    TupleTableSlot* slot = filled_slot(relation, scope.row);
    const TM_Result result = update_row(relation, scope.tid, slot);
    if (result != TM_Ok) elog(ERROR, "unexpected result %d of changing a scope", result);
    ExecDropSingleTupleTableSlot(slot);
    close_changed(relation);
}

void remove_scope(std::int32_t id) {
    Relation relation = open_to_change(Table::scope);
    delete_rows(relation, [id](TupleTableSlot* slot) { return id_of(slot) == id; });
    close_changed(relation);
}

// ---- Scopes of another server -------------------------------------------------------------------

ScopeRow checked_row(HeapTupleHeader scope) {
    ScopeRow row;
    for (int i = 0; i < columns; ++i) {
        NullableDatum value;
        value.value = GetAttributeByNum(scope, static_cast<AttrNumber>(i + 1), &value.isnull);
        if (i >= first_setting) {
            change(row, static_cast<std::size_t>(i - first_setting), value);
            continue;
        }
        if (value.isnull)
            report::invalid_argument("identity", "A scope has no id, name, owner or lists.",
                                     "Pass the result of idem.export_identity() unchanged.");
        row.set(i, value.value);
    }
    complete(row);
    check_scope_name(name_of(row));
    const Oid owner = DatumGetObjectId(row.at(column_owner).value);
    if (OidIsValid(owner)) change_owner(row, owner);
    return row;
}

// The row goes past the table's NOT NULL constraints.
void place_scope(const ScopeRow& row) {
    for (std::size_t i = 0; i < settings.size(); ++i)
        Assert(settings[i].preset == nullptr || !row.at(column_of(i)).isnull);
    Relation relation = open_to_change(Table::scope);
    TupleTableSlot* slot = filled_slot(relation, row);
    insert_row(relation, slot);
    ExecDropSingleTupleTableSlot(slot);
    close_changed(relation);
}

}  // namespace idem::pg

// idem_test.rehearse(): runs a call as it runs the first time, as a replay, with another request,
// after a rollback, and with an error in each of its steps; and tells in TAP what it has seen.
//
// Everything runs in subtransactions that are rolled back. The parts of this file:
//   1. A run       the call once, in a subtransaction: its answer, its claims, what it wrote
//   2. Judgements  what is wrong with a run
//   3. The plan    which runs follow each other, and what is rolled back between them
//   4. TAP         lines out
#include "pg/server/subtransaction.hpp"
#include "pg/server/values.hpp"
#include "rehearsal.hpp"

extern "C" {
#include "executor/spi.h"
#include "utils/plancache.h"
}

namespace idem::testing {
namespace {

// ---- 1. A run -----------------------------------------------------------------------------------

// The columns' names and types, and the rows, as texts.
struct QueryResult {
    const char* columns;
    List* rows;
};

struct Run {
    ErrorData* error;  // NULL: none reached the caller
    QueryResult answer;
    List* written;  // see tables_written()
    ClaimTally claims;
    Observed observed;
};

const char* columns_of(TupleDesc description) {
    StringInfoData text;
    initStringInfo(&text);
    for (int i = 0; i < description->natts; ++i) {
        const FormData_pg_attribute* column = TupleDescAttr(description, i);
        appendStringInfo(&text, "%s%s %s", i == 0 ? "" : ", ",
                         quote_identifier(NameStr(column->attname)),
                         format_type_with_typemod(column->atttypid, column->atttypmod));
    }
    return text.data;
}

char* row_text(HeapTuple row, TupleDesc description) {
    StringInfoData text;
    initStringInfo(&text);
    for (int i = 1; i <= description->natts; ++i) {
        const char* value = SPI_getvalue(row, description, i);
        appendStringInfo(&text, "%s%s", i == 1 ? "" : ", ",
                         value == nullptr ? "NULL" : quote_literal_cstr(value));
    }
    return text.data;
}

// The result of the last SPI command, in the current memory context.
QueryResult last_result() {
    const SPITupleTable* table = SPI_tuptable;
    if (table == nullptr) return {"", NIL};
    QueryResult answer{columns_of(table->tupdesc), NIL};
    for (std::uint64_t i = 0; i < table->numvals; ++i)
        answer.rows = lappend(answer.rows, row_text(table->vals[i], table->tupdesc));
    return answer;
}

QueryResult ask(SPIPlanPtr call) {
    const MemoryContext context = CurrentMemoryContext;
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    const int code = SPI_execute_plan(call, nullptr, nullptr, false, 0);
    if (code < 0) elog(ERROR, "SPI_execute_plan failed: %s", SPI_result_code_string(code));
    MemoryContextSwitchTo(context);
    const QueryResult answer = last_result();
    SPI_finish();
    return answer;
}

// A cancelled rehearsal is not a judgement.
void pass_on_cancel(ErrorData* error) {
    if (error != nullptr && error->sqlerrcode == ERRCODE_QUERY_CANCELED) ReThrowError(error);
}

// The call once, as one statement. failing is the step that raises an error, from 1; 0: none.
Run run(SPIPlanPtr call, int failing = 0) {
    Run result{};
    Run* at = &result;
    const pg::Claim* before = newest_claim();
    begin_run(failing);
    result.error = pg::in_subtransaction([at, call] {
        at->answer = ask(call);
        at->written = tables_written();
    });
    pass_on_cancel(result.error);
    result.observed = observed();
    result.claims = claims_since(before);
    return result;
}

// What deferred constraints and triggers would raise at COMMIT.
ErrorData* error_at_commit() {
    ErrorData* error = pg::in_subtransaction(
        [] {
            if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
            if (SPI_execute("SET CONSTRAINTS ALL IMMEDIATE", false, 0) != SPI_OK_UTILITY)
                elog(ERROR, "SET CONSTRAINTS failed");
            SPI_finish();
        },
        pg::Ending::undo);
    pass_on_cancel(error);
    return error;
}

// ---- 2. Judgements ------------------------------------------------------------------------------
//
// Each returns what is wrong, as a list of sentences; NIL if nothing is.

List* add(List* faults, const char* text) {
    return lappend(faults, pstrdup(text));
}

const char* error_text(const ErrorData* error) {
    return psprintf("%s: %s", unpack_sql_state(error->sqlerrcode), error->message);
}

const char* joined(const List* texts) {
    StringInfoData all;
    initStringInfo(&all);
    for (int i = 0; i < list_length(texts); ++i)
        appendStringInfo(&all, "%s%s", i == 0 ? "" : "; ",
                         static_cast<const char*>(list_nth(texts, i)));
    return all.data;
}

List* judge_first(const Run& first) {
    if (first.error != nullptr)
        return add(add(NIL, psprintf("The call raises %s", error_text(first.error))),
                   "Pass a call that succeeds, with a key that is not in use.");
    if (first.claims.all() == 0)
        return add(add(NIL, "The call claims no key."),
                   "Pass a key that is not in use, and check that the operation calls "
                   "idem.claim().");
    if (first.claims.open() > 0)
        return add(add(NIL, psprintf("Of its %d claims, %d stay open: %s.", first.claims.all(),
                                     first.claims.open(),
                                     first.claims.open_atomic > 0
                                         ? "COMMIT raises ID006"
                                         : "retries wait for the end of the lease")),
                   "Call idem.complete() or idem.fail() on every path that has claimed the key.");
    if (first.claims.completed + first.claims.failed == 0)
        return add(add(NIL, "It releases all its claims, so that nothing is stored for a retry."),
                   "Pass a call that completes.");
    const ErrorData* late = error_at_commit();
    if (late == nullptr) return NIL;
    return add(NIL, psprintf("COMMIT raises %s", error_text(late)));
}

bool same_rows(const List* a, const List* b) {
    if (list_length(a) != list_length(b)) return false;
    for (int i = 0; i < list_length(a); ++i)
        if (strcmp(static_cast<const char*>(list_nth(a, i)),
                   static_cast<const char*>(list_nth(b, i))) != 0)
            return false;
    return true;
}

bool same_result(const QueryResult& a, const QueryResult& b) {
    return strcmp(a.columns, b.columns) == 0 && same_rows(a.rows, b.rows);
}

// Up to three rows, and the beginning of what they hold.
const char* shown(const QueryResult& answer) {
    constexpr int most_rows = 3;
    constexpr int most_bytes = 300;
    const int count = list_length(answer.rows);
    StringInfoData text;
    initStringInfo(&text);
    appendStringInfo(&text, "%d row%s", count, count == 1 ? "" : "s");
    for (int i = 0; i < std::min(count, most_rows); ++i)
        appendStringInfo(&text, "%s(%s)", i == 0 ? ": " : ", ",
                         static_cast<const char*>(list_nth(answer.rows, i)));
    const bool whole = count <= most_rows && text.len <= most_bytes;
    if (whole) return text.data;
    const int length = pg_mbcliplen(text.data, text.len, most_bytes);
    return psprintf("%.*s ...", length, text.data);
}

List* judge_answer(const Run& first, const Run& replay) {
    if (replay.error != nullptr)
        return add(NIL, psprintf("The replay raises %s", error_text(replay.error)));
    if (replay.claims.all() > 0)
        return add(add(NIL, "The replay claims a key again, so it runs the operation again."),
                   "The key must be the client's, the same in each call.");
    if (same_result(first.answer, replay.answer)) return NIL;
    List* faults = add(NIL, psprintf("First: %s", shown(first.answer)));
    faults = add(faults, psprintf("Replay: %s", shown(replay.answer)));
    if (strcmp(first.answer.columns, replay.answer.columns) != 0)
        faults = add(faults, psprintf("Columns: (%s), then (%s)", first.answer.columns,
                                      replay.answer.columns));
    return add(faults,
               "Return what idem.complete() returns, and for a replay the \"response\" of "
               "the claim. In the call, leave out columns that tell a replay apart.");
}

List* judge_writes(const Run& replay) {
    if (replay.written == NIL) return NIL;
    return add(add(NIL, psprintf("The replay writes to %s", joined(replay.written))),
               "Return before the first write if \"claimed\" of the claim is false.");
}

bool is_conflict(const ErrorData* error) {
    return strcmp(unpack_sql_state(error->sqlerrcode), "ID002") == 0;
}

List* judge_other_request(const Run& first, const Run& other) {
    if (other.error != nullptr && is_conflict(other.error)) return NIL;
    if (other.error != nullptr) return add(NIL, psprintf("It raises %s", error_text(other.error)));
    if (other.claims.all() > 0)
        return add(add(NIL, "It claims a key of its own."),
                   "Pass \"other_request\" with the key of \"call\" and another request.");
    if (!other.observed.conflicted)
        return add(add(NIL, psprintf("It gets an answer: %s", shown(other.answer))),
                   "Pass the whole request to idem.claim() as \"request\", and check that "
                   "\"request_exclude\" of the scope leaves out no more than may differ.");
    if (other.written != NIL)
        return add(NIL, psprintf("It is refused, but writes to %s", joined(other.written)));
    if (same_result(first.answer, other.answer))
        return add(NIL, psprintf("The refusal looks like the answer: %s", shown(other.answer)));
    return NIL;
}

const char* tally_text(const ClaimTally& tally) {
    return psprintf("%d completed, %d failed, %d released, %d open", tally.completed, tally.failed,
                    tally.released, tally.open());
}

// Whether a call on which nothing weighs any more runs as the first one did.
List* judge_again(const Run& first, const Run& again) {
    if (again.error != nullptr)
        return add(add(NIL, psprintf("The next call raises %s", error_text(again.error))),
                   "Avoid what a rollback does not undo: prepared statements, locks of the "
                   "session, connections to other servers.");
    if (again.claims == first.claims) return NIL;
    return add(NIL, psprintf("The claims of the first call: %s; of the next call: %s",
                             tally_text(first.claims), tally_text(again.claims)));
}

// The operation has caught the error and has not completed.
List* judge_caught(const Run& first, const Run& failed) {
    if (failed.claims.failed > first.claims.failed)
        return add(add(NIL,
                       "The call stores the error with idem.fail(), so that every retry "
                       "fails."),
                   "Store only failures that are final, and let other errors pass.");
    if (failed.written != NIL)
        return add(add(NIL, psprintf("The call catches the error, and its writes stay: %s",
                                     joined(failed.written))),
                   "Let the error pass, or let one block with the EXCEPTION clause contain the "
                   "claim and all writes.");
    if (failed.claims.open_leased > 0)
        return add(add(NIL,
                       "The call catches the error, and its lease goes on: retries wait for "
                       "its end."),
                   "Let the error pass, or call idem.release() in the handler.");
    return NIL;
}

// ---- 3. The plan --------------------------------------------------------------------------------

struct Script {
    SPIPlanPtr call;
    SPIPlanPtr other_request;  // NULL: not given
    List* lines;               // of TAP
    int tests;
    bool cut_short;  // the call does not get to its end
};

void tell(Script& script, const char* title, const List* faults);
void skip(Script& script, const char* title, const char* reason);

constexpr const char* title_first = "the call claims a key and ends its claims";
constexpr const char* title_answer = "a replay gives the same answer";
constexpr const char* title_writes = "a replay writes nothing";
constexpr const char* title_other = "another request with the same key is refused";
constexpr const char* title_again = "a call that was rolled back leaves nothing";

// Rolls the scene back and passes its errors on.
template <class Scene>
void undone(Scene scene) {
    ErrorData* error = pg::in_subtransaction(scene, pg::Ending::undo);
    if (error != nullptr) ReThrowError(error);
}

// The operation, its replay and another request, as committed transactions would follow each other.
// Returns the first run.
Run play_retries(Script& script) {
    const Run first = run(script.call);
    const List* faults = judge_first(first);
    tell(script, title_first, faults);
    script.cut_short = faults != NIL;
    if (script.cut_short) {
        for (const char* title : {title_answer, title_writes, title_other, title_again})
            skip(script, title, "needs a call that succeeds");
        return first;
    }
    const Run replay = run(script.call);
    tell(script, title_answer, judge_answer(first, replay));
    tell(script, title_writes, judge_writes(replay));
    if (script.other_request == nullptr)
        skip(script, title_other, "other_request is null");
    else
        tell(script, title_other, judge_other_request(first, run(script.other_request)));
    return first;
}

// An error in one step. Either it reaches the caller, whose transaction then has nothing of the
// call, or the operation has caught it.
List* play_error(const Script& script, const Run& first, int step) {
    const Run failed = run(script.call, step);
    if (failed.error == nullptr) {
        // COMMIT raises ID006, so that nothing stays.
        if (failed.claims.open_atomic > 0) return NIL;
        // The operation has tried again by itself.
        if (failed.claims == first.claims) {
            const Run replay = run(script.call);
            return list_concat(judge_answer(failed, replay), judge_writes(replay));
        }
        List* faults = judge_caught(first, failed);
        if (faults != NIL) return faults;
    }
    return judge_again(first, run(script.call));
}

void play(Script& script) {
    Script* at = &script;
    Run first{};
    Run* first_at = &first;
    undone([at, first_at] { *first_at = play_retries(*at); });
    if (script.cut_short) return;
    undone([at, first_at] { tell(*at, title_again, judge_again(*first_at, run(at->call))); });
    const int steps = list_length(first.observed.steps);
    for (int step = 1; step <= steps; ++step) {
        const char* title =
            psprintf("an error in step %d, idem.%s(), leaves nothing half done", step,
                     static_cast<const char*>(list_nth(first.observed.steps, step - 1)));
        undone([at, first_at, step, title] { tell(*at, title, play_error(*at, *first_at, step)); });
    }
}

// ---- 4. TAP -------------------------------------------------------------------------------------

void put(Script& script, char* line) {
    script.lines = lappend(script.lines, line);
}

// A text of several lines becomes several comments.
void put_comment(Script& script, const char* text) {
    while (text != nullptr) {
        const std::size_t length = strcspn(text, "\n");
        put(script, psprintf("# %.*s", static_cast<int>(length), text));
        text = text[length] == '\0' ? nullptr : text + length + 1;
    }
}

void tell(Script& script, const char* title, const List* faults) {
    put(script, psprintf("%sok %d - %s", faults == NIL ? "" : "not ", ++script.tests, title));
    for (int i = 0; i < list_length(faults); ++i)
        put_comment(script, static_cast<const char*>(list_nth(faults, i)));
}

void skip(Script& script, const char* title, const char* reason) {
    put(script, psprintf("ok %d - %s # SKIP %s", ++script.tests, title, reason));
}

void return_line(FunctionCallInfo fcinfo, const char* line) {
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    Datum value = CStringGetTextDatum(line);
    bool null = false;
    tuplestore_putvalues(result->setResult, result->setDesc, &value, &null);
}

void return_lines(FunctionCallInfo fcinfo, const Script& script) {
    for (int i = 0; i < list_length(script.lines); ++i)
        return_line(fcinfo, static_cast<const char*>(list_nth(script.lines, i)));
    return_line(fcinfo, psprintf("1..%d", script.tests));
}

// ---- The SQL function ---------------------------------------------------------------------------

enum Argument { arg_call, arg_other_request };

constexpr const char* statement_hint =
    "Pass one SQL statement that runs the operation, such as SELECT pay('test-1', 10).";

[[noreturn]] void invalid_argument(const char* name, const char* detail) {
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                    errmsg("invalid value for argument \"%s\"", name),
                    errdetail_internal("%s", detail), errhint("%s", statement_hint)));
}

[[noreturn]] void missing_call() {
    ereport(ERROR,
            (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("argument \"call\" must not be null"),
             errdetail("The argument has no default."), errhint("%s", statement_hint)));
}

[[noreturn]] void nested_rehearsal() {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("a rehearsal is already under way"),
                    errdetail("The call under rehearsal calls idem_test.rehearse()."),
                    errhint("Rehearse the operation itself.")));
}

[[noreturn]] void changes_not_counted() {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("idem_test.rehearse() needs the setting \"track_counts\""),
                    errdetail("The server's counters tell which tables a call has written to."),
                    errhint("As a superuser, run SET track_counts = on.")));
}

// The statement, parsed and analysed, which raises the errors of both.
SPIPlanPtr prepared(const char* name, const char* statement) {
    SPIPlanPtr plan = SPI_prepare(statement, 0, nullptr);
    if (plan == nullptr) invalid_argument(name, "SPI cannot run the statement.");
    const List* sources = SPI_plan_get_plan_sources(plan);
    if (list_length(sources) != 1)
        invalid_argument(name, psprintf("The text has %d statements.", list_length(sources)));
    const auto* source = static_cast<const CachedPlanSource*>(linitial(sources));
    const Node* parsed = source->raw_parse_tree->stmt;
    if (IsA(parsed, TransactionStmt) || IsA(parsed, CopyStmt))
        invalid_argument(name, "A rehearsal can run neither transaction control nor COPY.");
    return plan;
}

char* statement_arg(FunctionCallInfo fcinfo, int n) {
    return PG_ARGISNULL(n) ? nullptr : text_to_cstring(PG_GETARG_TEXT_PP(n));
}

// Within a subtransaction from the beginning, so that whatever ends it, the rehearsal is over.
void rehearse(Script& script) {
    Script* at = &script;
    ErrorData* error = pg::in_subtransaction(
        [at] {
            begin_rehearsal();
            play(*at);
        },
        pg::Ending::undo);
    end_rehearsal();
    if (error != nullptr) ReThrowError(error);
}

}  // namespace
}  // namespace idem::testing

IDEM_FUNCTION(idem_test_rehearse) {
    using namespace idem;
    PreventCommandIfReadOnly("idem_test.rehearse()");
    PreventCommandIfParallelMode("idem_test.rehearse()");
    const char* call = testing::statement_arg(fcinfo, testing::arg_call);
    const char* other_request = testing::statement_arg(fcinfo, testing::arg_other_request);
    if (call == nullptr) testing::missing_call();
    if (testing::rehearsing) testing::nested_rehearsal();
    if (!pgstat_track_counts) testing::changes_not_counted();
    InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    testing::Script script{};
    script.call = testing::prepared("call", call);
    if (other_request != nullptr)
        script.other_request = testing::prepared("other_request", other_request);
    testing::rehearse(script);
    testing::return_lines(fcinfo, script);
    SPI_finish();
    return Datum{0};
}

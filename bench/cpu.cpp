// The client of bench/cpu. Each line of standard input is a label, a statement and, for a statement
// with the parameter $1, a query of its values; a tab separates them. Runs the statement once, or
// with each of the values: each in a transaction of its own, and all in one pipeline. Prints the
// label and the backend's CPU time, in microseconds.
#include <libpq-fe.h>

#include <chrono>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

namespace {

PGconn* session;

PGresult* checked(PGresult* result) {
    const auto status = PQresultStatus(result);
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK || status == PGRES_PIPELINE_SYNC)
        return result;
    std::cerr << PQerrorMessage(session);
    std::exit(1);
}

void require(int success) {
    if (success == 1) return;
    std::cerr << PQerrorMessage(session);
    std::exit(1);
}

PGresult* run(const std::string& statement) {
    return checked(PQexec(session, statement.c_str()));
}

double cpu() {
    PGresult* const result = run("SELECT bench.cpu()");
    const double microseconds = std::stod(PQgetvalue(result, 0, 0));
    PQclear(result);
    return microseconds;
}

std::string prepared(const std::string& statement) {
    static std::map<std::string, std::string> names;
    std::string& name = names[statement];
    if (name.empty()) {
        name = "s" + std::to_string(names.size());
        PQclear(checked(PQprepare(session, name.c_str(), statement.c_str(), 0, nullptr)));
    }
    return name;
}

// Looks for the result from time to time. If the client waited on the socket, the backend would wake
// it with most results, which takes as long as an operation on a virtual machine, and less often for
// quick operations.
PGresult* next_result() {
    while (PQisBusy(session)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        require(PQconsumeInput(session));
    }
    return PQgetResult(session);
}

// What is sent before a result is read, and what has come by then, fits into buffers of sockets.
void run_all(const std::string& name, const PGresult* values) {
    require(PQenterPipelineMode(session));
    for (int i = 0; i < PQntuples(values); i++) {
        const char* const value = PQgetvalue(values, i, 0);
        require(PQsendQueryPrepared(session, name.c_str(), 1, &value, nullptr, nullptr, 0));
        require(PQpipelineSync(session));
    }
    for (int synced = 0; synced < PQntuples(values);) {
        PGresult* const result = next_result();
        if (result && PQresultStatus(checked(result)) == PGRES_PIPELINE_SYNC) synced++;
        PQclear(result);
    }
    require(PQexitPipelineMode(session));
}

double measured(const std::string& statement, const std::string& query) {
    if (query.empty()) {
        const double before = cpu();
        PQclear(run(statement));
        return cpu() - before;
    }
    const std::string name = prepared(statement);
    PGresult* const values = run(query);
    const double before = cpu();
    run_all(name, values);
    const double spent = cpu() - before;
    PQclear(values);
    return spent;
}

}  // namespace

int main() {
    session = PQconnectdb("");
    require(PQstatus(session) == CONNECTION_OK);
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream fields(line);
        std::string label, statement, query;
        std::getline(fields, label, '\t');
        std::getline(fields, statement, '\t');
        std::getline(fields, query, '\t');
        std::cout << label << ' ' << measured(statement, query) << '\n';
    }
    PQfinish(session);
}

// A retry storm: many clients call a procedure, each operation is sent several times, and a killer
// terminates busy connections all the while, but at most one per fifty answers: where connecting
// is slow, no client would get through otherwise. A client that loses its connection does what a
// real client can do: it reconnects and sends the same key until it has an answer.
//
//   storm PROCEDURE CLIENTS OPERATIONS SENDS KILLS_PER_SECOND [ANSWERS]
//
// PROCEDURE is the name of a function of key and request, or a call with $1 and $2. It connects as
// libpq's environment variables say (if they name several hosts, to the one that accepts writes),
// and prints what it counted, one "name value" pair per line. The file ANSWERS gets one line per
// operation: the key, a tab, and the first answer that a client got. The environment variable
// STORM_RETRIES names more classes of SQLSTATEs after which the clients retry.
#include <libpq-fe.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Plan {
    std::string procedure;
    int clients, operations, sends, kills_per_second;
    const char* answers_file;
};

// What the clients share and count.
struct Storm {
    std::vector<int> requests;  // operations, in the order in which they are sent
    std::atomic<std::size_t> next = 0, answered = 0;
    std::vector<std::atomic<int>> in_flight;
    std::vector<std::string> answers;
    std::mutex answers_mutex;
    std::atomic<int> lost = 0, in_progress = 0, retried = 0, overlapping = 0, differing = 0,
                     kills = 0;
    std::atomic<bool> over = false;
};

class Connection {
  public:
    explicit Connection(const char* name) : name_(name) {}
    ~Connection() { PQfinish(handle_); }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    // Connects as often as it takes: the server may be short of slots while killed backends end.
    PGconn* get() {
        while (handle_ == nullptr || PQstatus(handle_) != CONNECTION_OK) {
            PQfinish(handle_);
            const char* keys[] = {"dbname", "application_name", nullptr};
            const char* values[] = {std::getenv("PGDATABASE"), name_, nullptr};
            handle_ = PQconnectdbParams(keys, values, 0);
            PQsetNoticeProcessor(
                handle_, [](void*, const char*) {}, nullptr);
            if (PQstatus(handle_) != CONNECTION_OK)
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        return handle_;
    }
    bool lost() const { return PQstatus(handle_) != CONNECTION_OK; }

  private:
    const char* name_;
    PGconn* handle_ = nullptr;
};

// The sends of one operation stay close together, so that some of them overlap.
std::vector<int> shuffled(const Plan& plan) {
    std::mt19937 rng(4711);
    std::vector<std::pair<double, int>> order;
    std::uniform_real_distribution<double> jitter(0, 2.0 * plan.clients / plan.sends + 1);
    for (int op = 0; op < plan.operations; ++op)
        for (int i = 0; i < plan.sends; ++i) order.emplace_back(op + jitter(rng), op);
    std::sort(order.begin(), order.end());
    std::vector<int> requests;
    for (const auto& [at, op] : order) requests.push_back(op);
    return requests;
}

// In flight, or a fault of the server or the network: a lost connection, a conflict, a lack of
// resources, an operator's shutdown.
bool worth_a_retry(std::string_view sqlstate) {
    const std::string_view sqlstate_class = sqlstate.substr(0, 2);
    const char* also = std::getenv("STORM_RETRIES");
    if (also != nullptr && std::string_view(also).find(sqlstate_class) != std::string_view::npos)
        return true;
    return sqlstate == "ID001" || sqlstate_class == "08" || sqlstate_class == "40" ||
           sqlstate_class == "53" || sqlstate_class == "57";
}

std::string key_of(int op) {
    return "operation-" + std::to_string(op);
}

// One request: sends the same key until there is an answer, but gives up after five minutes.
std::string answer_to(int op, Connection& connection, const std::string& call, Storm& storm) {
    const auto began = Clock::now();
    const std::string key = key_of(op);
    const char* parameters[] = {key.c_str(), R"({"amount": 10})"};
    for (;;) {
        PGconn* handle = connection.get();
        PGresult* result =
            PQexecParams(handle, call.c_str(), 2, nullptr, parameters, nullptr, nullptr, 0);
        const bool answered = PQresultStatus(result) == PGRES_TUPLES_OK;
        const char* field = PQresultErrorField(result, PG_DIAG_SQLSTATE);
        const std::string sqlstate = field != nullptr ? field : "";
        const std::string text = answered ? PQgetvalue(result, 0, 0) : PQerrorMessage(handle);
        PQclear(result);
        if (answered) return text;
        const bool lost =
            connection.lost() || sqlstate.substr(0, 2) == "08" || sqlstate.substr(0, 3) == "57P";
        if ((!lost && !worth_a_retry(sqlstate)) || Clock::now() - began > std::chrono::minutes(5)) {
            std::fprintf(stderr, "storm: %s", text.c_str());
            std::exit(1);
        }
        if (lost)
            ++storm.lost;
        else if (sqlstate == "ID001")
            ++storm.in_progress;
        ++storm.retried;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void record(int op, const std::string& answer, Storm& storm) {
    const std::lock_guard guard(storm.answers_mutex);
    std::string& first = storm.answers[static_cast<std::size_t>(op)];
    if (first.empty()) first = answer;
    if (first != answer) ++storm.differing;
}

void client(const Plan& plan, Storm& storm) {
    Connection connection("storm");
    const bool is_call = plan.procedure.find('(') != std::string::npos;
    const std::string call = "SELECT " + plan.procedure + (is_call ? "" : "($1::text, $2::jsonb)");
    for (std::size_t i = storm.next++; i < storm.requests.size(); i = storm.next++) {
        const int op = storm.requests[i];
        auto& in_flight = storm.in_flight[static_cast<std::size_t>(op)];
        if (in_flight++ > 0) ++storm.overlapping;
        record(op, answer_to(op, connection, call, storm), storm);
        --in_flight;
        ++storm.answered;
    }
}

// Kills backends while they execute a request.
void killer(const Plan& plan, Storm& storm) {
    constexpr std::size_t answers_between_kills = 50;
    Connection connection("storm's killer");
    while (!storm.over) {
        const std::size_t answered = storm.answered;
        PGresult* result =
            PQexec(connection.get(),
                   "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'active' "
                   "AND application_name = 'storm' ORDER BY random() LIMIT 1");
        if (PQntuples(result) > 0) ++storm.kills;
        PQclear(result);
        do
            std::this_thread::sleep_for(
                std::chrono::microseconds(1'000'000 / plan.kills_per_second));
        while (storm.answered < answered + answers_between_kills && !storm.over);
    }
}

bool write_answers(const Plan& plan, const Storm& storm) {
    std::FILE* file = std::fopen(plan.answers_file, "w");
    if (file == nullptr) return false;
    for (int op = 0; op < plan.operations; ++op)
        std::fprintf(file, "%s\t%s\n", key_of(op).c_str(),
                     storm.answers[static_cast<std::size_t>(op)].c_str());
    return std::fclose(file) == 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 6 && argc != 7) {
        std::fprintf(
            stderr, "usage: storm PROCEDURE CLIENTS OPERATIONS SENDS KILLS_PER_SECOND [ANSWERS]\n");
        return 2;
    }
    const Plan plan{argv[1],
                    std::atoi(argv[2]),
                    std::atoi(argv[3]),
                    std::atoi(argv[4]),
                    std::atoi(argv[5]),
                    argc == 7 ? argv[6] : nullptr};
    Storm storm;
    storm.requests = shuffled(plan);
    storm.in_flight = std::vector<std::atomic<int>>(static_cast<std::size_t>(plan.operations));
    storm.answers.resize(static_cast<std::size_t>(plan.operations));

    const auto began = Clock::now();
    std::vector<std::thread> clients;
    for (int i = 0; i < plan.clients; ++i) clients.emplace_back([&] { client(plan, storm); });
    std::thread bad_weather;
    if (plan.kills_per_second > 0) bad_weather = std::thread([&] { killer(plan, storm); });
    for (std::thread& each : clients) each.join();
    const std::chrono::duration<double> took = Clock::now() - began;
    storm.over = true;
    if (bad_weather.joinable()) bad_weather.join();

    std::printf("clients %d\noperations %d\nrequests %zu\n", plan.clients, plan.operations,
                storm.requests.size());
    std::printf("kills %d\nlost %d\nin_progress %d\n", storm.kills.load(), storm.lost.load(),
                storm.in_progress.load());
    std::printf("overlapping %d\nresent %d\ndiffering %d\n", storm.overlapping.load(),
                storm.retried.load(), storm.differing.load());
    std::printf("per_second %.0f\n", static_cast<double>(storm.requests.size()) / took.count());
    if (plan.answers_file != nullptr && !write_answers(plan, storm)) {
        std::perror(plan.answers_file);
        return 1;
    }
    return 0;
}

// Makes a payment exactly once, however often it is requested (libpqxx).
//
//   g++ -std=c++17 pay.cpp -lpqxx -lpq -o pay && ./pay KEY AMOUNT
//
// Prints the answer as JSON. Prints an error to standard error as a problem document (RFC 9457).
// Connects to the database that PGHOST, PGPORT, PGDATABASE and PGUSER name. The database needs
// the scope and the table of setup.sql.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <pqxx/pqxx>
#include <random>
#include <regex>
#include <string>
#include <thread>

namespace {

constexpr int attempts = 10;

// Errors that a retry can cure: a lost connection (08), maybe during COMMIT; a lost race (40); a
// lack of resources (53); a restart of the server (57P); a key that another caller holds (ID001); a
// limit (ID009); an operation without attempts left (ID014).
bool is_transient(const pqxx::failure& error) {
    static const std::regex transient("(08|40|53|57P|ID001|ID009|ID014).*");
    if (const auto* from_server = dynamic_cast<const pqxx::sql_error*>(&error))
        if (std::regex_match(from_server->sqlstate(), transient)) return true;
    return dynamic_cast<const pqxx::broken_connection*>(&error) != nullptr ||
           dynamic_cast<const pqxx::in_doubt_error*>(&error) != nullptr ||
           dynamic_cast<const pqxx::transaction_rollback*>(&error) != nullptr;
}

// Claims the key, makes the payment and completes the claim, in one transaction.
std::string pay_once(pqxx::connection& connection, const std::string& key,
                     const std::string& amount) {
    pqxx::work transaction(connection);
    const pqxx::row claim = transaction.exec_params1(
        "SELECT claimed, token, response FROM idem.claim('payments', $1, "
        "jsonb_build_object('amount', $2::numeric))",
        key, amount);
    std::string answer;
    if (claim["claimed"].as<bool>()) {
        const auto payment =
            transaction
                .exec_params1(
                    "INSERT INTO payment (amount) VALUES ($1) RETURNING to_jsonb(payment)",
                    amount)[0]
                .as<std::string>();
        answer = transaction
                     .exec_params1("SELECT idem.complete($1, $2)", claim["token"].as<std::string>(),
                                   payment)[0]
                     .as<std::string>();
    } else {
        answer = claim["response"].as<std::string>();  // a retry gets the first answer
    }
    transaction.commit();
    return answer;
}

// The time to wait, in seconds, which ID001, ID009 and ID014 have in a field that libpqxx hides.
// Their hints, which libpqxx adds to the message, contain it as "after 1.5 seconds".
double retry_after(const std::string& message) {
    std::smatch found;
    return std::regex_search(message, found, std::regex("after ([0-9.]+) seconds"))
               ? std::stod(found[1])
               : 0;
}

void pause(int attempt, double at_least) {
    static std::mt19937 random{std::random_device{}()};
    const double most = std::min(5.0, 0.05 * std::pow(2, attempt));
    const double seconds = std::max(at_least, std::uniform_real_distribution<>(0, most)(random));
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Retries with the same key until there is an answer, or an error that a retry cannot cure.
std::string pay(const std::string& key, const std::string& amount) {
    for (int attempt = 1;; ++attempt) {
        try {
            pqxx::connection connection;
            return pay_once(connection, key, amount);
        } catch (const pqxx::failure& error) {
            if (attempt == attempts || !is_transient(error)) throw;
            pause(attempt, retry_after(error.what()));
        }
    }
}

// The driver's message also has the severity and the hint; the problem needs the primary message.
std::string problem(const pqxx::sql_error& error) {
    std::cmatch found;
    std::regex_search(error.what(), found, std::regex(":  (.*)"));
    pqxx::connection connection;
    pqxx::work transaction(connection);
    return transaction
        .exec_params1("SELECT idem.problem($1, $2)", error.sqlstate(), found[1].str())[0]
        .as<std::string>();
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc != 3) return 2;
    std::cout << pay(argv[1], argv[2]) << '\n';
} catch (const pqxx::sql_error& error) {
    std::cerr << problem(error) << '\n';
    return 1;
} catch (const pqxx::failure& error) {
    std::cerr << error.what() << '\n';
    return 2;
}

// Runs the statements of standard input with libpqxx, and prints the result of each.
#include <iostream>
#include <map>
#include <pqxx/pqxx>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::map<std::string, std::string> saved;

// NULL is a null pointer. The texts live in the fields and among what is saved.
const char* parameter(const std::string& field) {
    if (field.rfind("null:", 0) == 0) return nullptr;
    const std::size_t value = field.find(':') + 1;
    return field[value] == '$' ? saved.at(field.substr(value + 1)).c_str() : field.c_str() + value;
}

std::string result(pqxx::connection& connection, bool prepared, const std::string& statement,
                   const std::vector<const char*>& parameters) try {
    pqxx::nontransaction session(connection);
    const auto values = pqxx::prepare::make_dynamic_params(parameters.begin(), parameters.end());
    if (!prepared) return session.exec_params(statement, values)[0][0].as<std::string>();
    static int number = 0;
    const std::string name = "statement " + std::to_string(++number);
    connection.prepare(name, statement);
    return session.exec_prepared(name, values)[0][0].as<std::string>();
} catch (const pqxx::sql_error& error) {
    return "ERROR " + error.sqlstate();
}

}  // namespace

int main(int, char** arguments) {
    pqxx::connection connection;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream input(line);
        std::vector<std::string> fields;
        for (std::string field; std::getline(input, field, '\t');) fields.push_back(field);
        std::vector<const char*> parameters;
        for (std::size_t i = 2; i < fields.size(); ++i) parameters.push_back(parameter(fields[i]));
        saved[fields[0]] =
            result(connection, std::string(arguments[1]) == "prepared", fields[1], parameters);
        std::cout << saved[fields[0]] << '\n';
    }
}

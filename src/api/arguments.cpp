#include "api/arguments.hpp"

#include "core/key.hpp"
#include "pg/guc.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

}  // namespace

void require_writable(const char* call) {
    PreventCommandDuringRecovery(call);
    PreventCommandIfReadOnly(call);
    PreventCommandIfParallelMode(call);
    if (InSecurityRestrictedOperation())
        ereport(ERROR,
                (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                 errmsg("cannot execute %s within security-restricted operation", call),
                 errdetail("Index expressions, materialized views and the like are evaluated so."),
                 errhint("Call it from an ordinary statement.")));
}

void check_encoding(std::string_view text) {
    (void)pg_verify_mbstr(GetDatabaseEncoding(), text.data(), static_cast<int>(text.size()), false);
}

std::string_view utf8(std::string_view text) {
    const int length = static_cast<int>(text.size());
    const char* converted = pg_server_to_any(text.data(), length, PG_UTF8);
    return converted == text.data() ? text : std::string_view(converted);
}

std::string_view checked_key(std::optional<std::string_view> key) {
    constexpr const char* hint = "Send an idempotency key of 1 to 255 bytes, such as a UUID.";
    if (!key)
        report::invalid_key("idempotency key must not be null", "The argument \"key\" is null.",
                            hint);
    switch (core::key_shape(*key)) {
        case core::KeyShape::empty:
            report::invalid_key("idempotency key must not be empty",
                                "The argument \"key\" is the empty string.", hint);
        case core::KeyShape::too_long:
            report::invalid_key("idempotency key is too long",
                                psprintf("It has %zu bytes; at most %zu are allowed.", key->size(),
                                         core::max_key_bytes),
                                hint);
        case core::KeyShape::good:
            break;
    }
    check_encoding(*key);
    return *key;
}

std::string_view checked_tenant(std::optional<std::string_view> tenant) {
    const std::string_view meant = tenant ? *tenant : std::string_view(pg::guc::tenant);
    if (meant.size() > core::max_tenant_bytes)
        report::invalid_key("tenant is too long",
                            psprintf("It has %zu bytes; at most %zu are allowed.", meant.size(),
                                     core::max_tenant_bytes),
                            "Pass a tenant of at most 255 bytes.");
    check_encoding(meant);
    return meant;
}

pg::KeyName key_name(const pg::Scope& scope, std::string_view tenant, std::string_view key) {
    if (scope.tenant_required && tenant.empty())
        report::invalid_key("tenant is missing",
                            psprintf("Scope \"%s\" requires a tenant.", scope.name),
                            "Pass the argument \"tenant\", or set \"idem.tenant\".");
    pg::KeyName name{scope.id, tenant, key, {}};
    if (!core::key_digest({scope.id, utf8(tenant), utf8(key)}, name.digest))
        report::crypto_failure();
    return name;
}

}  // namespace idem::api

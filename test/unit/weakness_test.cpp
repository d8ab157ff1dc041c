// Which keys are weak, and why.
#include "core/key.hpp"

#include <random>
#include <string>

#include "support.hpp"

using namespace idem::core;

namespace {

void expect_all(std::string_view expected, std::initializer_list<const char*> keys) {
    for (const char* key : keys) EXPECT_EQ(weakness(key), expected) << key;
}

}  // namespace

TEST(Weakness, RandomKeysAreNotWeak) {
    expect_all("", {
                       "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d",
                       "f47ac10b-58cc-4372-a567-0e02b2c3d479", "F47AC10B58CC4372A5670E02B2C3D479",
                       "01J2WF7330Q8XYZABCDEFGHJKM", "dGhlIHF1aWNrIGJyb3du",
                       "48151623421082345791",  // 20 digits: more than a counter has
                   });
}

TEST(Weakness, NamesAreNotWeak) {
    expect_all("", {"order-4711", "order-7", "o-1", "ab1", "x1", "nan-7", "nil:9", "payment-4711",
                    "undefinedness", "nullable/4", "inv_1", "bestellung/9", "größe:1",
                    "2026-03-04-invoice-17", "invoice 2026-03-04", "payroll-2026-03"});
}

TEST(Weakness, OfGenericKeys) {
    expect_all("generic", {"undefined",
                           "null",
                           "NULL",
                           "NaN",
                           "None",
                           "nil",
                           "[object Object]",
                           "Infinity",
                           "true",
                           "idempotency-key",
                           "Idempotency-Key",
                           "IDEMPOTENCY_KEY",
                           "X-Idempotency-Key",
                           "password",
                           "checkout",
                           "payment",
                           "Payments",
                           "create-order",
                           "\"null\"",
                           "'undefined'",
                           "(none)",
                           "00000000-0000-0000-0000-000000000000",
                           "00000000000000000000000000000000",
                           "ffffffff-ffff-ffff-ffff-ffffffffffff",
                           "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF",
                           "order-undefined",
                           "undefined:7",
                           "7/null/9",
                           "order_None",
                           "{{order_id}}",
                           "${orderId}",
                           "<order id>",
                           "<>",
                           "{{}}"});
}

TEST(Weakness, OfTextsThatResembleGenericKeys) {
    expect_all("", {"checkout-4711", "nullandvoid", "annulled", "order-NULLS", "größe-prüfung",
                    "{\"order\": 4711}", "$order-4711", "a<b>c-4711",
                    "ffffffff-ffff-ffff-ffff-0123456789ab"});
}

// Deterministic, so that a count that is not 0 can be looked into.
TEST(Weakness, IsSeldomFoundInKeysThatAreMadeAtRandom) {
    constexpr int count = 125'000;  // of each of the eight kinds
    std::mt19937_64 random(20261122);
    const auto draw = [&random](std::string_view alphabet, int length) {
        std::string text;
        for (int i = 0; i < length; ++i) text += alphabet[random() % alphabet.size()];
        return text;
    };
    const std::string digits = "0123456789";
    const std::string hex = digits + "abcdef";
    const std::string crockford = digits + "ABCDEFGHJKMNPQRSTVWXYZ";
    const std::string base62 = digits + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "abcdefghijklmnopqrstuvwxyz";
    const auto uuid = [&](char version) {
        return draw(hex, 8) + '-' + draw(hex, 4) + '-' + version + draw(hex, 3) + '-' +
               draw("89ab", 1) + draw(hex, 3) + '-' + draw(hex, 12);
    };
    int found = 0;
    for (int i = 0; i < count; ++i)
        for (const std::string& key :
             {uuid('4'), "0199" + uuid('7').substr(4), "01K" + draw(crockford, 23),
              draw(base62 + "-_", 21), "2" + draw(base62, 26), "pi_3" + draw(base62, 23),
              "ORD-2026-" + std::to_string(i), draw(crockford, 3) + '-' + draw(digits, 7)})
            found += weakness(key) == "" ? 0 : 1;
    EXPECT_EQ(found, 0);
}

TEST(Weakness, OfNumbers) {
    expect_all("number", {"0", "7", "4711", "12345678", "00000000000000004711",
                          "9223372036854775807", "00000000000000000000000000"});
}

TEST(Weakness, OfTimes) {
    expect_all(
        "timestamp",
        {"1000000000", "1767225600", "1767225600.123", "1767225600123", "1767225600123456",
         "1767225600123456789", "2026-03-04", "20260304", "2026-03-04T05:06:07Z",
         "2026-03-04T05:06:07.89Z", "2026-03-04 05:06:07,890123456+01:00", "2026-03-04 05:06",
         "2026-03-04t05:06:07-0330", "2026-03-04T05:06+01", "20260304050607", "20260304T050607Z"});
}

TEST(Weakness, OfTextsThatResembleTimes) {
    expect_all("number", {"999999999", "4102444800", "17672256001", "20261304", "20260332"});
    expect_all("", {"2026-13-04", "2026-03-32x", "2026-0304T05", "2026-03-04T25:00",
                    "2026-03-04T05:60", "2026-03-04T05:06:", "2026-03-04T05:06:07.",
                    "2026-03-04T05:06:07+1", "2026-03-04T050675", "20260304T050675Z",
                    "2026-03-04T05:06:07+01:", "2026-03-04T05:06:07Z1", "1767225600.12a",
                    "17672256001.5"});
}

TEST(Weakness, OfShortKeys) {
    expect_all("short", {"", "k", "abc", "key-abc", "-1", "o--1", "1-o", "orde-"});
    expect_all("", {"abcdefgh", "ab-c-def"});
}

TEST(Weakness, OfRepetitiveKeys) {
    expect_all("repetitive",
               {"aaaaaaaa", "abababababab", "--------", "00000000-0000-0000-0000-000000000001"});
    EXPECT_EQ(weakness(std::string(255, 'x')), "repetitive");
    EXPECT_EQ(weakness("aaaabbbc"), "");
    EXPECT_EQ(weakness(std::string(21, '1')), "repetitive");
}

TEST(Weakness, OfEveryRepeatedByte) {
    for (int byte = 0; byte < 256; ++byte)
        for (std::size_t size : {1, 7, 8, 9, 40}) {
            const std::string_view found = weakness(std::string(size, static_cast<char>(byte)));
            EXPECT_NE(found, "") << byte << " x " << size;
        }
}
